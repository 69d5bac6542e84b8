//! A model of recovery: clients that die, recoverers that die, ids that are reused, and a reader that reads through
//! records.
//!
//! There are two rows under a lock each. Every client changes one entry of both rows in one commit; any client but the
//! last may die before each of its steps, in its own commit or while it recovers another client, as often as the
//! configuration says; a newcomer may take a slot that a death left, and commits under the same id again. The reader
//! looks one key up twice. A WRITE of a row takes one step per word; everything else that is one step below is one word
//! of shared memory, or the client's alone, or cannot be distinguished from one step: a record is read at once, because
//! its seal has its checksum, so that a mixture of two records does not decode. Liveness changes hands as the kernel's
//! locks do.
//!
//! The steps stand for this code, in `crates/rcuckoo/src` unless stated otherwise:
//!
//! - [`At::Lock`]: `Client::acquire_in_order` (locks/acquire.rs): one lock a step, holding those before; R-LOCK-3.
//! - [`At::Sample`]: `LockBatch` (locks/batch.rs): the rows, under their locks; R-LOCK-7.
//! - [`At::Record`], [`At::Seal`], [`At::Write`], [`At::Retire`], [`At::Mark`], [`At::Unlock`]: `Commit`
//!   (change/commit.rs), verb by verb, and the last word of the record's by itself; R-COMMIT-1, R-EXTENT-4.
//! - [`Action::Suspect`], [`At::Met`]: `Client::wait_once` (locks/acquire.rs), `read_slot` in `Client::prove_dead`
//!   (recovery/failure_detector.rs); R-RECOVER-1.
//! - [`At::Asked`]: `Liveness::poll_fence` in `Client::prove_dead`; R-RECOVER-1, R-RECOVER-4.
//! - [`At::GiveBack`]: `Client::release_held` in `Client::recover_if_dead` (recovery/failure_detector.rs); R-RECOVER-5.
//! - [`At::Claim`], [`At::Load`]: `Recovery::claim` (recovery/recover.rs): the CAS, the READ of the record;
//!   R-RECOVER-4. Its READ of the state is not modelled: no table of this model is destroyed.
//! - [`At::Fetch`], [`At::Rewrite`], [`At::RetireIt`], [`At::MarkIt`]: `Recovery::replay`; R-RECOVER-2.
//! - [`At::Scan`], [`At::Free`]: `Recovery::release_locks`; R-RECOVER-3.
//! - [`At::Vacate`]: `Recovery::free_slot`; R-RECOVER-3.
//! - [`At::Finish`]: the end of `Client::recover_if_dead`, which drops the proof; R-RECOVER-4.
//! - [`At::Away`], [`At::Look`], [`At::Take`]: `Store::claim` and `Store::take` (`crates/guira/src/store.rs`),
//!   `claim_slot` (table/session.rs); R-SLOT-1.
//! - [`Reading`]: `Reader::sample_through_record` (lookup/read_through_record.rs); R-READ-9.
//! - [`Action::Reuse`]: the owner of a chunk reuses a place whose mark says that it is free; R-EXTENT-4.
//! - [`At::Rename`]: no code; a recovery that a rule forbids.
//!
//! Not modelled: chunks (docs/decisions/0007), tries at all locks at once (they hold nothing while they wait), and the
//! sweep of lost marks.

mod clients;
mod reader;
mod takeover;

use stateright::{Model, Property};

const ROWS: usize = 2;
/// Words of a row: two entries, version, checksum.
const WORDS: usize = 4;
const VERSION: usize = 2;
const CHECKSUM: usize = 3;
const SLOTS: usize = 3;
/// Clients: two that may die, one that does not, one that comes later.
const CLIENTS: usize = 4;
const LAST: usize = 2;
const NEWCOMER: usize = 3;
/// The entry that each client changes.
const ENTRY: [usize; CLIENTS] = [0, 1, 1, 0];

type Row = [u8; WORDS];

fn checksum(row: &Row) -> u8 {
    0x80 | row[0] | row[1] << 2 | row[VERSION] << 4
}

fn verifies(row: &Row) -> bool {
    row[CHECKSUM] == checksum(row)
}

