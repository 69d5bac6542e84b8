//! The invariants of every memory that a client's death leaves, and of the table once all dead clients are recovered.

use guira_check::{CheckOptions, Concurrency, check_table};
use guira_conformance::{Bench, Model, Observed, Op, block_on};
use guira_fabric::{Addr, FenceProof, Profile, Region, WORD_BYTES};
use guira_layout::{OwnerId, Record, SlotState, SlotWord};
use guira_rcuckoo::{Recovered, SlotClient, read_slot, recover};

use crate::recovery::image::{Image, Known};
use crate::recovery::lane::{LoggedLane, Written};
use crate::recovery::lifecycle::{Actor, SlotSource, config};

/// A possible state: the table's contents, and the operations of dead clients that may still take effect. They may
/// until another client takes their locks, and no longer. [R-RECOVER-2]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    model: usize,
    pending: Vec<Op>,
}

impl State {
    /// Returns the state after the client of `op` died in it.
    pub fn with_pending(mut self, op: &Op) -> State {
        self.pending.push(op.clone());
        self
    }
}

/// The possible contents of a table, by number.
pub struct Universe {
    models: Vec<Model>,
    /// For each, the answers to operations, and the contents after them.
    after: Vec<Vec<(Op, Observed, usize)>>,
    /// The contents of memories, by the hash of their rows and chunks.
    held: Known<usize>,
}

impl Universe {
    /// Creates a universe whose contents number 0 are `model`.
    pub fn new(model: &Model) -> Universe {
        Universe { models: vec![model.clone()], after: vec![Vec::new()], held: Known::default() }
    }

    /// Returns the number of `model`, assigning one if it has none.
    fn number(&mut self, model: Model) -> usize {
        self.models.iter().position(|known| *known == model).unwrap_or_else(|| {
            self.models.push(model);
            self.after.push(Vec::new());
            self.models.len() - 1
        })
    }

    fn apply(&mut self, number: usize, op: &Op) -> (&Observed, usize) {
        let known = self.after[number].iter().position(|(known, ..)| known == op).unwrap_or_else(|| {
            let mut model = self.models[number].clone();
            let answer = model.apply(op);
            let next = self.number(model);
            self.after[number].push((op.clone(), answer, next));
            self.after[number].len() - 1
        });
        let (_, answer, next) = &self.after[number][known];
        (answer, *next)
    }

    /// Returns the possible states once `op`, on the key of all the others, was answered with `answer`; empty if that
    /// answer is impossible. An operation that takes the key's locks decides what is pending; a lookup takes none.
    pub fn answered(&mut self, states: &[State], op: &Op, answer: &Observed) -> Vec<State> {
        let mut after = Vec::new();
        for State { model, pending } in self.decided(states) {
            let (seen, model) = self.apply(model, op);
            let fits = seen == answer;
            let pending = if matches!(op, Op::Get(_)) { pending } else { Vec::new() };
            let state = State { model, pending };
            if fits && !after.contains(&state) {
                after.push(state);
            }
        }
        after
    }

    /// Returns each way in which pending operations may have taken effect by now.
    fn decided(&mut self, states: &[State]) -> Vec<State> {
        let mut all = states.to_vec();
        let mut next = 0;
        while let Some(state) = all.get(next).cloned() {
            next += 1;
            for i in 0..state.pending.len() {
                let mut pending = state.pending.clone();
                let op = pending.remove(i);
                let decided = State { model: self.apply(state.model, &op).1, pending };
                if !all.contains(&decided) {
                    all.push(decided);
                }
            }
        }
        all
    }

    /// Checks that the contents of `bench` are possible: nothing lost, duplicated, mixed or invented.
    pub fn check_contents(&mut self, bench: &Bench, states: &[State]) -> Result<(), String> {
        let held = self.number(Model(bench.contents()?));
        self.check_held(held, states)
    }

    /// Same as [`Universe::check_contents`] for `bench`, whose memory is `image`. Rows and chunks that were checked
    /// before are known.
    pub fn check_image(&mut self, bench: &Bench, image: &Image, states: &[State]) -> Result<(), String> {
        let held = match self.held.get(&image.contents_hash()) {
            Some(held) => *held,
            None => self.number(Model(bench.contents()?)),
        };
        self.held.insert(image.contents_hash(), held);
        self.check_held(held, states)
    }

    fn check_held(&mut self, held: usize, states: &[State]) -> Result<(), String> {
        if self.decided(states).iter().any(|state| state.model == held) {
            return Ok(());
        }
        Err("an operation took effect in part, twice, or not although it was acknowledged".to_owned())
    }
}

/// Recovers the client of `slot` if it died, as a client that takes the slot does.
pub fn recover_slot(bench: &Bench, slot: u16) -> Option<Recovered> {
    recover_through(&mut LoggedLane::new(&bench.region), bench, slot)
}

