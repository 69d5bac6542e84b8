//! Async readers, and the lookups they share with async clients.
//!
//! [`lookups`] defines each lookup once, documentation and body, for [`Reader`] and for [`super::Client`]: both have a
//! lane, and a protocol object with lookups of the same names. The blocking counterpart is [`crate::Reader`].

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use guira_fabric::{Lane, Traffic, Waiting};
use guira_rcuckoo::{Counters, Operation, Table, TryGet};

use crate::events::Events;
use crate::fabric::FabricLane;
use crate::sessions::Sessions;
use crate::sessions::binding::{Holds, ReconnectDeadline, SessionBinding, is_session_lost};
use crate::store::Inner;
use crate::{Error, OperationError, OperationErrorKind, Token, Versioned};

/// The least bits of row versions for which tokens are supported: narrower ones wrap around while a client holds a
/// token.
const TOKEN_VERSION_BITS: u8 = 32;

pub(crate) fn check_versions(table: &Table) -> Result<(), Error> {
    let version_bits = table.config().version_bits;
    if version_bits >= TOKEN_VERSION_BITS {
        Ok(())
    } else {
        Err(OperationErrorKind::NarrowVersions { version_bits }.during(Operation::Get).into())
    }
}

/// Returns the bytes of `value` that are in `range`.
pub(crate) fn part_of(value: &[u8], range: impl RangeBounds<usize>) -> &[u8] {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => value.len(),
    };
    value.get(start..end.min(value.len())).unwrap_or_default()
}

