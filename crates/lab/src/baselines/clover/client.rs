//! The operations of a client.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;

use arrayvec::ArrayVec;
use guira_fabric::{Effect, Lane, Region, Verb, post};
use guira_fabric_sim::{SimLane, SimRegion};

use super::cache::Cache;
use super::entry::{Known, Pointer};
use super::server::{Kind, granted, located, request};
use super::{Reuse, Shape};
use crate::baselines::record::{append_value, checked_key, key_in};
use crate::baselines::{Change, Client, Cost, Error, ErrorKind, Outcome, Ports};

/// The most entries that an operation passes before it gives up: nobody waits for ever for others that are faster.
const PASSED_MAX: u32 = 1 << 16;
/// Entries that an operation passes before it reads the shortcut once more. The second time it passes twice as many, and so on:
/// it leaves behind changes that come as fast as it reads, and arrives where the shortcut lags far behind.
const PASSED_MIN: u32 = 16;
/// Shortcuts that a client writes at once, at most: the others wait for its next operation.
const SHORTCUTS_MAX: usize = 16;
/// A client asks for entries when it has no more than these.
const RESERVE: usize = 8;

/// A client, with the lanes that it needs besides that for verbs.
pub struct CloverClient {
    verbs: Box<dyn Lane>,
    /// `None` outside of the simulator: then there is no service to call.
    calls: Option<CallLanes>,
    shape: Shape,
    cache: Rc<RefCell<Cache>>,
    /// Entries that no chain has.
    entries: Vec<Pointer>,
    /// The entry that was read last, or is written.
    words: Vec<u64>,
    /// The time after a change at which its shortcut is written, and the shortcuts that are still to be written, with
    /// their times.
    shortcut_lag_ns: u64,
    due: VecDeque<(u64, Known)>,
    counts: Counts,
}

/// Lanes for calls, and for what nobody waits for.
struct CallLanes {
    /// Calls that an operation waits for, and notices.
    server: SimLane,
    /// Shortcuts that are written behind a change.
    shortcuts: SimLane,
    /// Requests of entries.
    entries: SimLane,
    /// Whether such a request was sent whose answer was not received.
    is_asking: bool,
}

/// How often operations of a client took more than the fewest round trips, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes that were tried again because the cached entry was no longer the last one.
    pub stale: u64,
    /// Changes that were tried again because another client was faster than this one, which had just read the last entry.
    pub overtaken: u64,
    /// Entries that were read and had a next pointer.
    pub passed: u64,
    /// Entries that had been used again, or were while they were read.
    pub reused: u64,
    /// Shortcuts that were read.
    pub shortcuts: u64,
    /// Calls because a key was not cached. Inserts of such keys call without it.
    pub misses: u64,
    /// Waits for entries that had been asked for.
    pub waits: u64,
}

/// The way of one operation along a chain.
#[derive(Clone, Copy, Default)]
struct Walk {
    key: u32,
    /// Entries that it has passed.
    passed: u32,
    /// Whether it has read the entry that it is at, which was the last one.
    is_last: bool,
}

/// The next step of a change at an entry that is the last of its chain, if no other client is faster.
enum Step {
    /// It appends an entry, and then has this outcome.
    Append(Outcome),
    /// It ends with this outcome.
    End(Outcome),
}

fn step_of(change: &Change<'_>, last: Pointer) -> Step {
    match (change, last.is_removal()) {
        (Change::Insert(_), false) => Step::End(Outcome::Exists),
        (Change::Insert(_) | Change::Put(_), true) => Step::Append(Outcome::Inserted),
        (Change::Update(_) | Change::Put(_), false) => Step::Append(Outcome::Replaced),
        (Change::Update(_) | Change::Remove, true) => Step::End(Outcome::Missing),
        (Change::Remove, false) => Step::Append(Outcome::Removed),
    }
}

fn without_effect(kind: ErrorKind) -> Error {
    Error { kind, effect: Effect::None }
}

impl CloverClient {
    pub(super) fn new(ports: Ports, shape: Shape, shortcut_lag_ns: u64, cache: Rc<RefCell<Cache>>) -> CloverClient {
        let lanes = |(server, region): (SimLane, SimRegion)| CallLanes {
            server,
            shortcuts: region.lane(),
            entries: region.lane(),
            is_asking: false,
        };
        let (calls, counts) = (ports.calls.zip(ports.region).map(lanes), Counts::default());
        let (verbs, entries, words, due) = (ports.verbs, Vec::new(), Vec::new(), VecDeque::new());
        CloverClient { verbs, calls, shape, cache, entries, words, shortcut_lag_ns, due, counts }
    }

