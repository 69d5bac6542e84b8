//! Tests of the table scanner: sound tables have no problems, every kind of damage is reported correctly, and a table
//! in use has no false problems.
//!
//! - `sound`: checks of sound tables, which report no problems and the right counts.
//! - `damage`: every kind of damage, by part of the table, and the problem that is reported for it.
//! - `busy`: checks while other clients change the table.
//! - `table`: the tables to check, and changes that ignore locks.

mod busy;
mod damage;
mod sound;
mod table;
