//! The table scan: one pass over the table, then rechecks of everything that seemed wrong.
//!
//! Invariants: every row is counted once, on its first verified sample; every subject that seemed wrong is either found
//! sound by one recheck, or rechecked [`RECHECKS`] times.

use std::collections::{HashMap, HashSet};

use guira_fabric::{Addr, FabricError, Lane, Verb, pause_until, post};
use guira_layout::{
    GENERATION_WORD, Generation, RowId, SUPERBLOCK_WORDS, SlotState, SlotWord, Superblock, SuperblockError, TableState,
};
use guira_rcuckoo::Table;

use crate::findings::{Findings, Recheck, Subject};
use crate::sample::Block;
use crate::{Cause, CheckError, CheckReport, Problem, ProblemKind, Progress, Stage};

/// Maximum number of rechecks of a subject that seemed wrong. With [`FIRST_PAUSE_NS`] they span 0.65 s: longer than a
/// preempted writer is off its processor, short enough to wait for.
const RECHECKS: u32 = 15;
/// Pause before the first recheck; it doubles with each further one.
const FIRST_PAUSE_NS: u64 = 20_000;
/// Maximum number of subjects that wait for rechecks at the same time. It bounds memory, and is large because the
/// pauses are shared.
const MAX_RECHECKS: usize = 16_384;
/// Number of lock words or chunk words in one READ.
pub(crate) const WORDS_PER_READ: u64 = 4096;

/// Whether other clients may change the table during the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// No other client works on the table: the first check of each subject counts, a lock that is held is stuck, and a
    /// sealed record is an unfinished commit.
    Exclusive,
    /// Other clients may work on the table: whatever looks wrong is checked again before it is reported.
    Shared,
}

/// Options of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Whether other clients may change the table during the check.
    pub concurrency: Concurrency,
    /// Maximum number of problems kept in the report; all are counted.
    pub problem_limit: usize,
    /// Client slots whose words say live, but whose clients are proved dead, each with the generation under which the
    /// client took it, because another client may have taken it since. The lane cannot tell this. Everything that these
    /// clients hold remains held until another client recovers them.
    pub dead: Vec<(u16, u64)>,
}

impl Default for CheckOptions {
    /// Other clients may change the table; at most 100 problems are kept; no client is known to be dead.
    fn default() -> CheckOptions {
        CheckOptions { concurrency: Concurrency::Shared, problem_limit: 100, dead: Vec::new() }
    }
}

/// Checks every row, entry, extent, chunk, lock and client slot of `table`, and counts them. Changes nothing.
///
/// Round trips: 1 for 64 rows, and 1 for each further 64 secondary rows of their entries; 2 for an extent; 1 for 64
/// slots of a chunk, for 32 client slots and for 4,096 lock or chunk words; 2 for a segment of a table that grows.
/// Anything that looks wrong while other clients work is read 15 times more, over 0.65 s. `progress` is called about
/// once a round trip.
///
/// # Errors
/// The fabric refused or lost a batch. A problem of the table is not an error.
pub async fn check_table(
    lane: &mut dyn Lane,
    table: &Table,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckReport, CheckError> {
    let mut scan = Scan::new(lane, table, options, progress);
    match scan.run().await {
        Ok(()) => {
            scan.report.counts.finish(table);
            Ok(scan.report)
        }
        Err(source) => Err(CheckError::Fabric { stage: scan.stage, source }),
    }
}

/// Checks `rows` and their entries as [`check_table`] does with [`Concurrency::Exclusive`], and searches for other
/// copies of their keys. For callers that know which rows changed since the whole table was found sound, and that no
/// lock is held. Two entries that share an extent are found only if both are in these rows. Changes nothing.
///
/// Round trips: 1 or 2 for each row, and as many for each primary row of the keys of their entries; 2 for an extent; 1
/// more.
///
/// # Errors
/// The fabric refused or lost a batch. A problem of the table is not an error.
pub async fn check_rows(lane: &mut dyn Lane, table: &Table, rows: &[RowId]) -> Result<Vec<Problem>, CheckError> {
    let options = CheckOptions { concurrency: Concurrency::Exclusive, ..CheckOptions::default() };
    let mut ignore = |_: Progress| ();
    let mut scan = Scan::new(lane, table, &options, &mut ignore);
    scan.stage = Stage::Rows;
    match scan.check_some_rows(rows).await {
        Ok(()) => Ok(scan.report.problems),
        Err(source) => Err(CheckError::Fabric { stage: scan.stage, source }),
    }
}

/// Whether the rest of the table can be checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proceed {
    Yes,
    No,
}

/// Buffers that are reused for each entry.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) entry: Vec<u64>,
    pub(crate) extent: Vec<u64>,
}

