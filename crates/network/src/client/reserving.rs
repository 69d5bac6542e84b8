//! Requests for memory that comes later.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use guira_fabric::{FabricError, Waiting};

use super::control::ControlRequest;
use super::session::Connection;
use crate::wire::{Reserve, WireError};

/// A part of the Main space for which a client asks, piece by piece.
pub struct Reserving {
    bytes: Range<u64>,
    /// The piece in flight.
    piece: Range<u64>,
    request: ControlRequest,
}

impl Reserving {
    /// Polls a reservation of `bytes`: 1 round trip for each MiB. `begun` keeps its state until it is ready; one of
    /// other bytes, whose future was dropped, is forgotten. `take` gets each piece, and the body of the reply.
    ///
    /// # Errors
    /// The connection was lost, or the node refused the request: nothing was changed.
    pub fn poll(
        begun: &mut Option<Reserving>,
        connection: &Arc<Connection>,
        bytes: &Range<u64>,
        (waiting, cx): (Waiting, &mut Context<'_>),
        mut take: impl FnMut(&Range<u64>, &[u64]) -> Result<(), WireError>,
    ) -> Poll<Result<(), FabricError>> {
        let mut from = bytes.start;
        let mut continued = begun.take().filter(|reserving| reserving.bytes == *bytes);
        loop {
            let reserving = match continued.take() {
                Some(reserving) => reserving,
                None if from >= bytes.end => return Poll::Ready(Ok(())),
                None => {
                    let piece = from..bytes.end.min(from.saturating_add(Reserve::MAX_BYTES));
                    match ControlRequest::reserve(connection, Reserve { bytes: (piece.start, piece.end) }) {
                        Ok(request) => Reserving { bytes: bytes.clone(), piece, request },
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            };
            let Reserving { piece, request, .. } = &reserving;
            match request.poll_reply(waiting, cx, |body| take(piece, body)) {
                Poll::Ready(Ok(())) => from = piece.end,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    *begun = Some(reserving);
                    return Poll::Pending;
                }
            }
        }
    }
}
