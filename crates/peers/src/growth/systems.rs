//! One run of each system: made, filled by all clients, and checked.

use std::hash::BuildHasherDefault;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use dashmap::DashMap;
use guira::{CreateOptions, EntryFormat, Store, Url};
use rustc_hash::FxHasher;

use super::afterwards::compare;
use super::inserter::{Inserter, RedisInserter, each, key};
use super::report::{Afterwards, Curve};
use super::writers::{in_processes, in_threads};
use super::{GrowthOptions, Series, table_in};
use crate::error::PeersError;
use crate::load::ProgressFn;
use crate::record::{KEY_BYTES, Key, ValueEnds, WORD_BYTES, difference};
use crate::server::{Kind, Listen, Server, Sizes};
use crate::testbed::directory;

/// Client slots of a table beside those of its clients: those of clients that were killed.
const SPARE_SLOTS: u16 = 64;
/// Keys that are looked up at once, and between two reports of progress.
pub const CHECKED: u64 = 1 << 14;
/// Of the keys in Redis, one in so many is looked up, because it takes as long as an insert.
const REDIS_CHECKED_EVERY: u64 = 61;
/// The most gets that are timed.
const TIMED_GETS: u64 = 4_000_000;

type Word = [u8; WORD_BYTES];
type Map = DashMap<u64, Word, BuildHasherDefault<FxHasher>>;

/// Makes a system, lets its clients insert all keys, and looks for them.
pub fn measure(series: Series, options: &GrowthOptions, watch: &mut ProgressFn<'_>) -> Result<Curve, PeersError> {
    match series {
        Series::Grows | Series::Fixed | Series::GrowsKilled | Series::FixedKilled => guira(series, options, watch),
        Series::Dashmap => dashmap(options, watch),
        Series::Redis => redis(options, watch),
    }
}

fn guira(series: Series, options: &GrowthOptions, watch: &mut ProgressFn<'_>) -> Result<Curve, PeersError> {
    let (directory, keys) = (directory()?, options.share() * options.clients as u64);
    let file = table_in(directory.path());
    let store = create(&file, series, options, keys)?;
    let kill_every = series.is_killed().then_some(options.kill_every);
    let inserted = in_processes(options, series.title(), watch, &file, kill_every)?;
    let mut reader = store.reader();
    let mut value = Vec::with_capacity(WORD_BYTES);
    let get_ns = verify(series, keys, watch, |key| {
        let is_found = reader.get_into(key, &mut value)?;
        Ok(is_found.then(|| ValueEnds::of(&value, WORD_BYTES)))
    })?;
    let afterwards = Afterwards {
        get_ns,
        bytes: store.stat()?.region.file().map_or(0, |file| file.stored_bytes),
        problems: Some(store.check()?.problems_total),
    };
    let after_growth = (series == Series::Grows).then(|| compare(&store, keys, watch)).transpose()?;
    Ok(Curve { after_growth, ..Curve::new(series, keys, inserted, &afterwards) })
}

fn create(file: &Path, series: Series, options: &GrowthOptions, keys: u64) -> Result<Store, PeersError> {
    let url = Url::file(file).map_err(guira::Error::from)?;
    let made_for =
        if series.grows() { CreateOptions::new(options.first).max_capacity(keys) } else { CreateOptions::new(keys) };
    Ok(Store::create(&url, &shape(made_for, options.clients))?)
}

/// Returns the options of a table for the keys of a run, and for so many clients at a time.
pub fn shape(made_for: CreateOptions, clients: usize) -> CreateOptions {
    let format = EntryFormat::Fixed { key_bytes: KEY_BYTES as u16, value_bytes: WORD_BYTES as u16 };
    made_for.format(format).max_clients(SPARE_SLOTS + clients as u16).seed(1)
}

/// Looks up all keys, and then some of them once more. Returns the nanoseconds that each of those took.
fn verify(
    series: Series,
    keys: u64,
    watch: &mut ProgressFn<'_>,
    mut get: impl FnMut(&Key) -> Result<Option<ValueEnds>, PeersError>,
) -> Result<f64, PeersError> {
    let title = series.title();
    look_up(&format!("{title}: looking up what was acknowledged"), (keys, 1), watch, &mut get)?;
    let every = keys.div_ceil(TIMED_GETS);
    let start = Instant::now();
    look_up(&format!("{title}: timing gets"), (keys, every), watch, &mut get)?;
    Ok(start.elapsed().as_nanos() as f64 / keys.div_ceil(every) as f64)
}

