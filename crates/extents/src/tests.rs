//! Deaths and races between any two verbs that touch the chunk table.
#![allow(clippy::disallowed_macros, reason = "tests print what they counted")]

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use guira_fabric::heap::{HeapLane, HeapRegion, Next, Pace, Step};
use guira_fabric::memory::Ordering;
use guira_fabric::{FenceProof, Profile, Region};
use guira_layout::{
    CHUNKS_WORD, Geometry, Preset, PresetOptions, Secret, SlotState, SlotWord, Superblock, TableConfig, encode_extent,
};
use guira_rcuckoo::{Key, SlotClient, format_table, recover};
use pollster::block_on;

use super::reclaim_scan::{SCAN_EVERY, SCAN_MARK_WORDS};
use super::*;

const CHUNKS: u64 = 16;
const MOST_STEPS: u64 = 20_000;
/// More than the steps of most recoveries here; a prime, so that the recoveries meet deaths of every kind.
const RECOVERY_STEPS: u64 = 251;
const DEAD: OwnerId = OwnerId(1);
const OTHER: OwnerId = OwnerId(2);
const RIVAL: OwnerId = OwnerId(3);
/// Values for a slot of which 17 fit in a chunk, for a whole chunk, and for a run of three chunks.
const SMALL: [u8; 200] = [1; 200];
const CHUNK: [u8; 3_000] = [2; 3_000];
const RUN: [u8; 10_000] = [3; 10_000];

