//! The checks of a batch before it is sent, and its division into frames.

use crate::wire::{Grant, Welcome};
use guira_fabric::{Addr, Caps, FabricError, MaskedCas, Profile, Space, Verb, WORD_BYTES};

use crate::tcp::batch::{BatchShape, encode_batch};

/// The bounds of a session: the addresses it may use, and its access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) main_words: u64,
    pub(crate) device_words: u64,
    pub(crate) caps: Caps,
    pub(crate) grant: Grant,
}

/// The plan for a batch that has passed all checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The number of frames; 0 if the batch does nothing.
    pub(crate) frames: u32,
    /// Whether one frame holds all verbs.
    is_whole: bool,
    /// The words of its results.
    pub(crate) found_words: usize,
    /// Whether a verb changes memory.
    pub(crate) is_change: bool,
}

impl Bounds {
    pub(crate) fn of(welcome: &Welcome) -> Bounds {
        let (main_words, device_words) = (welcome.main_bytes / WORD_BYTES, welcome.device_bytes / WORD_BYTES);
        let (atomic_write_unit, device_bytes) = (welcome.atomic_write_unit, welcome.device_bytes);
        let caps = Caps { atomic_write_unit, device_bytes, ..Profile::Tcp.caps() };
        Bounds { main_words, device_words, caps, grant: welcome.grant }
    }

    /// Checks every verb as the node would, and writes to `atomics` where in the results each atomic's word will be.
    ///
    /// # Errors
    /// `ReadOnly`, `Misaligned`, `OutOfBounds`, `TooLarge`, `Unsupported`; nothing was sent.
    #[inline]
    pub(crate) fn plan(&self, batch: &[Verb<'_>], atomics: &mut Vec<u32>) -> Result<Plan, FabricError> {
        atomics.clear();
        let mut plan = Plan::default();
        let mut has_empty = false;
        for verb in batch {
            self.check(verb)?;
            has_empty |= verb.words() == 0;
            match verb {
                Verb::Read { into, .. } => plan.found_words += into.len(),
                Verb::Write { .. } => plan.is_change = true,
                Verb::Cas { .. } | Verb::MaskedCas { .. } | Verb::FetchAdd { .. } => {
                    plan.is_change = true;
                    atomics.push(plan.found_words as u32);
                    plan.found_words += 1;
                }
            }
        }
        let longest = batch.iter().map(Verb::words).max().unwrap_or(0);
        if batch.len() > self.caps.max_batch || longest > self.caps.max_verb_words {
            return Err(FabricError::TooLarge { verbs: batch.len(), words: longest });
        }
        // No frame holds a verb of no words.
        plan.is_whole = !has_empty && BatchShape::of(batch).is_ok();
        plan.frames = if plan.is_whole { 1 } else { Frames(batch).count() as u32 };
        Ok(plan)
    }

    #[inline(always)]
    fn check(&self, verb: &Verb<'_>) -> Result<(), FabricError> {
        if self.grant == Grant::ReadOnly && !matches!(verb, Verb::Read { .. }) {
            return Err(FabricError::ReadOnly { verb: verb.name() });
        }
        let (addr, words) = (verb.addr(), verb.words());
        let space_words = match addr.space() {
            Space::Main => self.main_words,
            Space::Device => self.device_words,
        };
        let is_inside = addr.word().checked_add(words as u64).is_some_and(|end| end <= space_words);
        if !is_inside || !addr.is_aligned() {
            return Err(refusal(verb, addr, words, space_words));
        }
        if self.caps.masked_cas == MaskedCas::CasLoop && matches!(verb, Verb::MaskedCas { .. }) {
            return Err(FabricError::Unsupported { verb: verb.name() });
        }
        Ok(())
    }
}

#[cold]
fn refusal(verb: &Verb<'_>, addr: Addr, words: usize, space_words: u64) -> FabricError {
    if !addr.is_aligned() {
        return FabricError::Misaligned { verb: verb.name(), addr };
    }
    FabricError::OutOfBounds { verb: verb.name(), addr, words, space_bytes: space_words * WORD_BYTES }
}

/// Appends the frames of a batch with `plan`; `id` returns the id of each. Returns the number of appended words up to
/// the end of the first frame that changes memory.
pub(crate) fn encode(out: &mut Vec<u64>, batch: &[Verb<'_>], plan: Plan, id: impl Fn(u32) -> u64) -> Option<usize> {
    let start = out.len();
    let is_change = |frame: &[Verb<'_>]| frame.iter().any(|verb| !matches!(verb, Verb::Read { .. }));
    if plan.is_whole && encode_batch(out, id(0), batch).is_ok() {
        return plan.is_change.then(|| out.len() - start);
    }
    let mut first_change = None;
    for (index, frame) in (0..).zip(Frames(batch)) {
        encode_batch(out, id(index), frame).expect("a frame was cut to fit");
        if first_change.is_none() && is_change(frame) {
            first_change = Some(out.len() - start);
        }
    }
    first_change
}

/// An iterator over the runs of a batch that fit one frame each, in order, without the verbs of no words.
struct Frames<'a, 'b>(&'a [Verb<'b>]);

impl<'a, 'b> Iterator for Frames<'a, 'b> {
    type Item = &'a [Verb<'b>];

    fn next(&mut self) -> Option<&'a [Verb<'b>]> {
        let is_empty = |verb: &Verb<'_>| verb.words() == 0;
        let first = self.0.iter().position(|verb| !is_empty(verb)).unwrap_or(self.0.len());
        let rest = &self.0[first..];
        let run = rest.iter().position(is_empty).unwrap_or(rest.len());
        // A single verb fits, and so does every prefix of a run that fits.
        let fits = |verbs: usize| BatchShape::of(&rest[..verbs]).is_ok();
        let (mut low, mut high) = (run.min(1), run);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        self.0 = &rest[low..];
        (low > 0).then(|| &rest[..low])
    }
}
