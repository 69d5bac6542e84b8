//! Checks of the chunk table: words, owners and runs. Counts the extents that no entry refers to.

use guira_fabric::{Addr, FabricError, Verb, post};
use guira_layout::{ChunkState, ChunkWord, ExtentClass, Generation, MAX_KEY_BYTES, MAX_VALUE_BYTES, extent_words};
use guira_rcuckoo::available_chunks;

use crate::findings::{Findings, Subject};
use crate::scan::{Scan, WORDS_PER_READ};
use crate::{ProblemKind, Stage};

/// Chunk slots read by one batch: half of the smallest `max_batch` of all fabrics.
const BATCH_SLOTS: u64 = 64;

/// The name of a chunk in findings.
#[derive(Clone, Copy)]
struct ChunkLabel(u64);

impl std::fmt::Display for ChunkLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "chunk {}", self.0)
    }
}

/// A run whose tails must follow.
#[derive(Clone, Copy)]
struct Run {
    head: u64,
    end: u64,
}

impl Scan<'_> {
    pub(crate) async fn check_chunks(&mut self) -> Result<(), FabricError> {
        let chunks = available_chunks(&mut *self.lane, self.table).await?;
        let (mut words, mut run, mut free) = (Vec::new(), None, 0);
        for first in (0..chunks).step_by(WORDS_PER_READ as usize) {
            self.show(Stage::Chunks, first, chunks);
            words.resize(WORDS_PER_READ.min(chunks - first) as usize, 0);
            self.read(self.table.geometry().chunk_word(first), &mut words).await?;
            for (chunk, word) in (first..).zip(&words) {
                self.report.counts.count_chunk(self.table, chunk, ChunkWord(*word).decode(), &mut free);
                self.check_chunk(chunk, *word, &mut run).await?;
            }
        }
        self.show(Stage::Chunks, chunks, chunks);
        Ok(())
    }

    /// Checks the next chunk of the pass; `run` is the run it may belong to.
    async fn check_chunk(&mut self, chunk: u64, word: u64, run: &mut Option<Run>) -> Result<(), FabricError> {
        let state = ChunkWord(word).decode();
        let within = run.take().filter(|run| chunk < run.end);
        if let (Some(within), Some(ChunkState::Tail { head })) = (within, state)
            && u64::from(head) == within.head
        {
            *run = Some(within);
            return Ok(());
        }
        if let Some(Run { head, end }) = within {
            let mut findings = Findings::default();
            add_broken_run(&mut findings, head, end - head, chunk);
            self.report_or_recheck(Subject::Chunk(head), findings, true).await?;
        }
        let mut findings = self.inspect_chunk_word(chunk, word);
        // A run that is being claimed or freed may lack tails; those it has are behind it.
        if let Some(ChunkState::Tail { head }) = state
            && !self.reaches(head, chunk).await?
        {
            add_stray_tail(&mut findings, chunk, head);
        }
        if let Some(class) = self.possible_class(chunk, state).filter(|_| is_in_use(state)) {
            if let ExtentClass::Run(count) = class {
                *run = Some(Run { head: chunk, end: chunk + u64::from(count) });
            }
            self.count_unreferenced(chunk, class).await?;
        }
        self.report_or_recheck(Subject::Chunk(chunk), findings, true).await
    }

    /// Checks a chunk's word by itself. [R-EXTENT-2]
    fn inspect_chunk_word(&self, chunk: u64, word: u64) -> Findings {
        let (mut findings, place, config) = (Findings::default(), ChunkLabel(chunk), self.table.config());
        let state = ChunkWord(word).decode();
        findings.require(
            state.is_some(),
            ProblemKind::ChunkWord,
            place,
            format_args!("its word {word:#x} is not valid"),
        );
        if let Some(ChunkState::Owned { owner, .. } | ChunkState::Claiming { owner, .. }) = state {
            let verb = if is_in_use(state) { "owned" } else { "claimed" };
            if !self.is_live(owner) {
                let text = format!("it is {verb} by {}", self.describe(owner));
                findings.add_caused(ProblemKind::ChunkOwner, self.cause(owner), place, text);
            }
        }
        if let Some(class) = class_of(state) {
            findings.require(
                self.is_possible(class),
                ProblemKind::ChunkClass,
                place,
                format_args!("chunks of {} bytes cannot hold {}", config.chunk_bytes, describe_class(class)),
            );
            findings.require(
                self.fits(chunk, class),
                ProblemKind::BrokenRun,
                place,
                format_args!("its run extends beyond the last chunk, {}", config.chunks - 1),
            );
        }
        findings
    }

    /// Returns the size class of a chunk in `state`, if it is possible in this table.
    fn possible_class(&self, chunk: u64, state: Option<ChunkState>) -> Option<ExtentClass> {
        class_of(state).filter(|class| self.is_possible(*class) && self.fits(chunk, *class))
    }

    /// Whether a run of `class` that starts at `chunk` ends within the table.
    fn fits(&self, chunk: u64, class: ExtentClass) -> bool {
        let ExtentClass::Run(count) = class else { return true };
        chunk + u64::from(count) <= self.table.config().chunks
    }

    /// Whether a chunk of this table can be of `class`.
    fn is_possible(&self, class: ExtentClass) -> bool {
        match class {
            ExtentClass::Slot(_) => class.fits(self.table.config()),
            ExtentClass::Run(count) => (1..=self.longest_run()).contains(&u64::from(count)),
        }
    }

    /// Returns the number of chunks of the largest extent.
    fn longest_run(&self) -> u64 {
        let words = extent_words(MAX_KEY_BYTES, MAX_VALUE_BYTES);
        match ExtentClass::of(words, self.table.config().chunk_bytes) {
            ExtentClass::Run(count) => count.into(),
            ExtentClass::Slot(_) => 1,
        }
    }

    /// Samples one chunk's word and everything it depends on, and checks it.
    pub(crate) async fn inspect_chunk(&mut self, chunk: u64) -> Result<Findings, FabricError> {
        let mut word = [0];
        self.read(self.table.geometry().chunk_word(chunk), &mut word).await?;
        let state = ChunkWord(word[0]).decode();
        if let Some(ChunkState::Owned { owner, .. } | ChunkState::Claiming { owner, .. }) = state {
            self.refresh_slot(owner).await?;
        }
        let mut findings = self.inspect_chunk_word(chunk, word[0]);
        match (state, self.possible_class(chunk, state)) {
            (_, Some(ExtentClass::Run(count))) if is_in_use(state) && count > 1 => {
                let mut tails = vec![0; count as usize - 1];
                self.read(self.table.geometry().chunk_word(chunk + 1), &mut tails).await?;
                if let Some(missing) = tails.iter().position(|word| !is_tail_of(*word, chunk)) {
                    add_broken_run(&mut findings, chunk, count.into(), chunk + 1 + missing as u64);
                }
            }
            (Some(ChunkState::Tail { head }), _) if !self.reaches(head, chunk).await? => {
                add_stray_tail(&mut findings, chunk, head);
            }
            _ => {}
        }
        Ok(findings)
    }

    /// Whether the run that starts at chunk `head` includes chunk `tail`.
    async fn reaches(&mut self, head: u32, tail: u64) -> Result<bool, FabricError> {
        let head = u64::from(head);
        if head >= tail {
            return Ok(false);
        }
        let mut word = [0];
        self.read(self.table.geometry().chunk_word(head), &mut word).await?;
        let class = self.possible_class(head, ChunkWord(word[0]).decode());
        Ok(matches!(class, Some(ExtentClass::Run(count)) if tail < head + u64::from(count)))
    }

    /// Counts the extents of a chunk that are neither marked free nor referred to. 1 round trip for 64 chunk slots.
    async fn count_unreferenced(&mut self, chunk: u64, class: ExtentClass) -> Result<(), FabricError> {
        let chunk_bytes = self.table.config().chunk_bytes;
        let at = self.table.geometry().chunk(chunk).offset();
        let slots = class.slots(chunk_bytes);
        for first in (0..slots).step_by(BATCH_SLOTS as usize) {
            let count = BATCH_SLOTS.min(slots - first) as usize;
            let (mut marks, mut generations) = (vec![0; count], vec![0; count]);
            let offset = |slot| at + class.slot_at(slot, chunk_bytes);
            let reads = generations.iter_mut().zip(first..);
            let mut batch: Vec<Verb<'_>> = reads
                .map(|(into, slot)| Verb::Read { addr: Addr::main(offset(slot)), into: std::slice::from_mut(into) })
                .collect();
            batch.push(Verb::Read { addr: Addr::main(at + class.mark_at(first)), into: &mut marks });
            post(&mut *self.lane, &mut batch[..]).await?;
            for ((generation, mark), slot) in generations.iter().zip(&marks).zip(first..) {
                // A chunk slot that was not used since its chunk was claimed has its old contents.
                let generation = Generation::of_first_word(*generation).0;
                let drawn = (1..self.next_generation).contains(&generation);
                let used = drawn && generation != *mark && !self.extents.contains_key(&offset(slot));
                self.report.unreferenced_extents += u64::from(used);
            }
        }
        Ok(())
    }
}