#[derive(Clone)]
struct Fixture {
    region: HeapRegion,
    table: Arc<Table>,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with_chunks(CHUNKS, None)
    }

    /// The same with a table that has one chunk at first.
    fn growing() -> Fixture {
        Fixture::with_chunks(CHUNKS, Some(1))
    }

    fn with_chunks(chunks: u64, initial_chunks: Option<u64>) -> Fixture {
        let options = PresetOptions {
            capacity: 100,
            format: "bytes:24".parse().expect("a format"),
            extent_bytes: Some(chunks << 12),
            max_clients: None,
            hash_seed: 1,
            device_bytes: u64::MAX,
        };
        let config = match initial_chunks {
            None => Preset::Tiny.config(&options),
            Some(_) => Preset::Tiny.config_that_grows(1, 2, &options),
        };
        let config = TableConfig { initial_chunks, ..config.expect("possible options") };
        let geometry = Geometry::new(&config).expect("a possible table");
        let region = HeapRegion::new(geometry.main_bytes(), geometry.device_bytes(), Profile::Shm.caps());
        let table = Table::new(Superblock { incarnation: 1, table: 2, secret: Secret([3; 4]), config })
            .expect("a possible table");
        block_on(format_table(&mut region.lane(), &table, |_| ControlFlow::Continue(()))).expect("the heap writes");
        // Old content of the chunks: formatting must not rely on zeros.
        let fixture = Fixture { region, table };
        for chunk in 0..chunks {
            let first = fixture.table.geometry().chunk(chunk).word() as usize;
            let words = &fixture.region.memory().main[first..first + 512];
            words.iter().zip(1..).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        }
        fixture
    }

    fn word(&self, chunk: u64) -> ChunkWord {
        let at = self.table.geometry().chunk_word(chunk).word() as usize;
        ChunkWord(self.region.memory().main[at].load(Ordering::Relaxed))
    }

    fn set(&self, chunk: u64, state: ChunkState) {
        let at = self.table.geometry().chunk_word(chunk).word() as usize;
        self.region.memory().main[at].store(ChunkWord::encode(state).0, Ordering::Relaxed);
    }

    fn store(&self, offset: u64, word: u64) {
        self.region.memory().main[(offset / 8) as usize].store(word, Ordering::Relaxed);
    }

    /// Returns the number of chunks that have memory.
    fn available(&self) -> u64 {
        self.region.memory().main[CHUNKS_WORD].load(Ordering::Relaxed)
    }

    fn extents(&self, owner: OwnerId) -> Extents {
        Extents::new(Arc::clone(&self.table), owner)
    }

    /// Recovers the dead client, and checks the chunk table; decision 0007, "What a recoverer sees", says what is left
    /// then.
    fn recover(&self, dead: OwnerId) {
        self.recover_until(dead, u64::MAX);
        let is_tail = |tail: u64, head: u64| self.word(tail).decode() == Some(ChunkState::Tail { head: head as u32 });
        for chunk in 0..CHUNKS {
            match self.word(chunk).decode() {
                None => panic!("chunk {chunk}: {:?}", self.word(chunk)),
                Some(ChunkState::Claiming { owner, .. }) => panic!("chunk {chunk} is left to {owner}"),
                Some(ChunkState::Owned { owner, class }) if owner == dead => panic!("{chunk}: {class:?}"),
                Some(ChunkState::Orphan { class, .. }) => {
                    assert!((chunk + 1..chunk + class.chunks()).all(|tail| is_tail(tail, chunk)), "{chunk}: {class:?}");
                }
                Some(ChunkState::Tail { head }) => {
                    let class = match self.word(head.into()).decode() {
                        Some(ChunkState::Owned { class, .. } | ChunkState::Orphan { class, .. }) => class,
                        other => panic!("chunk {chunk} is a tail of {head}, which is {other:?}"),
                    };
                    assert!(u64::from(head) + class.chunks() > chunk, "{chunk} of {head}, {class:?}");
                }
                Some(_) => {}
            }
        }
    }

    /// Starts the recovery of the dead client by another client, which dies before its step `last`.
    fn recover_until(&self, dead: OwnerId, last: u64) {
        let slot = dead.slot().expect("an owner");
        let at = self.table.geometry().slot(slot).word() as usize;
        let live = SlotWord { state: SlotState::Live, generation: 1 }.encode();
        let word = &self.region.memory().main[at];
        // The clients of these tests are made without a slot.
        let _ = word.compare_exchange(0, live, Ordering::Relaxed, Ordering::Relaxed);
        let mut steps = 0;
        let hook = move |_| {
            steps += 1;
            if steps > last { Next::Die } else { Next::Continue }
        };
        let hold = self.region.hold(slot).expect("the heap holds").expect("no other client recovers it");
        let mut lane = self.region.lane().hooked(Box::new(hook));
        let recovered =
            block_on(recover(&mut lane, &self.table, &FenceProof::new(slot, 1, hold), &SlotClient::default()));
        assert!(lane.is_dead() || recovered.is_ok(), "{recovered:?}");
    }

    /// Asserts that every chunk that is not the rival's can be claimed again: the dead client linked nothing.
    fn assert_nothing_is_lost(&self, what: &str) {
        let mut other = self.extents(OTHER);
        let owner = |chunk| match self.word(chunk).decode() {
            Some(ChunkState::Owned { owner, .. }) => Some(owner),
            _ => None,
        };
        let taken = (0..CHUNKS).filter(|chunk| owner(*chunk) == Some(RIVAL)).count() as u64;
        for i in 0..CHUNKS - taken {
            let reserved = block_on(other.reserve_growing(&mut self.region.lane(), &short_key(&other), &CHUNK));
            assert!(reserved.is_ok(), "{what}: chunk {i} of {}: {reserved:?}", CHUNKS - taken);
        }
        assert!(
            block_on(other.reserve_growing(&mut self.region.lane(), &short_key(&other), &CHUNK)).is_err(),
            "{what}: and no more"
        );
    }
}

fn short_key(extents: &Extents) -> Key<'static> {
    extents.table.key(&[1]).expect("tables of this test take keys of any length")
}

/// Runs a client that does everything that touches the chunk table: claims slots and runs, gives back, adopts, looks
/// into orphans, closes.
async fn run_client(extents: &mut Extents, lane: &mut HeapLane) -> Result<(), ExtentError> {
    let mut first = Vec::new();
    for value in [&SMALL[..], &CHUNK, &RUN, &RUN, &CHUNK] {
        first.push(extents.reserve_growing(lane, &short_key(extents), value).await?);
    }
    // Empty now: one run and one chunk stay in reserve, the others are given back.
    first.iter().for_each(|extent| extents.cancel(extent));
    extents.maintain(lane).await?;
    // Orphans of this client, which it then finds itself.
    extents.reserve_growing(lane, &short_key(extents), &RUN).await?;
    extents.reserve_growing(lane, &short_key(extents), &SMALL).await?;
    extents.close(lane).await?;
    extents.scan.handled = SCAN_EVERY;
    extents.maintain(lane).await?;
    extents.reserve_growing(lane, &short_key(extents), &SMALL).await?;
    // A run that was linked has no owner, and the client that frees it takes it over.
    let linked = extents.reserve_growing(lane, &short_key(extents), &RUN).await?;
    extents.link(&linked);
    extents.settle_runs(lane).await?;
    extents.give_back(&linked);
    extents.settle_runs(lane).await?;
    // There is no space for this value until everything else was given back.
    let most = vec![4; CHUNKS as usize * 4096 - 200];
    drop(extents.reserve_growing(lane, &short_key(extents), &most).await.map(|extent| extents.cancel(&extent)));
    extents.close(lane).await?;
    Ok(())
}

