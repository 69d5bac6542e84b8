//! Histories of operations, and the check whether an atomic map could have given the same answers.
//!
//! - [`History`] collects operations: a process calls ([`History::begin`]), and then is answered
//!   ([`History::complete`]), or fails without effect ([`History::fail`]), or never gets an answer: then its operation
//!   is *pending*.
//! - [`History::check`] searches, for each key separately, for an order of its operations that explains every answer:
//!   each operation takes effect at one moment between its call and its answer; a pending one at any moment after its
//!   call, or never. This is linearizability (Herlihy and Wing 1990), which is local: a history of a map is
//!   linearizable if the history of each key is. If there is no such order, [`HistoryError`] has the longest order that
//!   explains its answers, and the operation that does not fit after it.
//!
//! Values are opaque numbers. The check finds more errors if they are distinct: give each write a number of its own.
//! This module reads no clock and no table: the caller passes the times.
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
//! // The process that removed the key was killed before it was answered; its removal took effect after the first get.
//! assert_eq!(history.check(SEARCH_STEPS).map(|checked| (checked.keys, checked.pending)), Ok((1, 1)));
//! let get = history.begin(2, 7, Call::Get, 80);
//! history.complete(get, Answer::Found(100), 90);
//! let error = history.check(SEARCH_STEPS).unwrap_err();
//! assert!(error.to_string().contains("does not fit"), "{error}");
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
