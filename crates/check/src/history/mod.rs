//! Histories: what clients asked and were answered, and when, and whether one atomic map could have answered so.
//!
//! - [`History`] collects operations: a process calls ([`History::begin`]), and is answered ([`History::complete`]), or
//!   fails without effect ([`History::fail`]), or never hears: then its operation is *pending*.
//! - [`History::check`] looks, for each key by itself, for one order of its operations that explains every answer: each
//!   operation takes effect at one moment between its call and its answer; a pending one at any moment after its call,
//!   or never. That is linearizability (Herlihy and Wing 1990), which is local: a history of a map is linearizable if
//!   that of each key is. If there is none, [`HistoryError`] says how far an order goes, and what fits nowhere.
//!
//! Values are opaque numbers. The check is only as sharp as they are distinct: give each write a number of its own.
//! Nothing here reads a clock or a table: times are the caller's.
//!
//! ```
//! use guira_check::history::{Answer, Call, History, SEARCH_STEPS};
//!
//! let mut history = History::new();
//! let put = history.begin(1, 7, Call::Put(100), 10);
//! history.complete(put, Answer::Inserted, 20);
//! let killed = history.begin(1, 7, Call::Remove, 30);
//! let get = history.begin(2, 7, Call::Get, 40);
//! history.complete(get, Answer::Found(100), 50);
//! let get = history.begin(2, 7, Call::Get, 60);
//! history.complete(get, Answer::Absent, 70);
//! // Whoever removed the key was killed before it was answered, and its removal took effect after the first lookup.
//! assert_eq!(history.check(SEARCH_STEPS).map(|checked| (checked.keys, checked.pending)), Ok((1, 1)));
//! let get = history.begin(2, 7, Call::Get, 80);
//! history.complete(get, Answer::Found(100), 90);
//! let error = history.check(SEARCH_STEPS).unwrap_err();
//! assert!(error.to_string().contains("fits nowhere"), "{error}");
//! drop(killed);
//! ```

mod error;
mod linear;
mod operation;
mod record;
#[cfg(test)]
mod tests;
mod timeline;

pub use error::{HistoryError, NotLinearizable};
pub use linear::{Checked, SEARCH_STEPS};
pub use operation::{Answer, Call, Operation, Outcome};
pub use record::{History, PendingOperation};
