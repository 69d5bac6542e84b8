//! Checks whether records fit in a table, and advises on commands that make a larger one.

use std::path::Path;

use guira::admin::{FileStat, RegionStat, Stat};
use guira::raw::layout::TableConfig;
use guira::{CreateOptions, EntryFormat, Url};
use guira_input::RecordEncoder;

use crate::advice::{self, Advised};
use crate::commands::owner;
use crate::input::{self, InputFormat};
use crate::interrupt;
use crate::units::{self, count, counted};

/// Bytes of a file that are read to estimate its content: all of most files, in a fraction of a second.
const SURVEY_BYTES: u64 = 64 << 20;
/// The fill in percent that every default table reaches before its first `Full`.
const FILL_PERCENT: u64 = 95;
/// Maximum number of times that a recommended table may grow; less than it could.
const MOST_GROWTH: u64 = 1 << 14;
/// Minimum extent space of a recommended table.
const LEAST_EXTENT_BYTES: u64 = 4 << 20;

/// The records to be stored in a table, and the extent space they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Number of records.
    pub records: u64,
    /// Bytes of extent space.
    pub extent_bytes: u64,
    /// Whether the numbers are exact.
    pub precision: Precision,
    /// Whether all keys are distinct.
    pub keys: Keys,
}

impl Need {
    /// Returns the options of a new table for these records.
    pub fn options(&self) -> CreateOptions {
        let more = if self.precision == Precision::Estimate { self.records / 10 } else { 0 };
        let options = CreateOptions::new(self.records.saturating_add(more).max(1));
        match self.extent_bytes {
            0 => options,
            live_bytes => options.extent_bytes(extent_bytes_for(live_bytes)),
        }
    }
}

/// The precision of a [`Need`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// All records were read.
    Exact,
    /// Only the first part was read, and the rest is extrapolated.
    Estimate,
}

/// Whether records have distinct keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// No two records have the same key.
    Distinct,
    /// Some records may have the same key.
    MayRepeat,
}

/// The tables that the advice names: the one that is too small, and the source of the records.
#[derive(Clone, Copy, Debug)]
pub struct Target<'u> {
    /// The table that is too small.
    pub url: &'u Url,
    /// The table that the records come from, if any.
    pub from: Option<&'u Url>,
    /// Whether the records already in the table at `url` are to be kept.
    pub existing: ExistingRecords,
}

/// The handling of the records that the table to be replaced already holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingRecords {
    /// They are copied into the larger table.
    Keep,
    /// They come from the source again.
    AlreadyInSource,
}

/// The reason why records do not fit, and the commands that help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The reason.
    pub reason: String,
    /// The commands that make a larger table.
    pub remedy: String,
}

/// Reads the first part of a file to estimate what its records need in a table in which a key and a value of these
/// lengths take `record_space` bytes of extent space. Returns `None` if that is unknown before they are loaded, because
/// the file is a pipe or cannot be read.
pub fn survey(
    path: &Path,
    format: Option<InputFormat>,
    encoder: RecordEncoder,
    record_space: impl Fn(usize, usize) -> u64,
) -> Option<Need> {
    if path == Path::new("-") || !path.metadata().ok()?.is_file() {
        return None;
    }
    let (mut records, total) = input::open(path, format, encoder).ok()?;
    let mut need = Need { records: 0, extent_bytes: 0, precision: Precision::Exact, keys: Keys::MayRepeat };
    while let Some(record) = records.next() {
        if interrupt::requested() {
            return None;
        }
        if let Ok(record) = record {
            need.records += 1;
            need.extent_bytes += record_space(record.key.len(), record.value.len());
        }
        let (read, total) = (records.bytes_read(), total?);
        if read >= SURVEY_BYTES && read < total {
            let scaled = |part: u64| (u128::from(part) * u128::from(total) / u128::from(read)) as u64;
            let (records, extent_bytes) = (scaled(need.records), scaled(need.extent_bytes));
            return Some(Need { records, extent_bytes, precision: Precision::Estimate, ..need });
        }
    }
    Some(need)
}