/// Implements the async lookups for `$face`, by those of its field `$protocol`, through its field `lane`. The module of
/// `$face` imports the names that the lookups use.
macro_rules! lookups {
    ($face:ident, $protocol:ident) => {
        impl $face {
            /// Returns the value of `key`, or `None` if there is no such key.
            ///
            /// Round trips: an inline hit 1, an extent hit 2, a miss 1 or 2; on shared memory, where nothing crosses a
            /// network, 1 more for a hit in the key's second row; more while other clients write its rows. Source:
            /// R-READ-1 to R-READ-7; paper 3.2.1.
            ///
            /// # Errors
            /// `KeyLength` if the table cannot have such a key; `Corrupt` if a row or the extent is damaged; `Busy` if
            /// one stays half written until the deadline; `Destroyed`; for clients, `Lost`; `Fabric`. Nothing is
            /// changed.
            pub async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
                let mut value = Vec::new();
                Ok(self.get_into(key, &mut value).await?.then_some(value))
            }

            /// Replaces the content of `into` with the value of `key` and returns true; if there is no such key, leaves
            /// it empty and returns false. Allocates nothing if the value fits in `into`'s capacity. Otherwise the same
            /// as [`Self::get`].
            ///
            /// # Errors
            /// Same as [`Self::get`]; `into` is empty then.
            #[inline(always)]
            pub async fn get_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
                match self.try_get(key, into) {
                    TryGet::Done(found) => Ok(found.is_some()),
                    TryGet::MustWait => self.get_slow(key, into).await,
                }
            }

            /// Passes the bytes of the value of `key` that are in `range` to `see`, and returns what that returns, or
            /// `None` if there is no such key. What of the range lies behind the value's end is left out. The bytes were
            /// verified, and are a copy: `see` may take its time. They lie in a buffer that is kept for the next call,
            /// as large as the largest value so far. Otherwise the same as [`Self::get`], whose round trips it takes.
            ///
            /// # Errors
            /// Same as [`Self::get`]; `see` is not called then.
            pub async fn get_with<T>(
                &mut self,
                key: &[u8],
                range: impl RangeBounds<usize>,
                see: impl FnOnce(&[u8]) -> T,
            ) -> Result<Option<T>, Error> {
                Ok(self.contains(key).await?.then(|| see(part_of(&self.value, range))))
            }

            /// Looks up `key` as far as that is possible without waiting.
            #[inline(always)]
            pub(crate) fn try_get(&mut self, key: &[u8], into: &mut Vec<u8>) -> TryGet<()> {
                into.clear();
                match self.lane.in_place() {
                    Some(lane) => self.$protocol.try_get_value(lane, key, into),
                    None => TryGet::MustWait,
                }
            }

            /// Looks up `key`, and waits if needed.
            pub(crate) async fn get_slow(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
                Ok(self.get_from(key, into).await?.is_some())
            }

            /// Looks up `key` on a lane of any fabric, in the table's successor if it is known to be gone.
            async fn get_from(
                &mut self,
                key: &[u8],
                into: &mut Vec<u8>,
            ) -> Result<Option<guira_rcuckoo::Token>, Error> {
                self.follow_if_gone().await?;
                let found = self.get_in_sessions(key, into).await;
                self.binding.note(found)
            }

            /// Goes on with the table's successor if the table is known to be gone. [R-OPEN-3]
            #[inline(always)]
            pub(crate) async fn follow_if_gone(&mut self) -> Result<(), Error> {
                if self.binding.must_follow {
                    // Boxed: it is rare, and larger than the rest of an operation's future.
                    Box::pin(self.follow()).await?;
                }
                Ok(())
            }

            /// Looks up `key`, in other sessions if the current one is lost.
            async fn get_in_sessions(
                &mut self,
                key: &[u8],
                into: &mut Vec<u8>,
            ) -> Result<Option<guira_rcuckoo::Token>, Error> {
                self.binding.store.refuse_nameless(self.lane.name_loss())?;
                let mut deadline = ReconnectDeadline::default();
                loop {
                    match self.$protocol.get(self.lane.any(), key, into).await {
                        Ok(found) => return Ok(found),
                        Err(error) => self.prepare_lookup_retry(error, &mut deadline).await?,
                    }
                    into.clear();
                }
            }

            /// Prepares another attempt of a lookup that failed with `error`, or returns the error to report.
            /// [R-SESSION-1]
            #[cold]
            async fn prepare_lookup_retry(
                &mut self,
                error: OperationError,
                deadline: &mut ReconnectDeadline,
            ) -> Result<(), Error> {
                let error = self.events.failed(error);
                if self.lane.is_remote() {
                    // Boxed: it is rare, and larger than the rest of a lookup's future.
                    Box::pin(self.change_session(error, Operation::Get, deadline)).await
                } else {
                    Err(error)
                }
            }

            /// Returns the value of `key` and the state it was read in, for a change that depends on it, or `None` if
            /// there is no such key. Round trips: as [`Self::get`]. Source: R-CAS-2.
            ///
            /// # Errors
            /// Same as [`Self::get`]; `NarrowVersions` if the table's row versions are too narrow to distinguish states
            /// (preset `paper`).
            pub async fn get_versioned(&mut self, key: &[u8]) -> Result<Option<Versioned>, Error> {
                let mut value = Vec::new();
                let token = self.get_versioned_into(key, &mut value).await?;
                Ok(token.map(|token| Versioned { value, token }))
            }

            /// Replaces the content of `into` with the value of `key` and returns the state it was read in; if there is
            /// no such key, leaves it empty and returns `None`. Otherwise the same as [`Self::get_versioned`].
            ///
            /// # Errors
            /// Same as [`Self::get_versioned`]; `into` is empty then.
            pub async fn get_versioned_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Token>, Error> {
                into.clear();
                self.follow_if_gone().await?;
                check_versions(self.$protocol.table())?;
                let now = match self.lane.in_place() {
                    Some(lane) => self.$protocol.try_get(lane, key, into),
                    None => TryGet::MustWait,
                };
                let found = match now {
                    TryGet::Done(found) => found,
                    TryGet::MustWait => self.get_from(key, into).await?,
                };
                Ok(found.map(|state| Token::new(self.$protocol.table(), state)))
            }

            /// Looks up many keys at once, so that their memory accesses overlap, and returns one result for each, in
            /// order. Allocates for each value; [`Self::get_many_with`] does not, and gives the round trips and source.
            ///
            /// # Errors
            /// Each key has a result of its own, with the errors of [`Self::get`].
            pub async fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Option<Vec<u8>>, Error>> {
                let mut values = Vec::with_capacity(keys.len());
                self.get_many_with(keys, |_, result| values.push(result.map(|value| value.map(<[u8]>::to_vec)))).await;
                values
            }

            /// Looks up many keys at once, so that their memory accesses overlap, and calls `visit` with the index of
            /// each in `keys` and its result, in order. This is not a snapshot of several keys: each result is that of
            /// a separate lookup. Allocates nothing for each key.
            ///
            /// Round trips: 1 for 32 keys, 2 with extents among them; where a single miss takes 2, 2 more for each
            /// miss. On shared memory, where nothing crosses a network and accesses overlap by prefetching, 1 for a key
            /// in its first row, 2 for others, and 1 for all extents of 32 keys. Source: R-READ-8.
            ///
            /// # Errors
            /// Each key has a result of its own, with the errors of [`Self::get`].
            pub async fn get_many_with<K: AsRef<[u8]>>(
                &mut self,
                keys: &[K],
                mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
            ) {
                let Some(lane) = self.lane.in_place() else {
                    return Box::pin(self.get_many_remote(keys, visit)).await;
                };
                let (events, binding) = (&self.events, &mut self.binding);
                let visit = |i: usize, result: Result<Option<&[u8]>, guira_rcuckoo::Error>| {
                    visit(i, binding.note(result.map_err(|error| events.failed(error))));
                };
                self.$protocol.get_many_in_place(lane, keys, visit).await;
            }

            /// Looks up many keys over a fabric whose sessions can be lost: continues in another session with the first
            /// key that has no result yet.
            async fn get_many_remote<K: AsRef<[u8]>>(
                &mut self,
                keys: &[K],
                mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
            ) {
                if keys.is_empty() {
                    return;
                }
                if self.binding.must_follow
                    && let Err(error) = self.follow().await
                {
                    visit(0, Err(error));
                    return (1..keys.len()).for_each(|i| visit(i, Err(self.binding.store.without_successor())));
                }
                let loss = self.lane.name_loss();
                if loss.is_some() {
                    let binding = &mut self.binding;
                    let mut gone = || binding.note(binding.store.refuse_nameless(loss).map(|()| None));
                    return (0..keys.len()).for_each(|i| visit(i, gone()));
                }
                let (mut done, mut deadline) = (0, ReconnectDeadline::default());
                while done < keys.len() {
                    let (base, events, binding, mut lost) = (done, &self.events, &mut self.binding, None);
                    let see = |i: usize, result: Result<Option<&[u8]>, OperationError>| match result {
                        _ if lost.is_some() => {}
                        Err(error) if is_session_lost(&error) => lost = Some(error),
                        result => {
                            visit(base + i, binding.note(result.map_err(|error| events.failed(error))));
                            done = base + i + 1;
                        }
                    };
                    self.$protocol.get_many(self.lane.any(), &keys[base..], see).await;
                    let Some(error) = lost else { return };
                    let retried = self.prepare_lookup_retry(error.clone(), &mut deadline).await;
                    if let Err(first) = self.binding.note(retried) {
                        visit(done, Err(first));
                        (done + 1..keys.len()).for_each(|i| visit(i, Err(error.clone().into())));
                        return;
                    }
                }
            }

            /// Whether the key exists. Round trips: as [`Self::get`]: its value is read, too, into the buffer of
            /// [`Self::get_with`].
            ///
            /// # Errors
            /// Same as [`Self::get`].
            pub async fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
                let mut value = std::mem::take(&mut self.value);
                let found = self.get_into(key, &mut value).await;
                self.value = value;
                found
            }

            /// Returns what was sent and received since this was opened, opening excluded: round trips, messages by
            /// verb, payload bytes. They only grow. No round trip.
            pub fn traffic(&self) -> Traffic {
                *self.lane.traffic()
            }
        }
    };
}