    /// Returns how often operations took more than the fewest round trips.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn lanes(&mut self) -> Result<&mut CallLanes, Error> {
        let refused = || Error::refused("setting clover calls a service, which only the simulator has");
        self.calls.as_mut().ok_or_else(refused)
    }

    /// Asks the server about a key: 1 round trip. Caches the answer.
    async fn ask(&mut self, kind: Kind, key: u32, entry: Option<Pointer>) -> Result<Option<Known>, Error> {
        let mut reply = Vec::new();
        self.lanes()?.server.call(&request(kind, key, entry), &mut reply).await?;
        let known = located(&reply);
        known.into_iter().for_each(|known| self.cache.borrow_mut().put(key, known));
        Ok(known)
    }

    /// Returns what is known of a key: from the cache, or by 1 round trip.
    async fn locate(&mut self, key: u32) -> Result<Option<Known>, Error> {
        let cached = self.cache.borrow().get(key);
        if cached.is_some() {
            return Ok(cached);
        }
        self.counts.misses += 1;
        self.ask(Kind::Locate, key, None).await
    }

    /// Reads entries until the last one of the chain, and caches it: 1 round trip for each.
    async fn find_last(&mut self, known: &mut Known, walk: &mut Walk) -> Result<(), Error> {
        loop {
            self.words.clear();
            self.words.resize(self.shape.entry_words() as usize, 0);
            let read = Verb::Read { addr: self.shape.entry_addr(known.tail.entry), into: &mut self.words };
            post(&mut *self.verbs, [read]).await?;
            let next = self.next_of(known.tail, self.words[0]);
            if next == Some(None) && key_in(&self.words[1..]) == walk.key && self.shape.is_of_one_use(&self.words) {
                break;
            }
            self.counts.passed += u64::from(next.flatten().is_some());
            self.go_on(known, next.flatten(), walk, true).await?;
        }
        walk.is_last = true;
        self.cache.borrow_mut().put(walk.key, *known);
        Ok(())
    }

    /// Returns the next pointer in a link, if it has one; `None` if it is not the link of the use that is meant.
    fn next_of(&self, meant: Pointer, link: u64) -> Option<Option<Pointer>> {
        let is_meant = self.shape.reuse == Reuse::WithoutVersions || meant.has_link(link);
        is_meant.then(|| Pointer::parse(link))
    }

    /// Goes on behind an entry that is not the last one: to the next, or by 1 round trip to where the shortcut points,
    /// which may lag behind. If neither leads on, since the entry was used again, to where the server says: the same entry,
    /// if that was not read, and an element steered the CAS to another one.
    async fn go_on(
        &mut self,
        known: &mut Known,
        next: Option<Pointer>,
        walk: &mut Walk,
        was_read: bool,
    ) -> Result<(), Error> {
        let reads_shortcut = walk.passed == 0 || walk.passed >= PASSED_MIN && walk.passed.is_power_of_two();
        walk.passed += 1;
        walk.is_last = false;
        if walk.passed > PASSED_MAX {
            return Err(without_effect(ErrorKind::Busy));
        }
        let mut target = next;
        self.counts.reused += u64::from(next.is_none());
        if reads_shortcut {
            self.counts.shortcuts += 1;
            let mut word = [0];
            let read = Verb::Read { addr: self.shape.shortcut_addr(known.shortcut), into: &mut word };
            post(&mut *self.verbs, [read]).await?;
            target = Pointer::parse(word[0]).filter(|shortcut| *shortcut != known.tail).or(next);
        }
        match target {
            Some(target) => known.tail = target,
            None => {
                let found = self.ask(Kind::Locate, walk.key, None).await?;
                let found = found.filter(|found| found.tail != known.tail || !was_read);
                let lost = "an entry is not the one that was meant: the memory node has lost its memory";
                *known = found.ok_or_else(|| Error::refused(lost))?;
            }
        }
        Ok(())
    }

    /// Takes an entry that no chain has. The client asks for more before it has none, so that it seldom waits.
    async fn take_entry(&mut self) -> Result<Pointer, Error> {
        let (mut reply, empty) = (Vec::new(), self.entries.is_empty());
        let few = self.entries.len() <= RESERVE;
        let lanes = self.lanes()?;
        if few && !lanes.is_asking {
            lanes.entries.begin_call(&request(Kind::Grant, 0, None)).await?;
            lanes.is_asking = true;
        }
        if empty {
            let began_ns = lanes.entries.now_ns();
            lanes.is_asking = false;
            lanes.entries.end_call(&mut reply).await?;
            let waited = lanes.entries.now_ns() > began_ns;
            self.counts.waits += u64::from(waited);
            granted(&reply, &mut self.entries);
        }
        self.entries.pop().ok_or_else(|| without_effect(ErrorKind::Full))
    }

    /// Writes an entry that no chain has: 1 round trip.
    async fn write_entry(&mut self, key: u32, value: Option<&[u8]>) -> Result<Pointer, Error> {
        let own = self.take_entry().await?.filled(value.is_none());
        self.shape.write_entry(own, key, value.unwrap_or(&[]), &mut self.words);
        let write = Verb::Write { addr: self.shape.entry_addr(own.entry), words: &self.words };
        // No chain has the entry, whatever becomes of it.
        post(&mut *self.verbs, [write]).await.map_err(|error| without_effect(error.into()))?;
        Ok(own)
    }

    /// Appends an entry behind the one that is the last of its chain: 1 round trip. Returns the link that is there
    /// instead, if it is not the last one.
    async fn append(&mut self, last: Pointer, own: Pointer) -> Result<Option<u64>, Error> {
        let (compare, mut found) = (last.link(None), 0);
        let cas = Verb::Cas {
            addr: self.shape.entry_addr(last.entry),
            compare,
            swap: last.link(Some(own)),
            found: &mut found,
        };
        // Linearization point of a change of a key that has a chain.
        post(&mut *self.verbs, [cas]).await?;
        Ok((found != compare).then_some(found))
    }

    /// Tells the shortcut and the server of a change that has been made: nobody waits for it, nor learns whether it arrives.
    async fn report(&mut self, key: u32, known: Known) {
        self.due.push_back((self.verbs.now_ns() + self.shortcut_lag_ns, known));
        self.write_shortcuts().await;
        let Some(lanes) = &mut self.calls else { return };
        // A lost connection is the matter of the next operation.
        let _ = lanes.server.notify(&request(Kind::Appended, key, Some(known.tail))).await;
    }

    /// Writes the shortcuts that are due, in one batch.
    async fn write_shortcuts(&mut self) {
        let now_ns = self.verbs.now_ns();
        let count = self.due.iter().take(SHORTCUTS_MAX).take_while(|(due_ns, _)| *due_ns <= now_ns).count();
        let Some(lanes) = self.calls.as_mut().filter(|_| count > 0) else { return };
        let drained = poll_fn(|cx| lanes.shortcuts.poll_drain(&mut [], cx)).await;
        let shortcuts = self.due.drain(..count).map(|(_, known)| (known.shortcut, [known.tail.word()]));
        let shortcuts: ArrayVec<_, SHORTCUTS_MAX> = shortcuts.collect();
        if drained.is_ok() {
            let mut batch = ArrayVec::<_, SHORTCUTS_MAX>::new();
            for (shortcut, words) in &shortcuts {
                batch.push(Verb::Write { addr: self.shape.shortcut_addr(*shortcut), words });
            }
            drop(post(&mut lanes.shortcuts, &mut batch[..]));
        }
    }

    /// Carries out a change of a key that has a chain. `own` is its entry, if that is written.
    async fn change_chain(
        &mut self,
        (key, mut known): (u32, Known),
        change: &Change<'_>,
        mut own: Option<Pointer>,
    ) -> Result<Outcome, Error> {
        let mut walk = Walk { key, ..Walk::default() };
        loop {
            let outcome = match step_of(change, known.tail) {
                Step::Append(outcome) => outcome,
                // Linearization point: the READ of the last entry.
                Step::End(outcome) if walk.is_last => {
                    self.entries.extend(own);
                    return Ok(outcome);
                }
                Step::End(_) => {
                    self.find_last(&mut known, &mut walk).await?;
                    continue;
                }
            };
            let entry = match own {
                Some(own) => own,
                None => self.write_entry(key, value_of(change)).await?,
            };
            own = Some(entry);
            let Some(link) = self.append(known.tail, entry).await? else {
                known.tail = entry;
                self.cache.borrow_mut().put(key, known);
                self.report(key, known).await;
                return Ok(outcome);
            };
            let cause = if walk.is_last { &mut self.counts.overtaken } else { &mut self.counts.stale };
            *cause += 1;
            let next = self.next_of(known.tail, link).flatten();
            self.go_on(&mut known, next, &mut walk, false).await?;
            self.find_last(&mut known, &mut walk).await?;
        }
    }

    /// Begins a chain with a value, or finds the one that the key has.
    async fn insert(&mut self, key: u32, change: &Change<'_>) -> Result<Outcome, Error> {
        let own = self.write_entry(key, value_of(change)).await?;
        // Linearization point, if the key has no chain.
        let Some(known) = self.ask(Kind::Insert, key, Some(own)).await? else {
            self.entries.push(own);
            return Err(without_effect(ErrorKind::Full));
        };
        if known.tail == own {
            return Ok(Outcome::Inserted);
        }
        self.change_chain((key, known), change, Some(own)).await
    }
}

