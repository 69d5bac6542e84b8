//! What only tables of the preset `paper` do: deaths are presumed by time, leases are taken, and states repaired, as
//! printed (paper, section 4). Hardened tables enter none of this.

pub(crate) mod lease;
pub(crate) mod repair;
pub(crate) mod suspect;
