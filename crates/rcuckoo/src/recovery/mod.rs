//! Recovery of dead clients: detecting a death, completing the client's commit, releasing its locks, and finding the
//! extents it leaked. For tables whose locks name their owners and whose commits leave records.

pub(crate) mod failure_detector;
pub(crate) mod recover;
pub(crate) mod sweep;