fn recover_through(lane: &mut LoggedLane, bench: &Bench, slot: u16) -> Option<Recovered> {
    let info = block_on(read_slot(lane, &bench.table, slot)).expect("the heap reads");
    let Some(SlotWord { state: SlotState::Live | SlotState::Recovering, generation }) = info.word else { return None };
    let hold = bench.region.hold(slot).expect("the heap holds").expect("its client is dead");
    let proof = FenceProof::new(slot, generation, hold);
    block_on(recover(lane, &bench.table, &proof, &SlotClient::default())).expect("the heap loses nothing")
}

/// Recovers all dead clients, and returns the words that changed.
pub fn recover_all(bench: &Bench) -> Vec<Written> {
    let mut lane = LoggedLane::new(&bench.region);
    for slot in 0..bench.table.config().max_clients {
        recover_through(&mut lane, bench, slot);
        assert_eq!(recover_through(&mut lane, bench, slot), None, "slot {slot} is free");
    }
    lane.take_log().written
}

/// Checks the invariants once all dead clients are recovered: every row verifies, every lock is free, no commit is half
/// done, and every unreferenced extent can be reclaimed. Then reclaims these extents.
pub fn check_recovered(bench: &Bench) -> Result<(), String> {
    bench.audit()?;
    let lost = check_sound(bench)?;
    if lost > 0 {
        give_back(bench)?;
        check_reclaimed(bench, lost)?;
    }
    Ok(())
}

/// Checks the whole table, which no client uses; returns the number of unreferenced extents that are not marked.
pub fn check_sound(bench: &Bench) -> Result<u64, String> {
    let options = CheckOptions { concurrency: Concurrency::Exclusive, ..CheckOptions::default() };
    let mut lane = bench.under(Profile::Shm).region.lane();
    let report = block_on(check_table(&mut lane, &bench.table, &options, &mut |_| ()));
    let report = report.map_err(|it| it.to_string())?;
    if report.is_clean() { Ok(report.unreferenced_extents) } else { Err(format!("{:?}", report.problems)) }
}

/// Lets a client reclaim unreferenced extents, and returns the words that changed.
pub fn give_back(bench: &Bench) -> Result<Vec<Written>, String> {
    let lane = LoggedLane::new(&bench.region);
    let mut client = Actor::open(bench, SlotSource::Free(0), config(bench), lane).map_err(|it| it.to_string())?;
    client.exhaust_space();
    let lane = client.close().map_err(|it| it.to_string())?;
    Ok(lane.take_log().written)
}

/// Checks a table after its `lost` unreferenced extents were reclaimed.
pub fn check_reclaimed(bench: &Bench, lost: u64) -> Result<(), String> {
    let left = check_sound(bench)?;
    if left == 0 { Ok(()) } else { Err(format!("{left} of {lost} extents are lost")) }
}

/// Checks that the extent that a sealed record frees is still allocated: once its mark is written, others may use its
/// place, and a mark that is written again would free theirs. [R-EXTENT-4]
pub fn check_marks(bench: &Bench, image: &Image) -> Result<(), String> {
    let (table, geometry) = (&bench.table, bench.table.geometry());
    for slot in 0..table.config().max_clients {
        let first = word_of(geometry.slot(slot));
        let words: Vec<u64> = (first..first + geometry.slot_words()).map(|word| image.word(word)).collect();
        let record = Record::decode(&words, table.rows(), table.config(), geometry).map_err(|it| it.to_string())?;
        if let Some((mark, generation)) = record.and_then(|record| record.freed_extent())
            && image.word(word_of(Addr::main(mark))) == generation.0
        {
            return Err(format!("the record in slot {slot} frees what is free"));
        }
    }
    Ok(())
}

fn word_of(addr: Addr) -> usize {
    (addr.offset() / WORD_BYTES) as usize
}

/// A check of a client's changes: while it recovers another client, it holds no lock. [R-RECOVER-5]
pub struct Recoverer {
    owner: OwnerId,
    slots: Vec<usize>,
    main_words: usize,
    recovering: bool,
}

impl Recoverer {
    pub fn new(bench: &Bench, owner: OwnerId) -> Recoverer {
        let slots = (0..bench.table.config().max_clients).filter(|slot| Some(*slot) != owner.slot());
        let slots = slots.map(|slot| word_of(bench.table.geometry().slot(slot))).collect();
        Recoverer { owner, slots, main_words: bench.region.memory().main.len(), recovering: false }
    }

    /// Processes `written`, which made the memory `image`.
    pub fn saw(&mut self, bench: &Bench, written: &Written, image: &Image) -> Result<(), String> {
        if self.slots.contains(&written.word) {
            let word = SlotWord::decode(written.value);
            self.recovering = word.is_some_and(|word| word.state == SlotState::Recovering);
        }
        if !self.recovering {
            return Ok(());
        }
        let locks = bench.table.locks();
        let mut held = (0..locks.words()).flat_map(|word| {
            locks
                .all_held(word, image.word(self.main_words + word as usize))
                .map(|(_, owner)| owner)
                .collect::<Vec<_>>()
        });
        if held.any(|owner| owner == self.owner) { Err("a recoverer holds locks".to_owned()) } else { Ok(()) }
    }
}
