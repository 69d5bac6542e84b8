//! The service of a memory node whose clients use RDMA: connects their queue pairs, and ends them. It executes nothing.
//!
//! Invariants: a session has at most one queue pair, and when the session ends, so does the queue pair, before a client
//! slot of the session is free. A session makes one attempt: connecting to an address that nobody has takes the kernel
//! a second, for which the sessions of the same thread wait.

use guira_fabric::{FabricError, Region};
use guira_session::node::{CloseCause, EndError, Request, Responder, Service};
use guira_session::wire::{ClientParameters, Fabric, Kind, WireError};

use crate::{Accepted, Target, VerbsError};

/// Attempts to end a queue pair.
const END_ATTEMPTS: u32 = 3;

/// Serves the memory that is registered with a [`Target`].
#[derive(Clone)]
pub struct VerbsAgent<R> {
    region: R,
    target: Target,
}

/// The queue pair of a session.
#[derive(Debug, Default)]
pub enum Attachment {
    /// The client has not asked for one.
    #[default]
    None,
    /// It could not be connected.
    Failed,
    /// The node's side of it.
    Accepted(Accepted),
}

impl<R: Region> VerbsAgent<R> {
    /// Creates the service of a node. `target` has registered all bytes of `region`, which nobody but its queue pairs
    /// changes: atomics of a device are not atomic with those of the processor.
    pub fn new(region: R, target: Target) -> VerbsAgent<R> {
        VerbsAgent { region, target }
    }
}

impl<R: Region + Clone + Send + 'static> Service for VerbsAgent<R> {
    type Region = R;
    type Session = Attachment;

    const FABRIC: Fabric = Fabric::Rdma;

    fn region(&self) -> &R {
        &self.region
    }

    fn unsuitable(&self) -> Option<&'static str> {
        let registered = self.target.registered_bytes();
        let is_whole = registered == (self.region.main_bytes(), self.region.device_bytes());
        (!is_whole).then_some("not all of its bytes are registered with the device")
    }

    fn execute(
        &mut self,
        session: &mut Attachment,
        Request { header, body, grant }: Request<'_>,
        responder: &mut Responder<'_>,
    ) -> Result<(), CloseCause> {
        match header.kind {
            Kind::Attach => {
                let client = ClientParameters::decode(body)?;
                if !matches!(session, Attachment::None) {
                    responder.refuse_text(header.id, "the session has asked for its queue pair already");
                    return Ok(());
                }
                match self.target.accept(grant, &client) {
                    Ok((accepted, parameters)) => {
                        *session = Attachment::Accepted(accepted);
                        responder.reply(Kind::Attached, header.id, &parameters.encode());
                    }
                    Err(error) => {
                        *session = Attachment::Failed;
                        responder.refuse(header.id, &FabricError::Backend(error.to_string()));
                    }
                }
            }
            Kind::Batch => {
                responder.refuse(header.id, &FabricError::Unsupported { verb: "a batch of verbs over TCP" });
            }
            kind => return Err(WireError::Kind { kind: kind as u8 }.into()),
        }
        Ok(())
    }

    fn end(&mut self, session: Attachment) -> Result<(), EndError> {
        let Attachment::Accepted(mut accepted) = session else { return Ok(()) };
        let mut ended = accepted.end();
        for _ in 1..END_ATTEMPTS {
            if ended.is_ok() {
                return Ok(());
            }
            ended = accepted.end();
        }
        ended.map_err(|error: VerbsError| {
            // Its memory stays registered and claimed as long as this process lives.
            std::mem::forget(accepted);
            EndError(error.to_string())
        })
    }
}