/// Runs the client and kills it before step `last`; before verb `verb` another client takes chunk `wanted` if it is
/// free. Returns true if the client died.
fn run_and_die(fixture: &Fixture, last: u64, verb: u64, wanted: u64) -> bool {
    let (mut steps, mut verbs, others) = (0, 0, fixture.clone());
    let hook = move |step| {
        if steps == last {
            return Next::Die;
        }
        steps += 1;
        if matches!(step, Step::Verb { .. }) {
            if verbs == verb && others.word(wanted) == ChunkWord::FREE {
                others.set(wanted, ChunkState::Owned { owner: RIVAL, class: ExtentClass::Run(1) });
            }
            verbs += 1;
        }
        Next::Continue
    };
    let mut lane = fixture.region.lane().hooked(Box::new(hook));
    let finished = block_on(run_client(&mut fixture.extents(DEAD), &mut lane));
    assert!(finished.is_ok() || lane.is_dead() || verb < u64::MAX, "{finished:?}");
    lane.is_dead()
}

/// [R-READ-6] A reader that finds the same generation before and behind its copy of an extent has no proof of what it
/// copied: chunks of a freed run are cut anew, and its first word stays as it was while others of its words get another
/// value. Therefore extents have checksums; docs/decisions/0045.
#[test]
fn a_generation_outlives_the_words_behind_it() {
    let fixture = Fixture::new();
    let (mut lane, mut owner, mut other) = (fixture.region.lane(), fixture.extents(DEAD), fixture.extents(OTHER));
    let run = block_on(owner.reserve_growing(&mut lane, &short_key(&owner), &RUN)).expect("it is the first");
    fixture.store(run.offset, run.first_word());
    owner.link(&run);
    block_on(owner.settle_runs(&mut lane)).expect("the heap loses nothing");
    let mark = run.mark_offset(fixture.table.config(), fixture.table.geometry()).expect("a place of a run");
    fixture.store(mark, run.generation.0);
    owner.give_back(&run);
    block_on(owner.close(&mut lane)).expect("the heap loses nothing");
    let words = run.offset / 8..run.offset / 8 + run.words().expect("possible lengths") as u64;
    let is_inside = |extent: &ExtentRef| words.contains(&(extent.offset / 8));
    let mut reserved = (0..CHUNKS * 17).map_while(|_| {
        let key = short_key(&other);
        block_on(other.reserve_growing(&mut lane, &key, &SMALL)).ok()
    });
    assert!(reserved.any(|extent| is_inside(&extent)), "the chunks of the run are used again");
    let first = fixture.region.memory().main[(run.offset / 8) as usize].load(Ordering::Relaxed);
    assert_eq!(first, run.first_word(), "nothing shows that");
}

#[test]
fn lack_of_space_is_reported_in_bytes() {
    let full = |chunks, free, longest_run, total| {
        NoSpace { value_bytes: 5000, chunks, chunk_bytes: 1 << 20, free, longest_run, total, refused: None }.to_string()
    };
    assert_eq!(
        full(1, 0, 0, 4),
        "no room for a value of 5000 bytes: it needs 1.0 MiB, and no space for large values is free; nothing was \
         changed; remove large values, or copy the table into one with more extent bytes"
    );
    assert!(full(1, 0, 0, 0).contains("the table has no space for large values"));
    assert!(
        full(3, 2, 1, 4)
            .contains("it needs 3.0 MiB, and 2.0 MiB of 4.0 MiB for large values are free, 1.0 MiB of them in one")
    );
}

