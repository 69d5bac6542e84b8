//! The service of a memory node whose clients use RDMA: connects their queue pairs, registers memory that they ask for,
//! and ends them. It executes nothing.
//!
//! Invariants: a session has at most one queue pair, and when the session ends, so does the queue pair, before a client
//! slot of the session is free. A session makes one attempt: connecting to an address that nobody has takes the kernel
//! a second, for which the sessions of the same thread wait.

use std::ops::Range;
use std::sync::Arc;

use guira_fabric::memory::SharedWords;
use guira_fabric::{FabricError, RESERVING, Region, check_reserve};
use guira_network::node::{CloseCause, EndError, Request, Responder, Service};
use guira_network::wire::{ClientParameters, Fabric, Grant, Kind, Reserve, WireError, encode_segments};

use crate::growth::Growth;
use crate::memlock;
use crate::{Accepted, GrowingArea, Target, VerbsError};

/// Attempts to end a queue pair.
const END_ATTEMPTS: u32 = 3;

/// Serves the memory that is registered with a [`Target`].
#[derive(Clone)]
pub struct VerbsAgent<R> {
    region: R,
    target: Target,
    growing: Option<Arc<Growing>>,
}

/// A main space of which only the bytes with memory are registered.
struct Growing {
    growth: Growth,
    /// All words of the space.
    words: SharedWords,
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
        VerbsAgent { region, target, growing: None }
    }
}

impl<R: Region> VerbsAgent<R> {
    /// Creates the service of a node whose main space grows in `areas`, in the order of their addresses: its words are
    /// `words`, and `stored` is what has memory. Registers that; the rest is registered when clients ask for it, within
    /// what [`Region::reserve`] allows. The device space, which does not grow, must be registered with `target`.
    ///
    /// # Errors
    /// `Memlock`, `Memory`, `Mismatch`, `Forked` or `System`.
    pub fn growing(
        region: R,
        target: Target,
        words: SharedWords,
        areas: &[GrowingArea],
        stored: &[Range<u64>],
    ) -> Result<VerbsAgent<R>, VerbsError> {
        let growing = Growing { growth: Growth::new(areas, region.main_bytes())?, words };
        let agent = VerbsAgent { region, target, growing: Some(Arc::new(growing)) };
        let Some(growing) = &agent.growing else { return Ok(agent) };
        growing.growth.provide_stored(stored, |part| agent.obtain(growing, part, u64::MAX))?;
        Ok(agent)
    }

    /// Makes memory for a part, unless more than `most` bytes have none, and registers it.
    fn obtain(&self, growing: &Growing, part: Range<u64>, most: u64) -> Result<(), VerbsError> {
        self.region.reserve(part.clone(), most).map_err(VerbsError::Memory)?;
        self.target.register_part(Arc::clone(&growing.words), part)
    }

    /// Makes sure that these bytes of the main space are registered. For a session that may only read, those are that
    /// have memory. [R-GROW-7]
    fn provide(&self, bytes: &Range<u64>, grant: Grant) -> Result<(), FabricError> {
        check_reserve(bytes, self.region.main_bytes())?;
        let Some(growing) = &self.growing else { return Ok(()) };
        let most = if grant == Grant::ReadWrite { u64::MAX } else { 0 };
        let provided = growing.growth.provide(bytes, |part| self.obtain(growing, part, most));
        provided.map_err(|error| match error {
            VerbsError::Memory(FabricError::NoMemory { .. }) if grant == Grant::ReadOnly => {
                FabricError::ReadOnly { verb: RESERVING }
            }
            VerbsError::Memory(error) => error,
            error => no_memory(error, bytes),
        })
    }
}

/// Makes a refusal of the device or of its driver to register `bytes` one that says what there is too little of.
fn no_memory(error: VerbsError, bytes: &Range<u64>) -> FabricError {
    match error {
        VerbsError::Memlock { needed_bytes, limit_bytes } => FabricError::NoMemory {
            wanted: needed_bytes,
            available: limit_bytes.saturating_sub(memlock::locked_bytes()),
            limiter: "the memory node's limit of locked memory (ulimit -l)".to_owned(),
        },
        error if error.is_lack_of_memory() => FabricError::NoMemory {
            wanted: bytes.end - bytes.start,
            available: 0,
            limiter: "the memory node's RDMA device".to_owned(),
        },
        error => FabricError::Backend(error.to_string()),
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
        let (main_bytes, device_bytes) = self.target.registered_bytes();
        let is_main = main_bytes == self.region.main_bytes() || self.growing.is_some();
        let is_whole = is_main && device_bytes == self.region.device_bytes();
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
            Kind::Reserve => {
                let Reserve { bytes: (start, end) } = Reserve::decode(body)?;
                match self.provide(&(start..end), grant) {
                    Ok(()) => {
                        let parts = self.target.parts_with(&(start..end), grant);
                        responder.reply(Kind::Reserved, header.id, &encode_segments(&parts));
                    }
                    Err(error) => responder.refuse(header.id, &error),
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