/// Returns the warning that records do not fit in a table, or `None` if they do.
pub fn shortfall(what: &str, need: Need, target: Target<'_>, config: &TableConfig, stat: &Stat) -> Option<Shortfall> {
    let (url, table, space) = (target.url, &stat.table, &stat.table.space);
    let room = if config.grows() { config.max_capacity() } else { table.capacity * FILL_PERCENT / 100 };
    let entries_free = room.saturating_sub(table.entries);
    let space_free = space.most_bytes.saturating_sub(space.place_bytes);
    let about = if need.precision == Precision::Estimate { "about " } else { "" };
    let reason = if need.records > entries_free {
        let (records, free) = (counted(need.records, "record"), count(entries_free));
        format!("{what} has {about}{records}, but {url} has room for only {free} more")
    } else if need.extent_bytes > space_free {
        let (wanted, free) = (units::bytes(need.extent_bytes), units::bytes(space_free));
        format!("the large records of {what} need {about}{wanted}, but {url} has only {free} left for them")
    } else {
        return None;
    };
    let unless = match (need.keys, table.entries) {
        (Keys::Distinct, 0) => "",
        (Keys::Distinct, _) => "unless it already holds many of their keys, ",
        (Keys::MayRepeat, _) => "unless it already holds many of their keys, or many occur more than once, ",
    };
    let extent_bytes = extent_bytes_for(space.place_bytes.saturating_add(need.extent_bytes));
    let remedy = larger(target, config, table.entries + need.records, extent_bytes);
    Some(Shortfall { reason: format!("{reason}; {unless}it will become full"), remedy })
}

/// Returns the extent space of a table whose records take `live_bytes` of it: half as much again, because a record is
/// written before the one it replaces is freed, and a chunk of each size class for a few clients.
fn extent_bytes_for(live_bytes: u64) -> u64 {
    live_bytes.saturating_add(live_bytes / 2).saturating_add(LEAST_EXTENT_BYTES)
}

/// The state of the table and of the input when the table is full.
#[derive(Clone, Copy, Debug)]
pub enum FullDuring<'s> {
    /// One change was refused.
    Change,
    /// A load was refused a record of an input of unknown length; as many records as the capacity may follow.
    Load(&'s Stat),
}

/// Returns the advice for a full table; `record_bytes` is the size of the record if the extent space is full.
pub fn advice(target: Target<'_>, config: &TableConfig, full: FullDuring<'_>, record_bytes: Option<u64>) -> String {
    let (capacity, extent_bytes) = (config.max_capacity(), config.extent_bytes());
    let (capacity, extent_bytes) = match record_bytes {
        None if extent_bytes <= LEAST_EXTENT_BYTES => (capacity.saturating_mul(2), extent_bytes),
        None => (capacity.saturating_mul(2), extent_bytes.saturating_mul(2)),
        Some(bytes) => {
            let doubled = extent_bytes.saturating_mul(2).saturating_add(bytes.saturating_mul(3));
            let for_all = match full {
                FullDuring::Change => 0,
                FullDuring::Load(stat) => for_capacity(config, stat),
            };
            (capacity, doubled.max(for_all))
        }
    };
    larger(target, config, capacity, extent_bytes)
}

/// Returns the extent space for as many records as the capacity, each as large as those stored now are on average; at
/// most half of the free memory, because a table that does not fit helps nobody.
fn for_capacity(config: &TableConfig, stat: &Stat) -> u64 {
    let stored = u128::from(stat.table.entries.max(1));
    let live = u128::from(stat.table.space.place_bytes) * u128::from(config.max_capacity()).max(stored) / stored;
    let wanted = extent_bytes_for(u64::try_from(live).unwrap_or(u64::MAX));
    let RegionStat::File(FileStat { path, .. }) = &stat.region else { return wanted };
    let free = Path::new(path).parent().and_then(|directory| rustix::fs::statvfs(directory).ok());
    free.map_or(wanted, |free| wanted.min(free.f_bavail.saturating_mul(free.f_frsize) / 2))
}

/// Returns the commands that copy a table into a new one of the same size.
pub fn another(target: Target<'_>, config: &TableConfig) -> String {
    let (commands, room) = commands(target, config, config.max_capacity(), config.extent_bytes());
    format!("{room}copy it into a new table with: {commands}")
}

