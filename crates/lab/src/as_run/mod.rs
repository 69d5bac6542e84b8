//! The setting `as-run`: the messages that the paper's authors' own code posted, over a simulated lane.
//!
//! It only judges the network model: what the model predicts for these messages is compared with the published figures.
//! It is no store. The authors' lookups fetch 8 bytes of each row of 64, which cannot be verified, their rows hold no
//! version, and their updates write back what they read. Values
//! are ignored: an entry is its key.
//!
//! Two programs of the authors are behind the figures. Their simulator gave 4(a), 4(c) and 5, their store 4(b) and 6;
//! [`hash`] has the placement of both, [`search`] the search for a path, and [`local`] the figures that need no
//! network.

pub mod client;
pub mod hash;
pub mod local;
pub mod locks;
pub mod mirror;
pub mod recovery;
pub mod run;
pub mod search;
pub mod table;
#[cfg(test)]
mod tests;
