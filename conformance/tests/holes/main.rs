//! The holes of the printed protocol, each shown where it is open and shown closed: docs/holes.md tells their stories.

mod blessed;
mod copies;
mod crafted;
mod reclaimed;
mod repairers;
mod wrapped;