/// A rule that is left out, or reversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// No rule: the unmodified protocol.
    Nothing,
    /// A recoverer frees the slot before it releases the locks. // R-RECOVER-3
    LocksBeforeSlot,
    /// A waiting client assumes that the owner is dead, without asking. // R-RECOVER-1
    Proof,
    /// A recoverer drops the proof once it has claimed the slot. // R-RECOVER-4
    ProofToTheEnd,
    /// A recoverer releases the locks, then replays. // R-RECOVER-3
    ReplayBeforeLocks,
    /// A recoverer replays and does not retire. // R-RECOVER-2
    RetirementByRecoverer,
    /// A client releases its locks, then retires. // R-COMMIT-1
    RetirementBeforeRelease,
    /// A client retires its record, then writes its rows. // R-COMMIT-1
    RowsBeforeRetirement,
    /// A client seals its record after its rows. // R-COMMIT-1
    SealBeforeRows,
    /// Clients and recoverers mark, then retire. // R-COMMIT-1, R-RECOVER-2
    RetirementBeforeMark,
    /// A recoverer writes its own id into the dead client's locks before it replays. // R-RECOVER-3
    DeadNameOnLocks,
    /// A recoverer makes rows valid by computing new checksums. // R-RECOVER-6
    WritersChecksum,
    /// A recoverer keeps the locks it has. // R-RECOVER-5
    OwnLocksFirst,
    /// A reader does not read the slot again. // R-READ-9
    SecondHead,
    /// A reader completes the sample it took before it read the record. // R-READ-9
    SecondSample,
}

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum At {
    Away,
    Look,
    Take,
    Lock(u8),
    Met(u8),
    Asked(u8),
    GiveBack,
    Claim,
    Load,
    Fetch,
    Rename(u8),
    Rewrite(u8),
    RetireIt,
    MarkIt,
    Scan(u8),
    Free(u8),
    Vacate,
    Finish,
    Sample,
    Record,
    Seal,
    Write(u8),
    Retire,
    Mark,
    Unlock(u8),
    Done,
}

/// The condition of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    Running,
    /// It does nothing more, and counts as alive.
    Stopped,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub at: At,
    pub condition: Condition,
    slot: u8,
    /// The client it suspects or recovers, and under which generation.
    target: u8,
    generation: u8,
    /// Rows as it read or computed them.
    images: [Row; ROWS],
    /// The record it read.
    record: Option<Record>,
    /// Locks that it found under the dead client's id.
    found: [bool; ROWS],
}

/// The deltas of both rows: the entry, and the words that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    entry: u8,
    values: [u8; ROWS],
    versions: [u8; ROWS],
    checksums: [u8; ROWS],
    /// Whether it frees the extent.
    frees: bool,
}

impl Record {
    fn apply(&self, row: usize, image: &mut Row) {
        image[self.entry as usize] = self.values[row];
        image[VERSION] = self.versions[row];
        image[CHECKSUM] = self.checksums[row];
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotState {
    Free,
    Live,
    Recovering,
}

/// The words of a slot that identify its record, and say whether it is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    state: SlotState,
    generation: u8,
    sealed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    head: Head,
    record: Option<Record>,
    /// The client that holds the slot's liveness: the client in it, or one that recovers it.
    liveness: Option<u8>,
}

/// The state of the extent that the first client's commit frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentState {
    Allocated,
    Marked,
    Reused,
}

/// The progress of the reader's lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reading {
    /// This word of the row, for the first time.
    Word(u8),
    Lock,
    Record,
    /// This word, for the second time.
    Again(u8),
    Head,
    /// No result: the reader retries when something has changed.
    Retry,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    pub at: Reading,
    row: Row,
    owner: u8,
    head: Head,
    record: Option<Record>,
    /// The oldest value that the lookup may return.
    floor: u8,
    lookups: u8,
}

/// A forbidden effect of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// It wrote a row under a lock that neither it nor the dead client it recovers holds.
    Write,
    /// It released another client's lock.
    Release,
    /// It marked a place that was in use again.
    Mark,
    /// It found, under its locks, a row that does not verify.
    Torn,
    /// It returned a value older than one that was acknowledged or returned before, or one that was never written.
    Lookup,
}

