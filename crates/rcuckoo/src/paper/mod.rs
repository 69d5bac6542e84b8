//! The part of the protocol that only tables of the preset `paper` use, as printed: inserts lock only the rows of their
//! path (section 3 of the paper); deaths are presumed after a timeout, leases are taken, and states repaired (section
//! 4). Hardened tables execute none of this: [`crate::table::policy`] chooses.

pub(crate) mod failure_timer;
mod inserts;
pub(crate) mod lease;
pub(crate) mod repair;