/// Returns the commands that create a table for `capacity` keys in place of a full one, and fill it.
fn larger(target: Target<'_>, config: &TableConfig, capacity: u64, extent_bytes: u64) -> String {
    let (commands, room) = commands(target, config, capacity, extent_bytes);
    match target.url.path() {
        Some(_) => format!("{room}create and fill a larger table with: {commands}"),
        None => format!("serve a larger table and fill it with: {commands}"),
    }
}

/// Returns the commands that create and fill a table, and what is to be done before, if there is not enough memory. A
/// table that grows is replaced by one that grows further.
fn commands(target: Target<'_>, config: &TableConfig, capacity: u64, extent_bytes: u64) -> (String, String) {
    let Target { url, from, existing } = target;
    let most = units::rounded_up(capacity);
    let (mut create, mut options) = (Vec::new(), CreateOptions::new(parsed(&most)).format(config.format));
    let mut least_extent_bytes = LEAST_EXTENT_BYTES;
    if config.grows() {
        let first = units::rounded_up(config.capacity().max(capacity / MOST_GROWTH));
        create.extend(["--capacity".to_owned(), first.clone(), "--max-capacity".to_owned(), most.clone()]);
        options = CreateOptions::new(parsed(&first)).max_capacity(parsed(&most)).format(config.format);
        least_extent_bytes = config.extent_bytes();
    } else {
        create.extend(["--capacity".to_owned(), most]);
    }
    if config.format != (EntryFormat::Bytes { inline_bytes: 64 }) {
        create.extend(["--entry".to_owned(), config.format.to_string()]);
    }
    if config.format.has_extents() && extent_bytes > least_extent_bytes {
        let mib = extent_bytes.div_ceil(1 << 20);
        create.extend(["--extent-bytes".to_owned(), format!("{mib}MiB")]);
        options = options.extent_bytes(mib << 20);
    }
    let create: Vec<&str> = create.iter().map(String::as_str).collect();
    let is_file = url.path().is_some();
    let new = if is_file { advice::free_url(url) } else { "tcp://HOST:PORT".to_owned() };
    // The new table belongs to this user, whatever owner the environment names.
    let own = rustix::process::geteuid().as_raw();
    let is_other = is_file && owner::named().is_ok_and(|named| named.is_some_and(|uid| uid != own));
    let own = own.to_string();
    let owner: &[&str] = if is_other { &["--owner", &own] } else { &[] };
    let copy = |how, from: &Url| advice::guira(how, &[&[from.to_string().as_str(), &new], owner].concat());
    let fill = match (from, existing) {
        (None, _) => copy(Advised::Copy, url),
        (Some(from), ExistingRecords::AlreadyInSource) => copy(Advised::Copy, from),
        (Some(from), ExistingRecords::Keep) => {
            format!("{} && {}", copy(Advised::Copy, url), copy(Advised::CopyMerge, from))
        }
    };
    if !is_file {
        return (format!("{}; {fill}", advice::guira(Advised::Serve, &create)), String::new());
    }
    let create = advice::guira(Advised::Create, &[&[new.as_str()], &create[..]].concat());
    (format!("{create} && {fill}"), room(&new, &options).unwrap_or_default())
}

fn parsed(count: &str) -> u64 {
    units::parse_count(count).unwrap_or(u64::MAX)
}

/// Says that a table does not fit where it is to be created, if so.
fn room(url: &str, options: &CreateOptions) -> Option<String> {
    let path = url.parse::<Url>().ok()?.path()?;
    let directory = path.parent()?;
    let space = rustix::fs::statvfs(directory).ok()?;
    let (needed, free) = (options.memory_bytes().ok()?, space.f_bavail.saturating_mul(space.f_frsize));
    // No blocks: mounted without a limit.
    (space.f_blocks > 0 && needed > free).then(|| {
        let (needed, free, directory) = (units::bytes(needed), units::bytes(free), directory.display());
        format!("make room in {directory}, because a larger table needs {needed} and only {free} are free; then ")
    })
}