pub(crate) use lookups;

/// An async reader, which looks up keys, one at a time: from [`super::Store::reader`], one for each task. It needs no
/// client slot and no write permission; any number of readers may use a table. The blocking counterpart is
/// [`crate::Reader`].
///
/// A future may be dropped at any time: it leaves nothing behind.
///
/// ```
/// # use guira::{CreateOptions, OpenOptions, Store, Url, aio};
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// # Store::create(&url, &CreateOptions::new(1_000))?.client()?.put(b"cuckoo", b"Guira guira")?;
/// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
/// let found = runtime.block_on(async {
///     let store = aio::Store::open_with(&url, &OpenOptions::new().read_only()).await?;
///     let lookups = [&b"cuckoo"[..], b"condor"].map(|key| {
///         let mut reader = store.reader();
///         tokio::spawn(async move { reader.get(key).await })
///     });
///     let [cuckoo, condor] = lookups;
///     Ok::<_, guira::Error>((cuckoo.await.expect("no panic")?, condor.await.expect("no panic")?))
/// })?;
/// assert_eq!((found.0.as_deref(), found.1), (Some(&b"Guira guira"[..]), None));
/// # Store::destroy(&url)
/// # }
/// ```
pub struct Reader {
    reader: guira_rcuckoo::Reader,
    pub(crate) lane: FabricLane,
    /// The last value of [`Reader::get_with`].
    pub(crate) value: Vec<u8>,
    events: Events,
    pub(crate) waiting: Waiting,
    pub(crate) binding: SessionBinding,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("url", &self.binding.store.url).finish_non_exhaustive()
    }
}