/// Looks up one in `every` of the keys, one after the other; where they are has no order.
fn look_up(
    what: &str,
    (keys, every): (u64, u64),
    watch: &mut ProgressFn<'_>,
    mut get: impl FnMut(&Key) -> Result<Option<ValueEnds>, PeersError>,
) -> Result<(), PeersError> {
    for (count, number) in (0..).zip((0..keys).step_by(every as usize)) {
        if count % CHECKED == 0 {
            watch(what, number, keys)?;
        }
        let key = key(number);
        check(&key, get(&key)?)?;
    }
    Ok(())
}

/// Fails unless the value of a key was found, and is right.
pub fn check(key: &Key, found: Option<ValueEnds>) -> Result<(), PeersError> {
    match found {
        None => Err(PeersError::missing(key)),
        Some(ends) if difference(key, ends) != 0 => Err(PeersError::wrong(key, ends)),
        Some(_) => Ok(()),
    }
}

/// A thread's handle of the map.
struct MapInserter(Arc<Map>);

impl Inserter for MapInserter {
    fn insert(&mut self, first: u64, times: &mut Vec<u32>) -> Result<(), PeersError> {
        each(first, times, |key, value| {
            self.0.insert(u64::from_le_bytes(*key), value);
            Ok(())
        })
    }
}

fn dashmap(options: &GrowthOptions, watch: &mut ProgressFn<'_>) -> Result<Curve, PeersError> {
    let (series, keys) = (Series::Dashmap, options.share() * options.clients as u64);
    let before = resident_bytes(std::process::id())?;
    let map: Arc<Map> =
        Arc::new(DashMap::with_capacity_and_hasher(options.first as usize, BuildHasherDefault::default()));
    let inserted =
        in_threads(
            options,
            series.title(),
            watch,
            || Ok(Box::new(MapInserter(Arc::clone(&map))) as Box<dyn Inserter>),
        )?;
    let bytes = resident_bytes(std::process::id())?.saturating_sub(before);
    let get_ns = verify(series, keys, watch, |key| {
        let value = map.get(&u64::from_le_bytes(*key));
        Ok(value.map(|value| ValueEnds::of(&*value, WORD_BYTES)))
    })?;
    Ok(Curve::new(series, keys, inserted, &Afterwards { get_ns, bytes, problems: None }))
}

fn redis(options: &GrowthOptions, watch: &mut ProgressFn<'_>) -> Result<Curve, PeersError> {
    let (series, keys) = (Series::Redis, options.share() * options.clients as u64);
    let directory = directory()?;
    let sizes = Sizes { records: keys, value_bytes: WORD_BYTES, threads: 1 };
    let server = Server::start(Kind::Redis, Listen::Socket, directory.path(), &sizes)?;
    let connect = || Ok(Box::new(RedisInserter::connect(server.address())?) as Box<dyn Inserter>);
    let inserted = in_threads(options, series.title(), watch, connect)?;
    let bytes = resident_bytes(server.pid())?;
    let mut client = RedisInserter::connect(server.address())?;
    let numbers: Vec<u64> = (0..keys).step_by(REDIS_CHECKED_EVERY as usize).collect();
    let start = Instant::now();
    for numbers in numbers.chunks(CHECKED as usize) {
        watch("Redis: looking up what was acknowledged", numbers[0], keys)?;
        let keys: Vec<Key> = numbers.iter().map(|number| key(*number)).collect();
        client.verify(&keys)?;
    }
    let get_ns = start.elapsed().as_nanos() as f64 / numbers.len() as f64;
    Ok(Curve::new(series, keys, inserted, &Afterwards { get_ns, bytes, problems: None }))
}

/// Returns the bytes of memory that a process has.
fn resident_bytes(pid: u32) -> Result<u64, PeersError> {
    let file = format!("/proc/{pid}/statm");
    let text = std::fs::read_to_string(&file).map_err(PeersError::host(format!("read {file}")))?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.unwrap_or(0) * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::value_word;

    #[test]
    fn a_missing_or_wrong_key_fails_the_run() {
        let right = |key: &Key| ValueEnds { first: value_word(key, 0), last: value_word(key, 0) };
        let check = |get: &dyn Fn(&Key) -> Option<ValueEnds>| {
            verify(Series::Dashmap, 10, &mut |_, _, _| Ok(()), |key| Ok(get(key)))
        };
        assert!(check(&|key| Some(right(key))).unwrap() > 0.0);
        let last = key(9);
        let missing = check(&|key| (*key != last).then(|| right(key))).unwrap_err();
        assert!(matches!(missing, PeersError::Missing { .. }), "{missing}");
        let wrong = check(&|key| Some(right(if *key == last { &[0; KEY_BYTES] } else { key }))).unwrap_err();
        assert!(matches!(wrong, PeersError::Wrong { .. }), "{wrong}");
    }
}
