//! Fixed bugs, one file each under `regressions/`, named by what broke: each fails without its fix.

#[path = "../regressions/a_lookup_drained_a_dropped_change.rs"]
mod a_lookup_drained_a_dropped_change;
#[path = "../regressions/full_orphans_were_read_one_by_one.rs"]
mod full_orphans_were_read_one_by_one;
