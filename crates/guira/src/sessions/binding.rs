//! The binding of a client or reader to a session: whether a lost session is reported or replaced. [R-SESSION-1]
//! [R-SESSION-2]
//!
//! Invariant: a change that may have taken effect is never repeated.

use std::sync::Arc;
use std::time::Instant;

use guira_fabric::{Effect, FabricError};
use guira_rcuckoo::{Operation, TableError};

use crate::sessions::{Session, Sessions, deadline_after};
use crate::store::Inner;
use crate::{Error, OpenError, OperationError, OperationErrorKind};

/// The session that a lane belongs to, and the source of another one.
pub(crate) struct SessionBinding {
    pub(crate) store: Arc<Inner>,
    pub(crate) sessions: Arc<Sessions>,
    /// The number of the latest session that was tried.
    number: u64,
    /// The number of the session in which the slot was taken.
    slot_session: u64,
    holds: Holds,
    /// Whether the caller knows that the node dropped this session.
    fence_reported: bool,
    /// Whether the caller knows that the table is gone, and the next operation goes on with its successor. [R-OPEN-3]
    pub(crate) must_follow: bool,
}

/// The resource that is held through a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// A client slot.
    Slot,
    /// Nothing: it does not matter whether the node dropped the session.
    Nothing,
}

/// The time until which an operation tries to get another session: set when it loses its first.
#[derive(Default)]
pub(crate) struct ReconnectDeadline(Option<Instant>);

/// The reaction to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorAction {
    /// Report it to the caller.
    Report,
    /// Report to the caller, once, that it was fenced.
    ReportFence,
    /// Repeat the operation in another session.
    Retry,
}

/// Returns the reaction to an error of an operation that had `effect`; `lost` is the loss of the session, if there was
/// one.
fn error_action(lost: Option<&FabricError>, effect: Effect, fence_reported: bool) -> ErrorAction {
    match (lost, effect) {
        (Some(FabricError::Fenced { .. }), _) if !fence_reported => ErrorAction::ReportFence,
        (Some(_), Effect::None) => ErrorAction::Retry,
        (None, _) | (Some(_), Effect::Done | Effect::Unknown) => ErrorAction::Report,
    }
}

/// Returns the loss of the session that `error` reports, if it does.
fn lost_session(error: &Error) -> Option<&FabricError> {
    let source = match error {
        Error::Operation(error) => return session_loss(error),
        Error::Open(OpenError::Table { source: TableError::Fabric(source), .. }) | Error::Fabric { source, .. } => {
            source
        }
        _ => return None,
    };
    is_loss(source).then_some(source)
}

/// Whether `error` reports that the session was lost.
pub(crate) fn is_session_lost(error: &OperationError) -> bool {
    session_loss(error).is_some()
}

fn session_loss(error: &OperationError) -> Option<&FabricError> {
    match &error.kind {
        OperationErrorKind::Fabric { source } | OperationErrorKind::Lost { source } => {
            Some(source).filter(|it| is_loss(it))
        }
        _ => None,
    }
}

/// Whether `error` says that the session was lost.
pub(crate) fn is_loss(error: &FabricError) -> bool {
    use FabricError::{ConnectionFailed, Disconnected, Fenced};
    matches!(error, Disconnected { .. } | ConnectionFailed { .. } | Fenced { .. })
}

/// Returns `error` without an effect, for an operation that had sent no change of a key: its locks and space are left
/// to the recovery of its slot.
pub(crate) fn without_effect(error: Error) -> Error {
    let unsent = |source: FabricError| match source {
        FabricError::Disconnected { .. } => FabricError::Disconnected { effect: Effect::None },
        FabricError::ConnectionFailed { cause, .. } => FabricError::ConnectionFailed { cause, effect: Effect::None },
        FabricError::Fenced { .. } => FabricError::Fenced { effect: Effect::None },
        other => other,
    };
    match error {
        Error::Operation(OperationError { operation, kind: OperationErrorKind::Fabric { source } }) => {
            OperationErrorKind::Fabric { source: unsent(source) }.during(operation).into()
        }
        Error::Fabric { doing, url, source } => Error::Fabric { doing, url, source: unsent(source) },
        other => other,
    }
}

impl SessionBinding {
    pub(crate) fn new(store: Arc<Inner>, sessions: Arc<Sessions>, number: u64, holds: Holds) -> SessionBinding {
        let (fence_reported, must_follow) = (holds == Holds::Nothing, store.must_follow());
        SessionBinding { store, sessions, number, slot_session: number, holds, fence_reported, must_follow }
    }