/// The state: shared memory, the clients, and history variables for the properties.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    rows: [Row; ROWS],
    locks: [u8; ROWS],
    slots: [Slot; SLOTS],
    extent: ExtentState,
    pub clients: [Client; CLIENTS],
    pub reader: Option<Reader>,
    deaths: u8,
    stops: u8,
    /// The client that took each lock.
    holders: [Option<u8>; ROWS],
    /// Sealed commits, by entry: each has to take effect, once.
    sealed: [u8; 2],
    /// Acknowledged commits of the first entry.
    acknowledged: u8,
    wrong: Option<Wrong>,
    /// Whether a recoverer continued where another one died.
    was_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The client's next step.
    Go(u8),
    /// The client found a lock held, and will ask about its owner.
    Suspect(u8),
    /// The client found that the lock it waits for has changed hands.
    Return(u8),
    Die(u8),
    Stop(u8),
    Read,
    Reuse,
}

/// The configuration: bounds of what may happen, and the rule that is broken.
#[derive(Clone, Debug)]
pub struct Recovery {
    pub without: Without,
    pub deaths: u8,
    pub stops: u8,
    /// The clients that take part.
    pub clients: [bool; CLIENTS],
    /// Lookups of the reader; 0 for no reader.
    pub lookups: u8,
}

fn id(slot: u8) -> u8 {
    slot + 1
}

impl State {
    /// Whether `client` may write `row`, or release its lock: it holds the lock, or the dead client it recovers does.
    fn may_change(&self, client: usize, row: usize) -> bool {
        let me = &self.clients[client];
        match self.holders[row].map(usize::from) {
            Some(holder) if holder == client => true,
            Some(holder) => {
                let holder = &self.clients[holder];
                me.at.is_recovery() && holder.condition == Condition::Dead && holder.slot == me.target
            }
            None => false,
        }
    }

    fn write(&mut self, client: usize, step: u8) {
        let (row, word) = (step as usize / WORDS, step as usize % WORDS);
        if !self.may_change(client, row) {
            self.wrong = Some(Wrong::Write);
        }
        self.rows[row][word] = self.clients[client].images[row][word];
    }

    /// Does a FETCH-ADD of minus `owner`.
    fn release(&mut self, client: usize, row: usize, owner: u8) {
        if !self.may_change(client, row) {
            self.wrong = Some(Wrong::Release);
        }
        self.locks[row] = self.locks[row].wrapping_sub(owner);
        self.holders[row] = None;
    }

    fn mark(&mut self) {
        match self.extent {
            ExtentState::Reused => self.wrong = Some(Wrong::Mark),
            ExtentState::Allocated | ExtentState::Marked => self.extent = ExtentState::Marked,
        }
    }

    fn head(&mut self, slot: u8) -> &mut Head {
        &mut self.slots[slot as usize].head
    }

    /// Releases every slot whose liveness `client` holds.
    fn drop_liveness(&mut self, client: usize) {
        for slot in &mut self.slots {
            slot.liveness = slot.liveness.filter(|holder| *holder as usize != client);
        }
    }

    fn drop_proof(&mut self, client: usize) {
        let liveness = &mut self.slots[self.clients[client].target as usize].liveness;
        *liveness = liveness.filter(|holder| *holder as usize != client);
    }

    /// Records the value of a lookup: it must not be older than the value of one that ended before.
    fn found(&mut self, value: u8) {
        let (sealed, acknowledged) = (self.sealed[0], self.acknowledged);
        let Some(reader) = &mut self.reader else { return };
        if value < reader.floor || value > sealed {
            self.wrong = Some(Wrong::Lookup);
        }
        reader.floor = value.max(acknowledged);
        reader.lookups -= 1;
        reader.at = if reader.lookups > 0 { Reading::Word(0) } else { Reading::Done };
    }
}

impl At {
    fn is_recovery(self) -> bool {
        use At::*;
        matches!(self, Claim | Load | Fetch | Rename(_) | Rewrite(_) | RetireIt | MarkIt | Scan(_) | Free(_) | Vacate)
    }
}

/// Words in the rows of a commit.
const ROW_STEPS: u8 = (ROWS * WORDS) as u8;

impl Recovery {
    fn is_without(&self, rule: Without) -> bool {
        self.without == rule
    }

