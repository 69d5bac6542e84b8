//! What becomes of what the dead leave: who is dead, what of a commit is completed, which locks are released, and which
//! extents nothing refers to any more. For tables whose locks name their owners and whose commits leave records.

pub(crate) mod failure_detector;
pub(crate) mod recover;
pub(crate) mod sweep;