/// A check in progress.
pub(crate) struct Scan<'s> {
    pub(crate) lane: &'s mut dyn Lane,
    pub(crate) table: &'s Table,
    pub(crate) concurrency: Concurrency,
    pub(crate) report: CheckReport,
    /// The last known state word of each client slot.
    pub(crate) slots: Vec<Option<SlotWord>>,
    /// The offset of each referenced extent, and the last row with an entry that referred to it.
    pub(crate) extents: HashMap<u64, u64>,
    /// The next generation: those below it were used.
    pub(crate) next_generation: u64,
    pub(crate) buffers: Buffers,
    /// The level of each segment of a table that grows, by its first row, as that row was last sampled.
    pub(crate) levels: HashMap<RowId, u8>,
    /// Segments that the table's map has and no row leads to: they do not exist.
    pub(crate) only_mapped: HashSet<u64>,
    problem_limit: usize,
    pub(crate) dead: &'s [(u16, u64)],
    progress: &'s mut dyn FnMut(Progress),
    stage: Stage,
    rechecks: Vec<Recheck>,
}

impl<'s> Scan<'s> {
    fn new(
        lane: &'s mut dyn Lane,
        table: &'s Table,
        options: &'s CheckOptions,
        progress: &'s mut dyn FnMut(Progress),
    ) -> Scan<'s> {
        Scan {
            lane,
            table,
            concurrency: options.concurrency,
            report: CheckReport::default(),
            slots: vec![None; usize::from(table.config().max_clients)],
            extents: HashMap::new(),
            next_generation: 0,
            buffers: Buffers::default(),
            levels: HashMap::new(),
            only_mapped: HashSet::new(),
            problem_limit: options.problem_limit,
            dead: &options.dead,
            progress,
            stage: Stage::Superblock,
            rechecks: Vec::new(),
        }
    }

    async fn run(&mut self) -> Result<(), FabricError> {
        let proceed = self.check_superblock().await?;
        if proceed == Proceed::No {
            return Ok(());
        }
        self.check_slots().await?;
        self.check_locks().await?;
        self.check_rows().await?;
        self.check_chunks().await?;
        self.recheck_all().await
    }

    /// Reads the superblock again, because the table was opened some time ago. [R-OPEN-1]
    async fn check_superblock(&mut self) -> Result<Proceed, FabricError> {
        self.show(Stage::Superblock, 0, 1);
        let mut words = vec![0; SUPERBLOCK_WORDS];
        self.read(Addr::main(0), &mut words).await?;
        let mut findings = Findings::default();
        let place = "superblock";
        let mut proceed = Proceed::Yes;
        match Superblock::decode(&words) {
            Ok((found, _)) if &found != self.table.superblock() => {
                let text = "it is that of another table than the one that was opened; nothing else was checked";
                findings.add(ProblemKind::SuperblockReplaced, place, text);
                proceed = Proceed::No;
            }
            Ok((_, TableState::Live)) => {}
            Ok((_, TableState::Destroyed)) => {
                // Its locks are poisoned and its rows overwritten. // [R-DESTROY-1] [R-DESTROY-2]
                let text = "the table was destroyed; nothing else was checked";
                findings.add(ProblemKind::TableDestroyed, place, text);
                proceed = Proceed::No;
            }
            Err(error @ SuperblockError::Empty) => {
                findings.add(ProblemKind::SuperblockDamaged, place, format!("{error}; nothing else was checked"));
                proceed = Proceed::No;
            }
            Err(error) => findings.add(ProblemKind::SuperblockDamaged, place, error.to_string()),
        }
        self.next_generation = words[GENERATION_WORD];
        let drawable = (1..=Generation::MAX).contains(&self.next_generation);
        if self.table.config().format.has_extents() && proceed != Proceed::No && !drawable {
            let text = format!("the next generation is {:#x}, which no extent can have", self.next_generation);
            findings.add(ProblemKind::GenerationCounter, place, text);
        }
        self.report_all(findings.problems);
        Ok(proceed)
    }

    /// Reads the generation counter again: it only grows.
    pub(crate) async fn refresh_generation(&mut self) -> Result<(), FabricError> {
        let mut word = [0];
        self.read(self.table.geometry().superblock_word(GENERATION_WORD), &mut word).await?;
        self.next_generation = word[0];
        Ok(())
    }

    /// Reports the findings of the first check if no other client works on the table; otherwise schedules rechecks.
    pub(crate) async fn report_or_recheck(
        &mut self,
        subject: Subject,
        findings: Findings,
        counted: bool,
    ) -> Result<(), FabricError> {
        if findings.is_sound() {
            return Ok(());
        }
        if self.concurrency == Concurrency::Exclusive {
            self.report.counts.unverified_rows += u64::from(!counted);
            self.report_all(findings.problems);
            return Ok(());
        }
        self.rechecks.push(Recheck::new(subject, counted));
        if self.rechecks.len() < MAX_RECHECKS {
            return Ok(());
        }
        let stage = self.stage;
        self.recheck_all().await?;
        self.stage = stage;
        Ok(())
    }

    /// Rechecks all subjects that seemed wrong, and reports the problems that persist.
    async fn recheck_all(&mut self) -> Result<(), FabricError> {
        let mut rechecks = std::mem::take(&mut self.rechecks);
        let mut block = Block::new(self.table);
        for look in 0..RECHECKS {
            if rechecks.is_empty() {
                return Ok(());
            }
            self.show(Stage::Rechecks, u64::from(look), u64::from(RECHECKS));
            let until_ns = self.lane.now_ns().saturating_add(FIRST_PAUSE_NS << look);
            pause_until(&mut *self.lane, until_ns).await;
            let mut kept = Vec::new();
            for mut recheck in rechecks {
                let findings = self.recheck(&mut recheck, &mut block).await?;
                if !findings.is_sound() {
                    recheck.note(findings);
                    kept.push(recheck);
                }
            }
            rechecks = kept;
        }
        for recheck in rechecks {
            self.report.counts.unverified_rows += u64::from(!recheck.counted);
            self.report_all(recheck.lasting(RECHECKS));
        }
        Ok(())
    }

    async fn recheck(&mut self, recheck: &mut Recheck, block: &mut Block) -> Result<Findings, FabricError> {
        match recheck.subject {
            Subject::Slot(slot) => self.inspect_slot(slot).await,
            Subject::LockWord(word) => self.inspect_lock_word(word).await,
            Subject::Chunk(chunk) => self.inspect_chunk(chunk).await,
            Subject::MapWord(segment) => self.inspect_map_word(segment).await,
            Subject::Row(row) => {
                self.sample_level(row).await?;
                block.sample(&mut *self.lane, self.table, row, 1).await?;
                if !recheck.counted && block.valid(row).is_some() {
                    recheck.counted = true;
                    self.count_row(block, row);
                }
                self.inspect_row(block, row).await
            }
        }
    }

    pub(crate) fn report_all(&mut self, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            let report = &mut self.report;
            let (list, total) = match problem.cause {
                Cause::Damage => (&mut report.problems, &mut report.problems_total),
                Cause::DeadClient | Cause::LivingClient => (&mut report.under_way, &mut report.under_way_total),
            };
            *total += 1;
            if list.len() < self.problem_limit {
                list.push(problem);
            }
        }
    }

    pub(crate) fn show(&mut self, stage: Stage, done: u64, total: u64) {
        self.stage = stage;
        (self.progress)(Progress { stage, done, total });
    }

    /// Reads words. 1 round trip.
    pub(crate) async fn read(&mut self, addr: Addr, into: &mut [u64]) -> Result<(), FabricError> {
        post(&mut *self.lane, [Verb::Read { addr, into }]).await
    }

    /// Whether `owner` is the id of a client slot in use whose client is not known to be dead.
    pub(crate) fn is_live(&self, owner: guira_layout::OwnerId) -> bool {
        let word = owner.slot().and_then(|slot| Some((slot, (*self.slots.get(usize::from(slot))?)?)));
        word.is_some_and(|(slot, word)| word.state == SlotState::Live && !self.is_dead(slot, word))
    }

    /// Whether the client that took `slot` with the generation in `word` is proved dead.
    pub(crate) fn is_dead(&self, slot: u16, word: SlotWord) -> bool {
        self.dead.contains(&(slot, word.generation))
    }

    /// Returns the cause of a problem with something that `owner` holds, as far as is known. Dead clients are recovered
    /// only in tables with redo records and locks that record their owners, and only while other clients work.
    /// [R-RECOVER-1]
    pub(crate) fn cause(&self, owner: guira_layout::OwnerId) -> Cause {
        if self.concurrency == Concurrency::Exclusive || !self.table.locks().has_owner_ids() {
            return Cause::Damage;
        }
        if self.is_live(owner) {
            return Cause::LivingClient;
        }
        let word = owner.slot().and_then(|slot| Some((slot, (*self.slots.get(usize::from(slot))?)?)));
        let is_dead = word.is_some_and(|(slot, word)| self.is_dead_or_recovering(slot, word));
        if is_dead && self.table.is_recoverable() { Cause::DeadClient } else { Cause::Damage }
    }

    /// Whether the client of `slot` is proved dead or being recovered.
    pub(crate) fn is_dead_or_recovering(&self, slot: u16, word: SlotWord) -> bool {
        word.state == SlotState::Recovering || self.is_dead(slot, word)
    }

    /// Describes `owner` and the state of its client slot.
    pub(crate) fn describe(&self, owner: guira_layout::OwnerId) -> String {
        let slot = owner.slot().and_then(|slot| Some((slot, *self.slots.get(usize::from(slot))?)));
        let Some((slot, word)) = slot else { return format!("{owner}, which the table does not have") };
        let state = match word.map(|word| (word.state, self.is_dead(slot, word))) {
            Some((SlotState::Live, true)) => "of a dead client",
            Some((SlotState::Live, false)) => "in use",
            Some((SlotState::Free, _)) => "free",
            Some((SlotState::Recovering, _)) => "being recovered",
            None => "damaged",
        };
        format!("{owner}, which is {state}")
    }
}