/// Returns the value of a change; `None` if it removes.
fn value_of<'v>(change: &Change<'v>) -> Option<&'v [u8]> {
    match *change {
        Change::Insert(value) | Change::Update(value) | Change::Put(value) => Some(value),
        Change::Remove => None,
    }
}

impl Client for CloverClient {
    /// Looks `key` up: 1 round trip if the key is cached and has not changed since. One for each entry behind, one for
    /// the shortcut, one if the key is not cached, and one each time that an entry was used again.
    ///
    /// # Errors
    /// `Refused` for key 0, for keys of more than 32 bits, and outside of the simulator; `Busy` if others change the key faster
    /// than this client reads; errors of the fabric.
    async fn get(&mut self, key: u64, values: &mut Vec<u8>) -> Result<bool, Error> {
        let key = checked_key(key)?;
        self.write_shortcuts().await;
        let Some(mut known) = self.locate(key).await? else { return Ok(false) };
        self.find_last(&mut known, &mut Walk { key, ..Walk::default() }).await?;
        if known.tail.is_removal() {
            return Ok(false);
        }
        append_value(&self.words[1..], self.shape.value_bytes, values);
        Ok(true)
    }

    /// Carries out a change: 2 round trips if the key is cached and has not changed since, or if it is inserted or put and has no
    /// chain. One that ends without effect takes as many as a lookup.
    ///
    /// # Errors
    /// Those of [`CloverClient::get`]; `Refused` if the value has another length; `Full` if there is no entry left, or no room
    /// for another key.
    async fn change(&mut self, key: u64, change: Change<'_>) -> Result<Outcome, Error> {
        let (key, value_bytes) = (checked_key(key)?, self.shape.value_bytes);
        if let Some(value) = value_of(&change).filter(|value| value.len() != value_bytes) {
            return Err(Error::refused(format!("a value has {value_bytes} bytes, and not {}", value.len())));
        }
        let is_cached = self.cache.borrow().get(key).is_some();
        if !is_cached && matches!(change, Change::Insert(_) | Change::Put(_)) {
            return self.insert(key, &change).await;
        }
        match self.locate(key).await? {
            Some(known) => self.change_chain((key, known), &change, None).await,
            None => Ok(Outcome::Missing),
        }
    }

    /// Returns what all operations have cost. A round trip is one that an operation waits for: neither what is told behind a
    /// change, nor a request of entries that is answered before they are needed.
    fn cost(&self) -> Cost {
        let verbs = Cost::from(self.verbs.traffic());
        let Some(lanes) = &self.calls else { return verbs };
        let (calls, entries) = (Cost::from(lanes.server.calls()), Cost::from(lanes.entries.calls()));
        let shortcuts = Cost::from(lanes.shortcuts.traffic());
        Cost {
            round_trips: verbs.round_trips + calls.round_trips + self.counts.waits,
            messages: verbs.messages + calls.messages + entries.messages + shortcuts.messages,
            wire_bytes: verbs.wire_bytes + calls.wire_bytes + entries.wire_bytes + shortcuts.wire_bytes,
            retries: self.counts.stale + self.counts.overtaken,
        }
    }
}
