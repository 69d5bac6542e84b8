//! The service of a TCP node: executes batches on the bytes of a region.
//!
//! Invariant: a batch that is refused had no effect.

use std::sync::Arc;

use crate::node::{CloseCause, Counter, EndError, Request, Responder, Service};
use crate::wire::{Fabric, Grant, HEADER_WORDS, Header, Kind, MAX_BATCH_VERBS, MAX_VERB_WORDS, Reserve, WireError};
use arrayvec::ArrayVec;
use guira_fabric::{Effect, FabricError, Lane, MaskedCas, RESERVING, Region, Submitted, Verb};

use crate::tcp::backed::Backed;
use crate::tcp::batch::{found_words, parse_batch_into};

/// Executes the batches of sessions on a region whose lanes execute in place.
pub struct BatchExecutor<R: Region> {
    region: R,
    lane: R::Lane,
    /// Which parts of the region have memory, if not all of it has.
    backed: Option<Arc<Backed>>,
}

impl<R: Region> BatchExecutor<R> {
    /// Creates the service of a node that serves `region`.
    pub fn new(region: R) -> BatchExecutor<R> {
        let backed = region.has_holes().then(|| Arc::new(Backed::new(region.main_bytes())));
        BatchExecutor::with(region, backed)
    }

    fn with(region: R, backed: Option<Arc<Backed>>) -> BatchExecutor<R> {
        let lane = region.lane();
        BatchExecutor { region, lane, backed }
    }

    /// Makes memory for a part of the region.
    fn reserve(
        &mut self,
        Request { header, body, grant }: Request<'_>,
        responder: &mut Responder<'_>,
    ) -> Result<(), CloseCause> {
        let Reserve { bytes } = Reserve::decode(body)?;
        let reserved = match grant {
            Grant::ReadOnly => Err(FabricError::ReadOnly { verb: RESERVING }),
            Grant::ReadWrite => Backed::reserve(self.backed.as_deref(), &self.region, bytes.0..bytes.1),
        };
        match reserved {
            Ok(()) => responder.reply(Kind::Reserved, header.id, &[]),
            Err(error) => responder.refuse(header.id, &error),
        }
        Ok(())
    }

    /// Executes a batch and writes its reply to `frame`; the inner error is the reason for a refusal.
    #[inline(never)]
    fn execute_to(
        &mut self,
        Request { header, body, grant }: Request<'_>,
        frame: &mut [u64],
    ) -> Result<Result<VerbTally, FabricError>, WireError> {
        let reply = Header { words: frame.len(), kind: Kind::Done, count: 0, id: header.id };
        let (head, found) = frame.split_at_mut(HEADER_WORDS);
        head.copy_from_slice(&reply.encode());
        let mut verbs = ArrayVec::new();
        parse_batch_into(&mut verbs, body, header.count, found)?;
        let change = |verb: &&Verb<'_>| !matches!(verb, Verb::Read { .. });
        if grant == Grant::ReadOnly
            && let Some(verb) = verbs.iter().find(change)
        {
            return Ok(Err(FabricError::ReadOnly { verb: verb.name() }));
        }
        let executed = match &self.backed {
            Some(backed) => backed.execute(&self.region, &mut self.lane, &mut verbs),
            None => execute_in_place(&mut self.lane, &mut verbs),
        };
        Ok(executed.map(|()| VerbTally::of(&verbs)))
    }
}

impl<R: Region + Clone> Clone for BatchExecutor<R> {
    fn clone(&self) -> BatchExecutor<R> {
        BatchExecutor::with(self.region.clone(), self.backed.clone())
    }
}

impl<R: Region + Clone + Send + 'static> Service for BatchExecutor<R> {
    type Region = R;
    type Session = ();

    const FABRIC: Fabric = Fabric::Tcp;

    fn region(&self) -> &R {
        &self.region
    }

    fn unsuitable(&self) -> Option<&'static str> {
        let caps = self.region.caps();
        if !caps.local {
            Some("its lanes do not execute in place")
        } else if caps.masked_cas == MaskedCas::CasLoop {
            Some("it has no masked CAS")
        } else if caps.max_batch < MAX_BATCH_VERBS || caps.max_verb_words < MAX_VERB_WORDS {
            Some("its longest batch or verb is shorter than that of this fabric")
        } else {
            None
        }
    }

    /// Executes a batch: its READs copy from the region to the output buffer, its WRITEs from the input buffer to the
    /// region.
    fn execute(&mut self, (): &mut (), request: Request<'_>, responder: &mut Responder<'_>) -> Result<(), CloseCause> {
        let Request { header, body, .. } = request;
        match header.kind {
            Kind::Batch => {}
            Kind::Reserve => return self.reserve(request, responder),
            kind => return Err(WireError::Kind { kind: kind as u8 }.into()),
        }
        let words = HEADER_WORDS + found_words(body, header.count)?;
        let executed = self.execute_to(request, responder.room(words))?;
        // The results may be zeros that the file never had, and the writes are lost.
        if self.region.has_lost_bytes() {
            return Err(CloseCause::MemoryLost);
        }
        match executed {
            Ok(tally) => {
                tally.count(responder);
                responder.commit(words);
            }
            Err(error) if error.effect() == Effect::None => responder.refuse(header.id, &error),
            Err(error) => return Err(CloseCause::Broken(error)),
        }
        Ok(())
    }

    /// Nothing of a session is left: its batches executed on this thread.
    fn end(&mut self, (): ()) -> Result<(), EndError> {
        Ok(())
    }
}

#[inline]
pub(crate) fn execute_in_place<L: Lane>(lane: &mut L, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
    match lane.submit(verbs) {
        Submitted::Done(result) => result,
        // A region that was checked to be local has no such lane.
        Submitted::InFlight => {
            lane.forget();
            Err(FabricError::Disconnected { effect: Effect::Unknown })
        }
    }
}

/// The verbs of a batch by kind.
#[derive(Clone, Copy, Default)]
struct VerbTally {
    reads: u64,
    writes: u64,
    swaps: u64,
    adds: u64,
}

impl VerbTally {
    #[inline]
    fn of(verbs: &[Verb<'_>]) -> VerbTally {
        let mut tally = VerbTally::default();
        for verb in verbs {
            match verb {
                Verb::Read { .. } => tally.reads += 1,
                Verb::Write { .. } => tally.writes += 1,
                Verb::Cas { .. } | Verb::MaskedCas { .. } => tally.swaps += 1,
                Verb::FetchAdd { .. } => tally.adds += 1,
            }
        }
        tally
    }

    #[inline]
    fn count(self, responder: &Responder<'_>) {
        responder.count(Counter::Batches, 1);
        responder.count(Counter::Reads, self.reads);
        responder.count(Counter::Writes, self.writes);
        responder.count(Counter::Swaps, self.swaps);
        responder.count(Counter::Adds, self.adds);
    }
}
