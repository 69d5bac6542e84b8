//! Repair as printed (preset `paper`, R-REPAIR-1 to R-REPAIR-8): its promises hold when one client dies.
//!
//! Clients take turns in virtual time, verb by verb. `deaths` enumerates: a client dies at every step of an operation,
//! and others find its locks taken, wait for the printed timeout, and repair. `timers`, `leases` and `locks` test
//! single rules. What the printed repair does not promise is shown in `tests/suite/holes`.
//!
//! Proves, for preset `paper`:
//!
//! - a death at any step of an update, a remove, or an insert that moves 0 to 3 entries, followed by a second death at
//!   any step of the repair, loses, duplicates and mixes nothing if WRITEs are atomic;
//! - if they tear, each of the four states of the paper is reached, and left as printed;
//! - timers, leases, revocations and releases follow R-REPAIR-1 to R-REPAIR-8, and the reported counters are right.
//!   Clients take turns verb by verb, in virtual time;
//! - in 600 swarms one client dies anywhere, and up to two clients that repair after it die in the middle of the
//!   repair. As long as no living client is presumed dead and one client repairs at a time, which the test watches,
//!   every key is linearizable and the table is sound.
//!
//! Cannot show: what the printed repair does not promise: the holes.

mod deaths;
mod fixture;
mod leases;
mod locks;
mod timers;
