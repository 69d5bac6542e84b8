//! A harness for lock words: which locks are held in a word and by whom, and how a lock is taken and released.

use guira_layout::{LockId, LockMask, OwnerId, RowId};

use super::case::{Case, heads};
use super::feed::Feed;
use super::{Answer, Seed};

/// Decodes a table, an owner, a row, the word's index, a mask and the word.
///
/// # Panics
/// If a promise of locks is broken.
pub fn lock(data: &[u8]) -> Answer {
    let mut feed = Feed(data);
    let case = Case::draw(&mut feed);
    let owner = OwnerId::of_slot(feed.below(case.config().max_clients.into()) as u16);
    let row = RowId(feed.below(case.config().rows));
    let index = feed.below(case.locks.words());
    let (mask, value) = (feed.word(), feed.word());

    let lanes = held_in(&case, index, value);
    let held: Vec<(LockId, OwnerId)> = lanes.iter().copied().filter(|(_, owner)| owner.0 != 0).collect();
    assert_eq!(case.locks.all_held(index, value).collect::<Vec<_>>(), held);
    let masked = held_in(&case, index, value & mask).into_iter().find(|(_, owner)| owner.0 != 0);
    assert_eq!(case.locks.first_held(index, value, mask), masked);
    owner_is_not_poison(&case, owner);
    row_lock(&case, row);
    take_and_release(&case, case.locks.lock_of(row), owner, value);
    Answer::of(!held.is_empty())
}

/// Returns every held lock of a word with its owner, bit by bit.
fn held_in(case: &Case, index: u64, value: u64) -> Vec<(LockId, OwnerId)> {
    let bits = u64::from(case.config().lock_bits);
    let lanes = 64 / bits;
    let bit = |at: u64| u16::from(value >> at & 1 != 0);
    let holds = |lane: u64| (0..bits).fold(0, |owner, at| owner | bit(lane * bits + at) << at);
    (0..lanes).map(|lane| (LockId(index * lanes + lane), OwnerId(holds(lane)))).collect()
}

/// Checks that poison is no client's id, and stays so after a holder's release. [R-DESTROY-1]
fn owner_is_not_poison(case: &Case, owner: OwnerId) {
    let locks = &case.locks;
    assert!(!locks.is_poison(owner), "{owner} of {} is poison", case.config().max_clients);
    let poisoned = held_in(case, 0, locks.poison());
    assert!(poisoned.iter().all(|(_, holds)| u32::from(holds.0) == (1 << case.config().lock_bits) - 1));
    assert_eq!(poisoned.iter().all(|(_, holds)| locks.is_poison(*holds)), locks.has_owner_ids());
    assert_eq!(owner.slot().map(OwnerId::of_slot), Some(owner));
}

/// Checks that a row has one existing lock, shared with the rows of its group. [R-LOCK-5]
fn row_lock(case: &Case, row: RowId) {
    let (locks, config) = (&case.locks, case.config());
    let lock = locks.lock_of(row);
    assert!(lock.0 < locks.locks() && locks.locks() == config.physical_locks);
    assert_eq!(lock.0, row.0 / u64::from(config.rows_per_lock) % config.physical_locks);
    let LockMask { word, mask } = locks.mask(lock);
    assert!(word < locks.words() && mask.count_ones() == u32::from(config.lock_bits));
    assert!(locks.addr(word).offset() + 8 <= case.geometry.device_bytes());
}

/// Checks that taking and releasing a lock changes its own bits only. [R-LOCK-2]
fn take_and_release(case: &Case, lock: LockId, owner: OwnerId, neighbours: u64) {
    let locks = &case.locks;
    let LockMask { word, mask } = locks.mask(lock);
    let held = neighbours & !mask | locks.held(owner, mask);
    let named = if locks.has_owner_ids() { owner } else { OwnerId(1) };
    assert_eq!(locks.first_held(word, held, mask), Some((lock, named)));
    assert_eq!(held.wrapping_add(locks.release_addend(owner, mask)), neighbours & !mask, "a release is exact");
    let poisoned = (locks.poison()).wrapping_add(locks.release_addend(owner, mask));
    let left = locks.first_held(word, poisoned, mask);
    let stays = left.is_some_and(|(_, owner)| locks.is_poison(owner));
    assert_eq!(stays, locks.has_owner_ids(), "a poisoned lock that is released is neither free nor owned");
}

/// Returns seeds: words of each table that are free, held by one or several clients, poisoned, and with bits that
/// belong to no lock.
pub(super) fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (name, head) in heads() {
        let case = Case::draw(&mut Feed(&head));
        let LockMask { mask, .. } = case.locks.mask(LockId(0));
        let held = case.locks.held(OwnerId(3), mask);
        for (state, value) in [("held", held), ("poisoned", case.locks.poison()), ("stray", !case.locks.poison())] {
            let fields = [2, 5, 0, mask, value].map(u64::to_le_bytes).concat();
            seeds.push((format!("{name}-{state}"), [&head[..], &fields].concat()));
        }
    }
    seeds
}
