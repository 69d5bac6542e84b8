//! What a client or reader that loses its session does: report, or go on in another one. // [R-SESSION-1] [R-SESSION-2]
//!
//! Invariant: what may have changed a key is never carried out again.

use std::sync::Arc;
use std::time::Instant;

use guira_fabric::{Effect, FabricError};
use guira_rcuckoo::{Operation, TableError};

use crate::sessions::{Session, Sessions, deadline_after};
use crate::store::Inner;
use crate::{Error, OpenError, OperationError, OperationErrorKind};

/// Which session a lane belongs to, and where to get another one.
pub(crate) struct SessionBinding {
    pub(crate) store: Arc<Inner>,
    pub(crate) sessions: Arc<Sessions>,
    /// The number of the latest session that was tried.
    number: u64,
    /// The number of the session in which the slot was taken.
    slot_session: u64,
    holds: Holds,
    /// Whether the caller was told that the node dropped this session.
    fence_reported: bool,
}

/// What is held through a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// A client slot.
    Slot,
    /// Nothing: whether the node dropped the session does not matter.
    Nothing,
}

/// Until when an operation tries to get another session: set when it loses its first.
#[derive(Default)]
pub(crate) struct ReconnectDeadline(Option<Instant>);

/// What follows an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorAction {
    /// The caller is told.
    Report,
    /// The caller is told, once, that it was shut out.
    ReportFence,
    /// The operation begins anew in another session.
    Retry,
}

/// What follows an error of an operation that had `effect`; `lost` is how the session was lost, if it was.
fn error_action(lost: Option<&FabricError>, effect: Effect, fence_reported: bool) -> ErrorAction {
    match (lost, effect) {
        (Some(FabricError::Fenced { .. }), _) if !fence_reported => ErrorAction::ReportFence,
        (Some(_), Effect::None) => ErrorAction::Retry,
        (None, _) | (Some(_), Effect::Done | Effect::Unknown) => ErrorAction::Report,
    }
}

/// How `error` says that the session was lost, if it does.
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

/// Whether `error` says that the session was lost.
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

fn is_loss(error: &FabricError) -> bool {
    matches!(error, FabricError::Disconnected { .. } | FabricError::Fenced { .. })
}

/// `error` of an operation none of whose changes of keys was sent: what became of its locks and space is for those who
/// recover its slot.
pub(crate) fn without_effect(error: Error) -> Error {
    let unsent = |source: FabricError| match source {
        FabricError::Disconnected { .. } => FabricError::Disconnected { effect: Effect::None },
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
        SessionBinding { store, sessions, number, slot_session: number, holds, fence_reported: holds == Holds::Nothing }
    }

    /// The session in which to go on after `error`.
    ///
    /// # Errors
    /// `error`, if it is to be reported; why there is no other session.
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
            // It lost session after session.
            Some(until) if now >= until => return Err(error),
            Some(until) => until,
            None => *deadline.0.insert(deadline_after(self.store.options.reconnect_timeout)),
        };
        self.sessions.after(self.number, until).await
    }

    /// Notes that nobody minds what became of the latest session, which is lost.
    pub(crate) fn ignore_fence(&mut self) {
        self.fence_reported = true;
    }

    /// Notes that `session` was lost before anything was held in it.
    pub(crate) fn skip(&mut self, session: &Session) {
        self.number = session.number;
    }

    /// Notes that the lane is of `session` now.
    ///
    /// # Errors
    /// `Fenced`, if the node had dropped the session before and the caller does not know: others took over what was
    /// held in it. // [R-SESSION-2]
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
    fn only_what_changed_nothing_is_repeated() {
        for effect in EFFECTS {
            let disconnected = FabricError::Disconnected { effect };
            let fenced = FabricError::Fenced { effect };
            let repeated = if effect == Effect::None { ErrorAction::Retry } else { ErrorAction::Report };
            for told in [false, true] {
                assert_eq!(error_action(None, effect, told), ErrorAction::Report, "{effect:?}");
                assert_eq!(error_action(Some(&disconnected), effect, told), repeated, "{effect:?}");
            }
            assert_eq!(error_action(Some(&fenced), effect, false), ErrorAction::ReportFence, "{effect:?}");
            assert_eq!(error_action(Some(&fenced), effect, true), repeated, "{effect:?}");
        }
    }

    #[test]
    fn lost_sessions_are_told_from_other_errors() {
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
            for lost in [FabricError::Disconnected { effect }, FabricError::Fenced { effect }] {
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

    /// A client that had lost a batch before changed nothing by the operation it refuses.
    #[test]
    fn what_was_not_sent_had_no_effect() {
        for effect in EFFECTS {
            for source in [FabricError::Disconnected { effect }, FabricError::Fenced { effect }] {
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
