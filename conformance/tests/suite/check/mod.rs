//! The table scanner: sound tables are clean, every kind of damage is reported as what it is, and a table that others
//! work on has no problems that are not there.
//!
//! - `sound`: what a check says of sound tables: nothing, and the right counts.
//! - `damage`: every kind of damage, part of the table by part of the table, and what a check makes of it.
//! - `busy`: checks while others change the table.
//! - `table`: the tables of all of them, and hands that reach past every lock.

mod busy;
mod damage;
mod sound;
mod table;