#[cfg(test)]
mod tests {
    use guira::Store;
    use guira_input::Notation;

    use super::*;

    fn with_table(capacity: u64, test: impl FnOnce(&Store)) {
        let url: Url = format!("shm://{}", guira_testing::unique_name()).parse().unwrap();
        let store = Store::create(&url, &CreateOptions::new(capacity)).unwrap();
        test(&store);
        Store::destroy(&url).unwrap();
    }

    fn lines(count: usize, value_bytes: usize) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = (0..count).map(|i| format!("{i:08}\t{}\n", "x".repeat(value_bytes))).collect();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn of(url: &Url) -> Target<'_> {
        Target { url, from: None, existing: ExistingRecords::Keep }
    }

    fn said(store: &Store, file: &Path) -> Option<Shortfall> {
        let config = store.table().config();
        let encoder = RecordEncoder::new(config.format, Notation::Bytes).unwrap();
        let space = |key, value| config.record_space(key, value);
        let need = survey(file, None, encoder, space).expect("a file can be surveyed");
        shortfall("the file", need, of(store.url()), config, &store.stat().unwrap())
    }

    #[test]
    fn records_that_do_not_fit_are_announced() {
        with_table(1_000, |store| {
            assert_eq!(said(store, lines(1_000, 8).path()), None);
            let Shortfall { reason, remedy } =
                said(store, lines(2_000, 8).path()).expect("the table has 1,152 entries");
            assert!(reason.starts_with("the file has 2,000 records, but shm://guira-test-"), "{reason}");
            assert!(remedy.contains("--capacity 2_000 &&") && remedy.contains("guira copy shm://"), "{remedy}");
            let Shortfall { reason, remedy } =
                said(store, lines(1_000, 10_000).path()).expect("4 MiB are too few for 10 MB");
            assert!(reason.starts_with("the large records of the file need "), "{reason}");
            assert!(remedy.contains(" --extent-bytes ") && remedy.contains("MiB &&"), "{remedy}");
        });
    }

    #[test]
    fn the_recommended_table_is_larger_than_the_full_one() {
        with_table(1_000, |store| {
            let (config, url) = (store.table().config(), store.url());
            let said = |record_bytes| advice(of(url), config, FullDuring::Change, record_bytes);
            assert!(said(None).contains("--capacity 2_100 &&"), "{}", said(None));
            assert!(
                said(Some(1 << 20)).contains("--capacity 1_100 --extent-bytes 11MiB &&"),
                "{}",
                said(Some(1 << 20))
            );
        });
    }

    /// The commands copy all records that are to be kept into the larger table, under a free name.
    #[test]
    fn the_commands_fill_the_larger_table() {
        with_table(1_000, |store| {
            let (config, url, from) = (store.table().config(), store.url(), Url::shm("from").unwrap());
            let fill = |existing| advice(Target { url, from: Some(&from), existing }, config, FullDuring::Change, None);
            assert!(
                fill(ExistingRecords::AlreadyInSource).ends_with(&format!("&& guira copy shm://from {url}-2")),
                "{}",
                fill(ExistingRecords::AlreadyInSource)
            );
            let kept = format!("&& guira copy {url} {url}-2 && guira copy --merge shm://from {url}-2");
            assert!(fill(ExistingRecords::Keep).ends_with(&kept), "{}", fill(ExistingRecords::Keep));
            let second: Url = format!("{url}-2").parse().unwrap();
            Store::create(&second, &CreateOptions::new(1)).unwrap();
            assert!(
                fill(ExistingRecords::AlreadyInSource).ends_with(&format!(" {url}-3")),
                "{}",
                fill(ExistingRecords::AlreadyInSource)
            );
            Store::destroy(&second).unwrap();
        });
    }

    #[test]
    fn pipes_are_not_surveyed() {
        with_table(10, |store| {
            let encoder = RecordEncoder::new(store.table().config().format, Notation::Bytes).unwrap();
            assert_eq!(survey(Path::new("-"), None, encoder, |_, _| 0), None);
            assert_eq!(survey(Path::new("/dev/null"), None, encoder, |_, _| 0), None);
        });
    }
}
