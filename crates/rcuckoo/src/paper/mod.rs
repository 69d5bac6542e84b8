//! The part of the protocol that only tables of the preset `paper` have, as printed: inserts lock the rows of their
//! path alone (section 3 of the paper), deaths are presumed by time, leases are taken, and states repaired (section 4).
//! Hardened tables enter none of this: [`crate::table::policy`] chooses.

pub(crate) mod failure_timer;
mod inserts;
pub(crate) mod lease;
pub(crate) mod repair;