/// [R-EXTENT-2] [R-RECOVER-3] A client that dies before any verb, or in any WRITE, leaves words from which everything
/// is reclaimed, even if recoverers die anywhere, too. [R-GROW-15] Also while it adds chunks.
#[test]
fn a_death_at_any_step_loses_nothing() {
    for make in [Fixture::new, Fixture::growing] {
        let mut deaths = 0;
        while run_and_die(&make(), deaths, u64::MAX, 0) {
            let fixture = make();
            run_and_die(&fixture, deaths, u64::MAX, 0);
            fixture.recover_until(DEAD, deaths % RECOVERY_STEPS);
            fixture.recover(DEAD);
            fixture.assert_nothing_is_lost(&format!("died before step {deaths}"));
            deaths += 1;
            assert!(deaths < MOST_STEPS);
        }
        println!("{deaths} deaths");
        assert!(deaths > 100, "the client takes many steps");
    }
}

/// [R-DROP-1] [R-EXTENT-2] A client whose operation was dropped after any number of polls, with a batch in flight,
/// knows afterwards which chunks are its own: when it closes, it leaves all of them.
#[test]
fn a_dropped_operation_forgets_no_chunk() {
    for make in [Fixture::new, Fixture::growing] {
        forgets_no_chunk(make);
    }
}

fn forgets_no_chunk(make: fn() -> Fixture) {
    let mut drops = 0;
    for polls in 0.. {
        let fixture = make();
        let (mut extents, mut lane) = (fixture.extents(DEAD), fixture.region.lane().paced(Pace::Deferred(1)));
        let finished = {
            let mut life = pin!(run_client(&mut extents, &mut lane));
            let mut cx = Context::from_waker(Waker::noop());
            (0..polls).any(|_| life.as_mut().poll(&mut cx).is_ready())
        };
        block_on(poll_fn(|cx| lane.poll_drain(&mut [], cx))).expect("the heap loses nothing");
        let mut lane = lane.paced(Pace::Immediate);
        // It continues with whatever it was doing, and with something else.
        drop(block_on(extents.reserve(&mut lane, &short_key(&extents), &SMALL)).map(|extent| extents.cancel(&extent)));
        block_on(extents.close(&mut lane)).expect("the heap loses nothing");
        for chunk in 0..CHUNKS {
            let state = fixture.word(chunk).decode();
            let is_left = !matches!(state, Some(ChunkState::Owned { .. } | ChunkState::Claiming { .. }));
            assert!(is_left, "dropped after {polls} polls: chunk {chunk} is {state:?}");
        }
        fixture.assert_nothing_is_lost(&format!("dropped after {polls} polls"));
        if finished {
            break;
        }
        drops += 1;
    }
    println!("{drops} drops");
    assert!(drops > 50, "the client posts many batches");
}

