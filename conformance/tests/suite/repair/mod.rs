//! Repair as printed (preset `paper`, R-REPAIR-1 to R-REPAIR-8): its promises hold when one client dies.
//!
//! Clients take turns in virtual time, verb by verb. `deaths` enumerates: a client dies at every step of an operation,
//! and others find its locks taken, wait for the printed timeout, and repair. `timers`, `leases` and `locks` test
//! single rules. What the printed repair does not promise is shown in `tests/suite/holes`.

mod deaths;
mod fixture;
mod leases;
mod locks;
mod timers;
