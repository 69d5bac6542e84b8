//! Findings of one look at one subject, and the summary of several looks.
//!
//! Invariant: while other clients work on the table, a problem is reported only if more than half of all looks saw it
//! and no look found its subject sound.

use std::fmt::Display;

use guira_layout::RowId;

use crate::{Cause, Problem, ProblemKind};

/// A part of the table that can be checked by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Slot(u16),
    LockWord(u64),
    Row(RowId),
    Chunk(u64),
    /// The word of a segment in the table's map.
    MapWord(u64),
}

/// Findings of one look at a subject.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    /// Whether something could not be checked, because another row was torn or changed during the look.
    pub(crate) inconclusive: bool,
}

impl Findings {
    pub(crate) fn add(&mut self, kind: ProblemKind, place: impl Display, text: impl Into<String>) {
        self.add_caused(kind, Cause::Damage, place, text);
    }

    pub(crate) fn add_caused(&mut self, kind: ProblemKind, cause: Cause, place: impl Display, text: impl Into<String>) {
        self.problems.push(Problem { kind, cause, place: place.to_string(), text: text.into() });
    }

    /// Adds a problem unless `holds`. Nothing is formatted if it holds, which is the usual case.
    pub(crate) fn require(&mut self, holds: bool, kind: ProblemKind, place: impl Display, text: impl Display) {
        if !holds {
            self.add(kind, place, text.to_string());
        }
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.problems.is_empty() && !self.inconclusive
    }
}

/// A subject that looked wrong while other clients worked, and the findings of later looks.
#[derive(Debug)]
pub(crate) struct Recheck {
    pub(crate) subject: Subject,
    /// Whether the row was counted, because it verified once.
    pub(crate) counted: bool,
    seen: Vec<(Problem, u32)>,
}

impl Recheck {
    pub(crate) fn new(subject: Subject, counted: bool) -> Recheck {
        Recheck { subject, counted, seen: Vec::new() }
    }

    /// Adds the findings of one more look. If one look found damage as the cause, the cause is damage.
    pub(crate) fn note(&mut self, findings: Findings) {
        for problem in findings.problems {
            let same = |seen: &&mut (Problem, u32)| seen.0.kind == problem.kind && seen.0.place == problem.place;
            match self.seen.iter_mut().find(same) {
                Some((last, times)) => {
                    let cause = last.cause.max(problem.cause);
                    (*last, *times) = (Problem { cause, ..problem }, *times + 1);
                }
                None => self.seen.push((problem, 1)),
            }
        }
    }

    /// Returns the problems that more than half of `looks` looks saw, each as the last look saw it.
    pub(crate) fn lasting(self, looks: u32) -> impl Iterator<Item = Problem> {
        self.seen.into_iter().filter(move |(_, times)| *times > looks / 2).map(|(problem, _)| problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(problems: &[(ProblemKind, &str)]) -> Findings {
        let mut findings = Findings::default();
        problems.iter().for_each(|(kind, text)| findings.add(*kind, "here", *text));
        findings
    }

    #[test]
    fn only_lasting_problems_are_reported() {
        let mut recheck = Recheck::new(Subject::Row(RowId(1)), true);
        recheck.note(findings(&[(ProblemKind::RowTorn, "a")]));
        recheck.note(findings(&[(ProblemKind::DuplicateKey, "first")]));
        recheck.note(findings(&[(ProblemKind::DuplicateKey, "last"), (ProblemKind::ExtentTorn, "b")]));
        let lasting: Vec<Problem> = recheck.lasting(3).collect();
        assert_eq!(lasting.len(), 1);
        assert_eq!((lasting[0].kind, lasting[0].text.as_str()), (ProblemKind::DuplicateKey, "last"));
        let mut recheck = Recheck::new(Subject::Row(RowId(1)), true);
        for cause in [Cause::DeadClient, Cause::Damage, Cause::LivingClient] {
            let mut findings = Findings::default();
            findings.add_caused(ProblemKind::RowTorn, cause, "here", "a");
            recheck.note(findings);
        }
        assert_eq!(recheck.lasting(3).next().unwrap().cause, Cause::Damage);
        assert!(Findings::default().is_sound());
        assert!(!Findings { inconclusive: true, ..Findings::default() }.is_sound());
    }
}