    /// Whether client `index` can take its next step.
    fn can_go(&self, state: &State, index: usize) -> bool {
        let client = &state.clients[index];
        let target = &state.slots[client.target as usize];
        match client.at {
            At::Done => false,
            At::Away => state.slots.iter().any(|slot| slot.liveness.is_none()),
            At::Lock(lock) => state.locks[lock as usize] == 0,
            At::Met(_) => target.head.state != SlotState::Free,
            At::Asked(_) => target.liveness.is_none() || self.is_without(Without::Proof),
            _ => true,
        }
    }

    /// Whether the lock that client `index` asked about is free or held by another client by now.
    fn can_return(state: &State, index: usize) -> bool {
        let client = &state.clients[index];
        match client.at {
            At::Met(lock) | At::Asked(lock) => state.locks[lock as usize] != id(client.target),
            _ => false,
        }
    }

    fn can_suspect(state: &State, index: usize) -> bool {
        let client = &state.clients[index];
        let At::Lock(lock) = client.at else { return false };
        let owner = state.locks[lock as usize];
        owner != id(client.slot) && (1..=SLOTS as u8).contains(&owner)
    }

    /// Adds the steps of clients that live and continue.
    fn progress(&self, state: &State, actions: &mut Vec<Action>) {
        for index in (0..CLIENTS).filter(|index| state.clients[*index].condition == Condition::Running) {
            let client = index as u8;
            actions.extend(self.can_go(state, index).then_some(Action::Go(client)));
            actions.extend(Recovery::can_return(state, index).then_some(Action::Return(client)));
            actions.extend(Recovery::can_suspect(state, index).then_some(Action::Suspect(client)));
        }
        actions.extend(Recovery::can_read(state).then_some(Action::Read));
        actions.extend((state.extent == ExtentState::Marked).then_some(Action::Reuse));
    }

    /// Whether no step is possible although a client that continues has not finished.
    fn is_stuck(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.progress(state, &mut actions);
        if !actions.is_empty() {
            return false;
        }
        let waits = |client: &Client| match client.at {
            At::Lock(lock) | At::Met(lock) | At::Asked(lock) => !Recovery::is_kept(state, lock as usize, CLIENTS),
            At::Done | At::Away => false,
            _ => true,
        };
        let reads = state.reader.as_ref().is_some_and(|reader| reader.at != Reading::Done);
        reads || state.clients.iter().filter(|client| client.condition == Condition::Running).any(waits)
    }

    /// Whether a lock is kept by a client that is stopped in its own commit or in the recovery of the lock's holder, or
    /// by one that waits for such a lock.
    fn is_kept(state: &State, lock: usize, depth: usize) -> bool {
        let Some(holder) = state.holders[lock].map(|holder| &state.clients[holder as usize]) else { return false };
        match (holder.condition, holder.at) {
            (Condition::Stopped, at) => !at.is_recovery(),
            (Condition::Dead, _) => {
                let recoverer = state.slots[holder.slot as usize].liveness;
                recoverer.is_some_and(|recoverer| state.clients[recoverer as usize].condition == Condition::Stopped)
            }
            (Condition::Running, At::Lock(next) | At::Met(next) | At::Asked(next)) if depth > 0 => {
                Recovery::is_kept(state, next as usize, depth - 1)
            }
            (Condition::Running, _) => false,
        }
    }
}

/// Names of the properties: what must hold in every state, and what must happen in some.
pub const WHOLE: &str = "a row whose lock is free holds every sealed commit once";
pub const LOCKED: &str = "rows are written under their locks, and locks released by their holders";
pub const MARKED: &str = "a place in use again is not marked";
pub const TORN: &str = "no client finds a torn row under its own locks";
pub const READ: &str = "lookups are linearizable";
pub const DONE: &str = "no client is stuck";
const REPEATED: &str = "a recoverer continues where another one died";
const REPLAYED: &str = "a commit whose client died takes effect";
const AGAIN: &str = "an id is used again";
const PAST: &str = "a reader finds a value whose row is half written";