/// [R-DROP-1] [R-EXTENT-4] The return of a run and of a chunk is dropped between its two batches: the chunk, in which a
/// slot that was never linked has no mark yet, is not left to others as if something were in it.
#[test]
fn a_chunk_whose_return_was_dropped_leaks_no_slot() {
    const MANY: u64 = 80;
    let fixture = Fixture::with_chunks(MANY, None);
    let (mut extents, mut lane) = (fixture.extents(DEAD), fixture.region.lane());
    let run = vec![5; 65 * 4096 - 200];
    for value in [&SMALL[..], &run] {
        let extent = block_on(extents.reserve(&mut lane, &short_key(&extents), value)).expect("space");
        // It was written, and then the key existed already.
        let mut words = Vec::new();
        encode_extent(&mut words, &extent, short_key(&extents).bytes(), value, fixture.table.rows().sums());
        fixture.store(extent.offset, words[0]);
        extents.cancel(&extent);
    }
    let mut empty = extents.chunks.all_empty();
    assert_eq!(empty.len(), 2);
    empty.sort_by_key(|index| extents.chunks.get(*index).map(|chunk| std::cmp::Reverse(chunk.class.chunks())));
    let mut lane = lane.paced(Pace::Deferred(1));
    {
        let mut given_back = pin!(extents.give_back_chunks(&mut lane, &empty));
        assert!(given_back.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the first batch");
    }
    block_on(poll_fn(|cx| lane.poll_drain(&mut [], cx))).expect("the heap loses nothing");
    let mut lane = lane.paced(Pace::Immediate);
    block_on(extents.close(&mut lane)).expect("the heap loses nothing");
    let (mut other, all) = (fixture.extents(OTHER), vec![6; MANY as usize * 4096 - 200]);
    assert!(block_on(other.reserve(&mut lane, &short_key(&other), &all)).is_ok(), "every chunk is free");
}

/// [R-EXTENT-2] Whichever chunk another client takes at whichever moment: runs are claimed around it, and nothing is
/// left of the failed attempts, even if their client dies during one.
#[test]
fn a_race_for_any_chunk_leaves_nothing_behind() {
    let mut races = 0;
    for wanted in [0, 1, 2, 4, CHUNKS - 1] {
        for verb in 0..90 {
            let fixture = Fixture::new();
            run_and_die(&fixture, u64::MAX, verb, wanted);
            fixture.recover(DEAD);
            fixture.assert_nothing_is_lost(&format!("chunk {wanted} taken before verb {verb}"));
            races += 1;
            for last in (0..400).step_by(7) {
                let fixture = Fixture::new();
                run_and_die(&fixture, last, verb, wanted);
                fixture.recover(DEAD);
                fixture.assert_nothing_is_lost(&format!("chunk {wanted} taken before verb {verb}, died at {last}"));
            }
        }
    }
    println!("{races} races");
}

/// [R-EXTENT-6] Between freeing a run's extent and taking the run over, other clients may have used the same chunks for
/// another run of that length: the word is the same then, and the new extent is left alone.
#[test]
fn a_run_that_is_in_use_again_is_not_taken_over() {
    let fixture = Fixture::new();
    let mut lane = fixture.region.lane();
    let (mut owner, mut late) = (fixture.extents(DEAD), fixture.extents(OTHER));
    let run = block_on(owner.reserve(&mut lane, &short_key(&owner), &RUN)).unwrap();
    fixture.store(run.offset, run.first_word());
    owner.link(&run);
    block_on(owner.settle_runs(&mut lane)).unwrap();
    let (index, _) = fixture.table.geometry().chunk_of(run.offset).unwrap();
    let word = fixture.word(index);
    late.give_back(&run);
    let mark = run.mark_offset(fixture.table.config(), fixture.table.geometry()).unwrap();
    fixture.store(mark, run.generation.0);
    // Another client's extent, written and linked since.
    let next = ExtentRef { generation: Generation(run.generation.0 + 1), ..run };
    fixture.store(run.offset, next.first_word());
    block_on(late.settle_runs(&mut lane)).unwrap();
    assert_eq!(fixture.word(index), word);
    assert!(late.chunks.get(index).is_none());
    late.give_back(&run);
    fixture.store(mark, next.generation.0);
    block_on(late.settle_runs(&mut lane)).unwrap();
    assert!(late.chunks.is_empty(index), "freed again, it is taken over");
}

/// [R-EXTENT-4] Whoever compares the first word of an extent with its mark compares the generation in it, whether the
/// lengths stand beside it or follow: who adopts a chunk, who estimates its free slots, and who marks an extent that was
/// never linked.
#[test]
fn first_words_are_compared_with_marks_by_their_generations() {
    for value in [&SMALL[..], &CHUNK] {
        let fixture = Fixture::new();
        let (mut lane, config) = (fixture.region.lane(), fixture.table.config());
        let mut owner = fixture.extents(DEAD);
        let mut reserve = || {
            let extent = block_on(owner.reserve(&mut lane, &short_key(&owner), value)).expect("room");
            fixture.store(extent.offset, extent.first_word());
            extent
        };
        let [freed, kept, cancelled] = [reserve(), reserve(), reserve()];
        let place = |extent: &ExtentRef| fixture.table.geometry().chunk_of(extent.offset).expect("a chunk");
        let mark = |extent: &ExtentRef| extent.mark_offset(config, fixture.table.geometry()).expect("a place");
        let class = ExtentClass::of(freed.words().expect("possible lengths"), config.chunk_bytes);
        owner.link(&freed);
        owner.link(&kept);
        fixture.store(mark(&freed), freed.generation.0);
        owner.cancel(&cancelled);
        block_on(owner.close(&mut lane)).expect("the heap loses nothing");
        let marked = fixture.region.memory().main[(mark(&cancelled) / 8) as usize].load(Ordering::Relaxed);
        // A run that holds nothing becomes free when its owner closes.
        assert!(marked == cancelled.generation.0 || fixture.word(place(&cancelled).0) == ChunkWord::FREE);

        let mut other = fixture.extents(OTHER);
        for (extent, held) in [(&freed, 0), (&kept, kept.generation.0)] {
            let (chunk, within) = place(extent);
            let slot = class.slot_of(within, config.chunk_bytes).expect("a slot") as usize;
            if other.chunks.get(chunk).is_none() {
                assert!(block_on(other.adopt(&mut lane, chunk, fixture.word(chunk), class)).expect("the heap reads"));
            }
            assert_eq!(other.chunks.get(chunk).map(|chunk| chunk.slots[slot]), Some(held), "{class:?}");
        }
        let chunk = place(&freed).0;
        fixture.store(mark(&kept), kept.generation.0);
        let estimates = block_on(other.estimate(&mut lane, &[(chunk, class, 0)])).expect("the heap reads");
        assert_eq!(estimates, [class.slots(config.chunk_bytes)], "{class:?}");
    }
}

/// Returns the round trips that two clients spend on their extents in 10,000 updates of 60 keys, each by either client,
/// with values of `sizes` in turn: without those of the updates themselves.
fn maintenance_trips(sizes: &[usize]) -> u64 {
    trips_of_updates(&Fixture::with_chunks(2_000, None), sizes)
}

fn trips_of_updates(fixture: &Fixture, sizes: &[usize]) -> u64 {
    const UPDATES: usize = 10_000;
    let mut lane = fixture.region.lane();
    let mut clients = [fixture.extents(DEAD), fixture.extents(OTHER)];
    let mut live: Vec<Option<ExtentRef>> = vec![None; 60];
    for update in 0..UPDATES {
        let (key, client) = (update * 7 % live.len(), &mut clients[update % 3 % 2]);
        let value = vec![1; sizes[update % sizes.len()]];
        let extent = block_on(client.reserve_growing(&mut lane, &short_key(client), &value)).expect("room");
        fixture.store(extent.offset, extent.first_word());
        client.link(&extent);
        if let Some(freed) = live[key].replace(extent) {
            let mark = freed.mark_offset(fixture.table.config(), fixture.table.geometry()).expect("a possible extent");
            fixture.store(mark, freed.generation.0);
            client.give_back(&freed);
        }
    }
    lane.traffic().round_trips
}

/// [R-EXTENT-5] [R-EXTENT-6] Reuse costs little: exact counts, of 10,000 updates.
#[test]
fn maintenance_is_amortised() {
    let one_class = maintenance_trips(&[200]);
    let slots: Vec<usize> = (0..40).map(|i| 60 + i * 33).collect();
    let every_class = maintenance_trips(&slots);
    let runs = maintenance_trips(&[3_000, 10_000, 3_100, 14_000]);
    println!("trips in 10,000 updates: one class {one_class}, every class of slots {every_class}, runs {runs}");
    assert!(one_class <= 700 && every_class <= 1_000 && runs <= 20_000);
}

/// [R-EXTENT-5] A scan reads 8 KiB of marks at most, and goes on in the middle of a chunk: so many scans as there are 8
/// KiB of marks find whatever other clients have freed.
#[test]
fn scans_read_little_and_find_everything() {
    const EXTENTS: u64 = 10_000;
    let fixture = Fixture::with_chunks(2_000, None);
    let mut lane = fixture.region.lane();
    let mut owner = fixture.extents(DEAD);
    let reserve = |_| block_on(owner.reserve_growing(&mut lane, &short_key(&owner), &[1; 8])).expect("room");
    let extents: Vec<ExtentRef> = (0..EXTENTS).map(reserve).collect();
    for extent in &extents {
        owner.link(extent);
        let mark = extent.mark_offset(fixture.table.config(), fixture.table.geometry()).expect("a possible extent");
        fixture.store(mark, extent.generation.0);
    }
    let marks: usize = owner.chunks.from(0).map(|(_, chunk)| chunk.slots.len()).sum();
    let mut held = Vec::new();
    for scan in 0..marks.div_ceil(SCAN_MARK_WORDS as usize) {
        let before = lane.traffic().bytes_in;
        block_on(owner.scan_own(&mut lane)).expect("the heap reads");
        let bytes = lane.traffic().bytes_in - before;
        assert!(bytes <= 8 << 10, "scan {scan}: {bytes} bytes");
        held.push(owner.chunks.from(0).flat_map(|(_, chunk)| &chunk.slots).filter(|slot| **slot != 0).count());
    }
    println!("{marks} marks; after each scan, so many extents are not known to be free: {held:?}");
    assert!(held.is_sorted_by(|a, b| a > b) && held.last() == Some(&0), "{held:?}");
}

/// [R-GROW-15] A table adds chunks for new values, and hardly more for updates than they need: what was freed is
/// reclaimed before. Exact counts.
#[test]
fn chunks_are_added_when_there_is_nothing_to_reclaim() {
    const CHUNKS: u64 = 2_000;
    let slots: Vec<usize> = (0..40).map(|i| 60 + i * 33).collect();
    for (sizes, most_chunks, most_trips) in
        [(&[200][..], 6, 800), (&slots, 45, 1_200), (&[3_000, 10_000, 3_100, 14_000], 200, 24_000)]
    {
        let fixture = Fixture::with_chunks(CHUNKS, Some(1));
        let trips = trips_of_updates(&fixture, sizes);
        println!("{} sizes: {} chunks, {trips} trips", sizes.len(), fixture.available());
        assert!(fixture.available() <= most_chunks && trips <= most_trips);
    }
    let fixture = Fixture::with_chunks(CHUNKS, Some(1));
    let (mut client, mut lane) = (fixture.extents(DEAD), fixture.region.lane());
    let mut raises = 0;
    for stored in 1..=CHUNKS {
        let before = fixture.available();
        block_on(client.reserve_growing(&mut lane, &short_key(&client), &CHUNK)).expect("more chunks");
        let available = fixture.available();
        raises += u64::from(available > before);
        assert!(available <= stored + stored / 8 + 1, "{available} chunks for {stored}");
    }
    println!("{CHUNKS} chunks in {raises} steps, {} trips", lane.traffic().round_trips);
    // Steps of an eighth.
    assert!(raises < 70 && lane.traffic().round_trips < 9 * CHUNKS);
    let refused =
        block_on(client.reserve_growing(&mut lane, &short_key(&client), &CHUNK)).expect_err("all chunks are in use");
    assert!(matches!(refused, ExtentError::Full(NoSpace { total: CHUNKS, free: 0, refused: None, .. })), "{refused:?}");
}

/// [R-GROW-15] A run that needs chunks behind those that are free at the end gets only those, even if they are all that
/// the table may have.
#[test]
fn a_run_begins_in_the_chunks_at_the_end() {
    let fixture = Fixture::with_chunks(11, Some(3));
    let (mut client, mut lane) = (fixture.extents(DEAD), fixture.region.lane());
    let run = |chunks: u64| vec![1; (fixture.table.config().chunk_bytes * chunks) as usize - 400];
    for (chunks, available) in [(2, 3), (5, 7), (4, 11)] {
        block_on(client.reserve_growing(&mut lane, &short_key(&client), &run(chunks))).expect("room");
        assert_eq!(fixture.available(), available);
    }
    assert!(block_on(client.reserve_growing(&mut lane, &short_key(&client), &run(2))).is_err());
}

/// [R-GROW-15] No chunk is added before the dead have been asked for theirs.
#[test]
fn chunks_are_added_when_the_client_is_allowed_to() {
    let fixture = Fixture::with_chunks(100, Some(1));
    let (mut client, mut lane) = (fixture.extents(DEAD), fixture.region.lane());
    let (mut allowed, mut reserved) = (0, 0);
    while reserved < 100 {
        match block_on(client.reserve(&mut lane, &short_key(&client), &CHUNK)) {
            Ok(_) => reserved += 1,
            Err(_) => {
                assert!(client.allow_chunks() && !client.allow_chunks());
                allowed += 1;
            }
        }
    }
    println!("allowed {allowed} times");
    assert!((10..30).contains(&allowed));
}

/// [R-GROW-15] A word of chunks with memory that is damaged neither stops a client nor leads it to chunks that it
/// should not use.
#[test]
fn a_damaged_number_of_chunks_adds_none() {
    for damaged in [0, CHUNKS + 1, u64::MAX] {
        let fixture = Fixture::with_chunks(CHUNKS, Some(4));
        fixture.store(CHUNKS_WORD as u64 * 8, damaged);
        let (mut client, mut lane) = (fixture.extents(DEAD), fixture.region.lane());
        let mut reserve = || block_on(client.reserve_growing(&mut lane, &short_key(&client), &CHUNK));
        let stored = (0..=CHUNKS).take_while(|_| reserve().is_ok()).count() as u64;
        assert_eq!(stored, if damaged == 0 { 4 } else { CHUNKS });
    }
}