    /// Returns `result`, which is that of an operation, and notes whether the table is gone. [R-OPEN-3]
    pub(crate) fn note<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.must_follow |= self.store.note_loss(error);
        }
        result
    }

    /// Returns the session in which to repeat the operation after `error`.
    ///
    /// # Errors
    /// `error`, if it is to be reported; otherwise the reason why there is no other session.
    pub(crate) async fn next(&mut self, error: Error, deadline: &mut ReconnectDeadline) -> Result<Session, Error> {
        match error_action(lost_session(&error), error.effect(), self.fence_reported) {
            ErrorAction::Report => return Err(error),
            ErrorAction::ReportFence => {
                self.fence_reported = true;
                return Err(error);
            }
            ErrorAction::Retry => {}
        }
        let now = Instant::now();
        let until = match deadline.0 {
            // The operation has lost several sessions.
            Some(until) if now >= until => return Err(error),
            Some(until) => until,
            None => *deadline.0.insert(deadline_after(self.store.options.reconnect_timeout)),
        };
        self.sessions.after(self.number, until).await
    }

    /// Ignores what happened to the latest session, which is lost.
    pub(crate) fn ignore_fence(&mut self) {
        self.fence_reported = true;
    }

    /// Records that `session` was lost before anything was held in it.
    pub(crate) fn skip(&mut self, session: &Session) {
        self.number = session.number;
    }

    /// Records that the lane belongs to `session` now.
    ///
    /// # Errors
    /// `Fenced`, if the node had dropped the last session and the caller does not know: other clients have recovered
    /// what was held in it. [R-SESSION-2]
    pub(crate) fn bind(&mut self, session: &Session, operation: Operation) -> Result<(), Error> {
        let is_unreported = session.last_fenced >= self.slot_session && !self.fence_reported;
        (self.number, self.slot_session) = (session.number, session.number);
        self.fence_reported = self.holds == Holds::Nothing;
        if is_unreported {
            let source = FabricError::Fenced { effect: Effect::None };
            return Err(OperationError { operation, kind: OperationErrorKind::Fabric { source } }.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blame;

    const EFFECTS: [Effect; 3] = [Effect::None, Effect::Done, Effect::Unknown];

    /// R-SESSION-1, R-SESSION-2: every row of the table.
    #[test]
    fn only_operations_without_effect_are_repeated() {
        for effect in EFFECTS {
            let disconnected = FabricError::Disconnected { effect };
            let fenced = FabricError::Fenced { effect };
            let repeated = if effect == Effect::None { ErrorAction::Retry } else { ErrorAction::Report };
            for reported in [false, true] {
                assert_eq!(error_action(None, effect, reported), ErrorAction::Report, "{effect:?}");
                assert_eq!(error_action(Some(&disconnected), effect, reported), repeated, "{effect:?}");
            }
            assert_eq!(error_action(Some(&fenced), effect, false), ErrorAction::ReportFence, "{effect:?}");
            assert_eq!(error_action(Some(&fenced), effect, true), repeated, "{effect:?}");
        }
    }

    #[test]
    fn lost_sessions_are_distinguished_from_other_errors() {
        let operation = Operation::Put;
        let of = |source: FabricError| {
            [
                Error::Operation(OperationError {
                    operation,
                    kind: OperationErrorKind::Fabric { source: source.clone() },
                }),
                Error::Operation(OperationError {
                    operation,
                    kind: OperationErrorKind::Lost { source: source.clone() },
                }),
            ]
        };
        for effect in EFFECTS {
            let failed = FabricError::ConnectionFailed { cause: "a request failed".to_owned(), effect };
            for lost in [FabricError::Disconnected { effect }, failed, FabricError::Fenced { effect }] {
                assert!(of(lost.clone()).iter().all(|error| lost_session(error) == Some(&lost)), "{lost}");
            }
        }
        for other in
            [FabricError::Forked, FabricError::Backend(String::new()), FabricError::Died { effect: EFFECTS[0] }]
        {
            assert!(of(other).iter().all(|error| lost_session(error).is_none()));
        }
        assert!(
            lost_session(&Error::Operation(OperationError { operation, kind: OperationErrorKind::Destroyed }))
                .is_none()
        );
    }

    /// A client that had lost a batch before changes nothing by the operation it refuses.
    #[test]
    fn unsent_changes_have_no_effect() {
        for effect in EFFECTS {
            let failed = FabricError::ConnectionFailed { cause: "a request failed".to_owned(), effect };
            for source in [FabricError::Disconnected { effect }, failed, FabricError::Fenced { effect }] {
                let operation = Operation::Update;
                let lost = Error::Operation(OperationError {
                    operation,
                    kind: OperationErrorKind::Lost { source: source.clone() },
                });
                assert_eq!(lost.effect(), Effect::None);
                let unsent = without_effect(Error::Operation(OperationError {
                    operation,
                    kind: OperationErrorKind::Fabric { source: source.clone() },
                }));
                let blame = if matches!(source, FabricError::Fenced { .. }) { Blame::Fenced } else { Blame::Fabric };
                assert_eq!((unsent.effect(), unsent.blame()), (Effect::None, blame));
            }
        }
    }
}