impl Model for Recovery {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let image = |_| {
            let mut row = [0; WORDS];
            row[CHECKSUM] = checksum(&row);
            row
        };
        let head = Head { state: SlotState::Live, generation: 1, sealed: false };
        let client = |index: usize| Client {
            at: match index {
                index if !self.clients[index] => At::Done,
                NEWCOMER => At::Away,
                _ => At::Lock(0),
            },
            condition: Condition::Running,
            slot: (index % SLOTS) as u8,
            target: (index % SLOTS) as u8,
            generation: 0,
            images: [[0; WORDS]; ROWS],
            record: None,
            found: [false; ROWS],
        };
        let reader = Reader {
            at: Reading::Word(0),
            row: [0; WORDS],
            owner: 0,
            head,
            record: None,
            floor: 0,
            lookups: self.lookups,
        };
        vec![State {
            rows: std::array::from_fn(image),
            locks: [0; ROWS],
            slots: std::array::from_fn(|slot| Slot { head, record: None, liveness: Some(slot as u8) }),
            extent: ExtentState::Allocated,
            clients: std::array::from_fn(client),
            reader: (self.lookups > 0).then_some(reader),
            deaths: 0,
            stops: 0,
            holders: [None; ROWS],
            sealed: [0; 2],
            acknowledged: 0,
            wrong: None,
            was_repeated: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.progress(state, actions);
        for (index, client) in state.clients.iter().enumerate().filter(|(index, _)| *index != LAST) {
            if client.condition == Condition::Running && !matches!(client.at, At::Away | At::Done) {
                actions.extend((state.deaths < self.deaths).then_some(Action::Die(index as u8)));
                actions.extend((state.stops < self.stops).then_some(Action::Stop(index as u8)));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Go(client) => self.step(&mut state, client as usize),
            Action::Suspect(client) => {
                let client = &mut state.clients[client as usize];
                let At::Lock(lock) = client.at else { return None };
                client.target = state.locks[lock as usize] - 1;
                client.at = At::Met(lock);
            }
            Action::Return(client) => {
                let client = &mut state.clients[client as usize];
                let (At::Met(lock) | At::Asked(lock)) = client.at else { return None };
                (client.target, client.generation) = (client.slot, 0);
                client.at = At::Lock(lock);
            }
            Action::Die(client) => {
                state.deaths += 1;
                state.clients[client as usize].condition = Condition::Dead;
                state.drop_liveness(client as usize);
            }
            Action::Stop(client) => {
                state.stops += 1;
                state.clients[client as usize].condition = Condition::Stopped;
            }
            Action::Read => self.read(&mut state),
            Action::Reuse => state.extent = ExtentState::Reused,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Recovery>> {
        let mut properties = vec![
            Property::always(WHOLE, |_, state: &State| {
                (0..ROWS).filter(|row| state.locks[*row] == 0).all(|row| {
                    let row = &state.rows[row];
                    verifies(row) && row[..2] == state.sealed && row[VERSION] == state.sealed[0] + state.sealed[1]
                })
            }),
            Property::always(LOCKED, |_, state: &State| !matches!(state.wrong, Some(Wrong::Write | Wrong::Release))),
            Property::always(MARKED, |_, state: &State| state.wrong != Some(Wrong::Mark)),
            Property::always(TORN, |_, state: &State| state.wrong != Some(Wrong::Torn)),
            Property::always(READ, |_, state: &State| state.wrong != Some(Wrong::Lookup)),
            Property::always(DONE, |model: &Recovery, state: &State| !model.is_stuck(state)),
        ];
        let more = [
            (
                self.deaths > 0,
                Property::sometimes(REPLAYED, |_, state: &State| {
                    state.clients[0].condition == Condition::Dead && state.locks == [0; ROWS] && state.sealed[0] > 0
                }),
            ),
            (
                self.deaths > 1 && self.clients[LAST],
                Property::sometimes(REPEATED, |_, state: &State| state.was_repeated),
            ),
            (
                self.clients[NEWCOMER],
                Property::sometimes(AGAIN, |_, state: &State| {
                    state.clients[NEWCOMER].at == At::Done && state.clients[NEWCOMER].condition == Condition::Running
                }),
            ),
            (
                self.lookups > 0,
                Property::sometimes(PAST, |_, state: &State| {
                    let is_half = matches!(state.clients[0].at, At::Write(step) if (1..WORDS as u8).contains(&step));
                    is_half && state.reader.as_ref().is_some_and(|reader| reader.floor == 1)
                }),
            ),
        ];
        properties.extend(more.into_iter().filter(|(is_possible, _)| *is_possible).map(|(_, property)| property));
        properties
    }
}