impl Reader {
    /// Creates a reader of the latest session, which may be lost: its first lookup finds out.
    pub(crate) fn new(store: &Arc<Inner>, sessions: &Arc<Sessions>, waiting: Waiting) -> Reader {
        let latest = sessions.latest().map(|session| (session.region, session.number));
        // Until there is a session that waits as wanted, one of the store's own will do.
        let (region, number) = latest.unwrap_or_else(|| (store.latest_region(), 0));
        let mut reader = guira_rcuckoo::Reader::new(Arc::clone(&store.table), store.client_config(0));
        if let Some(predictor) = &store.predictor {
            reader.set_predictor(Arc::clone(predictor));
        }
        Reader {
            reader,
            lane: region.lane_waiting(waiting),
            value: Vec::new(),
            events: store.events.clone(),
            waiting,
            binding: SessionBinding::new(Arc::clone(store), Arc::clone(sessions), number, Holds::Nothing),
        }
    }

    /// Moves to another session after `error`. A reader holds nothing, so it does not matter whether the node dropped
    /// the last session. [R-SESSION-1]
    async fn change_session(
        &mut self,
        error: Error,
        operation: Operation,
        deadline: &mut ReconnectDeadline,
    ) -> Result<(), Error> {
        let session = self.binding.next(error, deadline).await?;
        let traffic = *self.lane.traffic();
        self.lane = session.region.lane_waiting(self.waiting);
        *self.lane.traffic_mut() = traffic;
        self.binding.bind(&session, operation)
    }

    /// Frees the buffers of this reader that are larger than `bytes`: for readers that are kept for later. A reader
    /// keeps buffers as large as the largest value that it has read, for the next one. No round trip.
    pub fn shrink_to(&mut self, bytes: usize) {
        if self.value.capacity() > bytes {
            self.value = Vec::new();
        }
        self.reader.shrink_to(bytes);
        self.lane.shrink_to(bytes);
    }

    /// Returns the counters of this reader since it was opened: rows that were read again, stopped writers that were
    /// read through, lookups that gave up. They only grow. No round trip.
    pub fn counters(&self) -> Counters {
        *self.reader.counters()
    }
}

lookups!(Reader, reader);