/// Returns the size class of a chunk in `state`, if it has one.
fn class_of(state: Option<ChunkState>) -> Option<ExtentClass> {
    match state {
        Some(
            ChunkState::Owned { class, .. } | ChunkState::Orphan { class, .. } | ChunkState::Claiming { class, .. },
        ) => Some(class),
        _ => None,
    }
}

/// Describes a size class for findings.
pub(crate) fn describe_class(class: ExtentClass) -> String {
    match class {
        ExtentClass::Slot(number) => format!("slots of class {number}"),
        ExtentClass::Run(1) => "a run of 1 chunk".to_owned(),
        ExtentClass::Run(chunks) => format!("a run of {chunks} chunks"),
    }
}

/// Whether a chunk in `state` is formatted and, if it is the head of a run, complete.
fn is_in_use(state: Option<ChunkState>) -> bool {
    matches!(state, Some(ChunkState::Owned { .. } | ChunkState::Orphan { .. }))
}

fn is_tail_of(word: u64, run: u64) -> bool {
    matches!(ChunkWord(word).decode(), Some(ChunkState::Tail { head }) if u64::from(head) == run)
}

fn add_broken_run(findings: &mut Findings, head: u64, count: u64, missing: u64) {
    let text = format!("its run has {count} chunks, but chunk {missing} is not one of its tails");
    findings.add(ProblemKind::BrokenRun, ChunkLabel(head), text);
}

fn add_stray_tail(findings: &mut Findings, chunk: u64, head: u32) {
    let text = format!("it is a tail of the run at chunk {head}, but no run there includes it");
    findings.add(ProblemKind::StrayTail, ChunkLabel(chunk), text);
}
