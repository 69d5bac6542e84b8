//! The holes of the printed protocol, each shown open and shown closed; docs/holes.md explains them.
//!
//! Where preset `paper` has the hole, the same operations run under every order of turns, or under every fault, with
//! `paper` and with `hardened`: the first must be violated, the second must hold. Where Guira's `paper` keeps the rule
//! that closes it, [`printed`] or a [`guira_conformance::Flaw`] does what the printed text says or leaves open.

mod checksummed;
mod duplicates;
mod extents;
mod fabric;
mod forged;
mod locks;
mod logged;
mod printed;
mod reads;
mod reclaimed;
mod repairers;
mod rows;
mod version_wrap;
