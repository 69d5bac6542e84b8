//! Whether records have room in a table, and the commands that make one in which they have.

use std::path::Path;

use guira::layout::TableConfig;
use guira::{EntryFormat, Stat, Url};
use guira_input::Fit;

use crate::input::{self, InputFormat};
use crate::units::{self, count, counted};

/// Bytes of a file that are read to learn what is in it: all of most files, in some tenths of a second.
const SURVEY_BYTES: u64 = 64 << 20;
/// The fill that every default table reaches before its first `Full`.
const FILL_PERCENT: u64 = 95;
/// Extent space of the smallest table that is recommended.
const LEAST_EXTENT_BYTES: u64 = 4 << 20;

/// Records that are to go into a table, and the extent space they take there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// How many there are.
    pub records: u64,
    /// Bytes of extent space.
    pub extent_bytes: u64,
    /// Whether all of them were looked at.
    pub precision: Precision,
}

/// Whether all of something was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// All of it.
    Exact,
    /// The first part, which stands for the rest.
    Estimate,
}

/// Reads the first part of a file for what a table of `config` needs to hold its records. `None` if that cannot be
/// known before they are loaded: it is a pipe, or cannot be read.
pub fn survey(path: &Path, format: Option<InputFormat>, fit: Fit, config: &TableConfig) -> Option<Need> {
    if path == Path::new("-") || !path.metadata().ok()?.is_file() {
        return None;
    }
    let (mut records, total) = input::open(path, format, fit).ok()?;
    let mut need = Need { records: 0, extent_bytes: 0, precision: Precision::Exact };
    while let Some(record) = records.next() {
        if let Ok(record) = record {
            need.records += 1;
            need.extent_bytes += config.record_space(record.key.len(), record.value.len());
        }
        let (read, total) = (records.bytes_read(), total?);
        if read >= SURVEY_BYTES && read < total {
            let scaled = |part: u64| (u128::from(part) * u128::from(total) / u128::from(read)) as u64;
            let (records, extent_bytes) = (scaled(need.records), scaled(need.extent_bytes));
            return Some(Need { records, extent_bytes, precision: Precision::Estimate });
        }
    }
    Some(need)
}

/// What is said before records are stored in the table at `url` that have no room there, unless their keys are in it
/// already. `None` if they have room. `origin` is the table that a larger one would be a copy of.
pub fn warning(
    what: &str,
    need: Need,
    (origin, url): (&Url, &Url),
    config: &TableConfig,
    stat: &Stat,
) -> Option<String> {
    let (table, space) = (&stat.table, &stat.table.space);
    let entries_free = (table.capacity * FILL_PERCENT / 100).saturating_sub(table.entries);
    let space_free = space.total_bytes.saturating_sub(space.place_bytes);
    let about = if need.precision == Precision::Estimate { "about " } else { "" };
    let lacks = if need.records > entries_free {
        let (records, free) = (counted(need.records, "record"), count(entries_free));
        format!("{what} has {about}{records}, and {url} has room for {free} more")
    } else if need.extent_bytes > space_free {
        let (wanted, free) = (units::bytes(need.extent_bytes), units::bytes(space_free));
        format!("the large records of {what} need {about}{wanted}, and {url} has {free} for more of them")
    } else {
        return None;
    };
    let live_bytes = space.place_bytes.saturating_add(need.extent_bytes);
    // Half as much again, as a record is written before the one it replaces is freed.
    let extent_bytes = live_bytes.saturating_add(live_bytes / 2);
    let larger = larger((origin, url), config, table.entries + need.records, extent_bytes);
    Some(format!("{lacks}; unless many of their keys are in it already, it becomes full on the way; {larger}"))
}

