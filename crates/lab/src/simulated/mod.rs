//! Clients and their load in a simulation: the real protocol, in virtual time.
//!
//! [`SimClient`] is the client of swarms, storms and figures alike.

mod client;

pub use client::{Claim, Failure, SimClient};