/// What to do when the table at `url` has no room for one more record, of `record_bytes` if it is the extent space that
/// is full; `origin` is the table to make a larger copy of, and has so many `entries`.
pub fn advice((origin, url): (&Url, &Url), config: &TableConfig, entries: u64, record_bytes: Option<u64>) -> String {
    let capacity = config.capacity().max(entries);
    let extent_bytes = config.extent_bytes();
    let (capacity, extent_bytes) = match record_bytes {
        None if extent_bytes <= LEAST_EXTENT_BYTES => (capacity.saturating_mul(2), extent_bytes),
        None => (capacity.saturating_mul(2), extent_bytes.saturating_mul(2)),
        Some(bytes) => (capacity, extent_bytes.saturating_mul(2).saturating_add(bytes.saturating_mul(3))),
    };
    larger((origin, url), config, capacity, extent_bytes)
}

/// The commands that make a table for `capacity` keys beside the one at `url`, and copy what is in `origin`.
fn larger((origin, url): (&Url, &Url), config: &TableConfig, capacity: u64, extent_bytes: u64) -> String {
    let mut size = format!("--capacity {}", units::rounded_up(capacity));
    if config.format != (EntryFormat::Bytes { inline_bytes: 64 }) {
        size.push_str(&format!(" --entry {}", config.format));
    }
    if config.format.has_extents() && extent_bytes > LEAST_EXTENT_BYTES {
        size.push_str(&format!(" --extent-bytes {}MiB", extent_bytes.div_ceil(1 << 20)));
    }
    if url.to_string().starts_with("tcp://") {
        return format!(
            "serve a larger table (guira serve {size}) and fill it by: guira copy {origin} tcp://HOST:PORT"
        );
    }
    format!("make and fill a larger table by: guira create {url}-2 {size} && guira copy {origin} {url}-2")
}

#[cfg(test)]
mod tests {
    use guira::{CreateOptions, Store};
    use guira_input::Notation;

    use super::*;

    fn with_table(name: &str, capacity: u64, test: impl FnOnce(&Store)) {
        let url: Url = format!("shm://guira-room-{name}-{}", std::process::id()).parse().unwrap();
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

    fn said(store: &Store, file: &Path) -> Option<String> {
        let config = store.table().config();
        let fit = Fit::new(config.format, Notation::Bytes).unwrap();
        let need = survey(file, None, fit, config).expect("a file can be surveyed");
        warning("the file", need, (store.url(), store.url()), config, &store.stat().unwrap())
    }

    #[test]
    fn records_without_room_are_announced() {
        with_table("lacks", 1_000, |store| {
            assert_eq!(said(store, lines(1_000, 8).path()), None);
            let warning = said(store, lines(2_000, 8).path()).expect("the table has 1,152 entries");
            assert!(warning.starts_with("the file has 2,000 records, and shm://guira-room-lacks-"), "{warning}");
            assert!(warning.contains("--capacity 2_000 &&") && warning.contains("guira copy shm://"), "{warning}");
            let warning = said(store, lines(1_000, 10_000).path()).expect("4 MiB are too little for 10 MB");
            assert!(
                warning.starts_with("the large records of the file need ") && warning.contains("MiB &&"),
                "{warning}"
            );
        });
    }

    #[test]
    fn what_is_recommended_for_a_full_table_is_larger() {
        with_table("advice", 1_000, |store| {
            let (config, url) = (store.table().config(), store.url());
            let said = |entries, record_bytes| advice((url, url), config, entries, record_bytes);
            assert!(said(0, None).contains("--capacity 2_100 &&"), "{}", said(0, None));
            assert!(said(50_000, None).contains("--capacity 100_000 &&"), "{}", said(50_000, None));
            let large = said(0, Some(1 << 20));
            assert!(large.contains("--capacity 1_100 --extent-bytes 11MiB &&"), "{large}");
        });
    }

    #[test]
    fn pipes_are_not_read_before() {
        with_table("pipe", 10, |store| {
            let fit = Fit::new(store.table().config().format, Notation::Bytes).unwrap();
            assert_eq!(survey(Path::new("-"), None, fit, store.table().config()), None);
            assert_eq!(survey(Path::new("/dev/null"), None, fit, store.table().config()), None);
        });
    }
}
