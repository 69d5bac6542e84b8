//! The table that `guira serve` serves: in its own memory, or one with a name, which it creates if there is none.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

use guira::errors::UrlError;
use guira::{CreateOptions, EntryFormat, Error, OpenError, OpenOptions, Preset, Store, Url};

use super::Arguments;
use crate::commands::{create, owner};
use crate::failure::Failure;
use crate::output::Output;
use crate::units::{bytes, count, rounded_down};

/// Bytes of the unit in which the memory of a file is counted.
const BLOCK_BYTES: u64 = 512;
/// The word for the memory of this process.
const MEMORY: &str = "memory";
/// The default entry format of a new table, the same as in `guira create`.
const DEFAULT_FORMAT: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };

/// The location of a served table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing(Url);

impl Default for Backing {
    fn default() -> Backing {
        Backing(Url::unnamed())
    }
}

impl FromStr for Backing {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Backing, UrlError> {
        if text == MEMORY { Ok(Backing::default()) } else { text.parse().map(Backing) }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_unnamed() { f.write_str(MEMORY) } else { self.0.fmt(f) }
    }
}

/// A table that is about to be served.
pub struct ServedTable {
    pub store: Store,
    /// Its location, as the user wrote it.
    pub name: String,
    /// Whether it was created just now.
    pub is_new: bool,
    /// Options given for a new table that this one does not match.
    pub differences: Vec<String>,
}

impl ServedTable {
    /// Opens the table, or creates it.
    pub fn prepare(arguments: &Arguments, output: &Output) -> Result<ServedTable, Failure> {
        let (url, name) = (&arguments.backing.0, arguments.backing.to_string());
        let open = || owner::required(OpenOptions::default()).and_then(|options| Ok(Store::open_with(url, &options)?));
        if !url.is_unnamed() {
            match open() {
                Ok(store) => return ServedTable::existing(store, name, arguments),
                Err(Failure::Store(error)) if error.is_not_found() => {}
                Err(failure) => return Err(failure),
            }
        }
        let options = arguments.create_options(&name)?;
        arguments.refuse_beyond_limit(&options)?;
        let store = match create::create(url, &options, output) {
            // Another process created it first.
            Err(Failure::AlreadyExists { .. }) => return ServedTable::existing(open()?, name, arguments),
            created => created?,
        };
        Ok(ServedTable { store, name, is_new: true, differences: Vec::new() })
    }

    /// Whether the table was destroyed by another process.
    pub fn is_destroyed(&self) -> Result<bool, Failure> {
        Ok(!self.store.url().is_unnamed() && self.store.is_destroyed()?)
    }

    fn existing(store: Store, name: String, arguments: &Arguments) -> Result<ServedTable, Failure> {
        let mut differences = differences(&store, &name, arguments)?;
        if let (Some(most), Some(path)) = (arguments.max_memory, store.url().path()) {
            let file = fs::metadata(&path).map_err(Failure::host(format!("read the size of {}", path.display())))?;
            let stored = file.blocks() * BLOCK_BYTES;
            if stored > most {
                let (stored, most) = (bytes(stored), bytes(most));
                differences.push(format!(
                    "{name} exists and is served as it is: it has {stored} of memory already, not at most {most}"
                ));
            }
        }
        Ok(ServedTable { store, name, is_new: false, differences })
    }
}

impl Arguments {
    fn create_options(&self, name: &str) -> Result<CreateOptions, Failure> {
        let options = match (self.capacity, self.preset) {
            (Some(capacity), _) => CreateOptions::new(capacity),
            (None, Some(Preset::Paper)) => {
                let what = if self.backing.0.is_unnamed() { "a table in memory" } else { name };
                return Err(Failure::Misuse(format!(
                    "{what} must be created: give the number of keys with --capacity N, because tables of preset paper \
                     do not grow; nothing was changed"
                )));
            }
            (None, _) => CreateOptions::default(),
        };
        let format = self.entry.unwrap_or(DEFAULT_FORMAT);
        self.space.refuse_for(format)?;
        let mut options = options.format(format);
        options = options.preset(self.preset.unwrap_or(Preset::Hardened));
        options = self.space.apply(options);
        if let Some(clients) = self.max_clients {
            options = options.max_clients(clients);
        }
        Ok(self.max_capacity.into_iter().fold(options, CreateOptions::max_capacity))
    }

    /// Refuses to create a table that takes more memory from the start than it may.
    fn refuse_beyond_limit(&self, options: &CreateOptions) -> Result<(), Failure> {
        // Options of no table are refused when it is created.
        let (Some(most), Ok(needed)) = (self.max_memory, options.memory_bytes()) else { return Ok(()) };
        if needed <= most {
            return Ok(());
        }
        let remedy = match options.capacity_within(most) {
            Some(keys) if self.max_capacity.is_none() && self.capacity.is_some() => {
                format!("there is room for {} keys", count(rounded_down(keys)))
            }
            _ => "allow more, or create it for fewer keys or clients".to_owned(),
        };
        Err(Failure::Misuse(format!(
            "the new table takes {} from the start, and --max-memory allows {}: {remedy}; nothing was changed",
            bytes(needed),
            bytes(most)
        )))
    }
}

/// Returns the given options that the table does not match. Options that were not given are not compared.
fn differences(store: &Store, name: &str, arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let found = store.table().config();
    let mut options =
        CreateOptions::new(arguments.capacity.unwrap_or(1)).format(arguments.entry.unwrap_or(found.format));
    options = options.preset(arguments.preset.or_else(|| Preset::of(found)).unwrap_or_default());
    options = arguments.space.apply(options);
    if let Some(clients) = arguments.max_clients {
        options = options.max_clients(clients);
    }
    options = arguments.max_capacity.into_iter().fold(options, CreateOptions::max_capacity);
    match store.ensure_fits(&options) {
        Ok(()) => Ok(Vec::new()),
        Err(Error::Open(OpenError::Mismatch { mismatches, .. })) => {
            Ok(mismatches.iter().map(|mismatch| format!("{name} exists and is served as it is: {mismatch}")).collect())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parsed(line: &str) -> Arguments {
        Line::try_parse_from(format!("serve {line}").split_whitespace())
            .unwrap_or_else(|error| panic!("{error}"))
            .arguments
    }

    #[test]
    fn backings_are_shown_as_they_are_written() {
        for text in ["memory", "shm://cache", "file:///var/tmp/cache"] {
            assert_eq!(text.parse::<Backing>().unwrap().to_string(), text);
        }
        assert_eq!(Backing::default().to_string(), "memory");
        assert!("memory://".parse::<Backing>().is_err() && "cache".parse::<Backing>().is_err());
    }

    #[test]
    fn only_given_options_are_compared() {
        let options = CreateOptions::new(10_000).extent_bytes(1 << 26).max_clients(40);
        let store = Store::create_unnamed(&options).unwrap();
        let differing = |line: &str| differences(&store, "shm://a", &parsed(line)).unwrap();
        for same in [
            "",
            "--capacity 10000",
            "--capacity 9k",
            "--entry bytes:64 --max-clients 40",
            "--extent-bytes 64MiB --preset hardened",
            "--record-bytes 100",
        ] {
            assert_eq!(differing(same), Vec::<String>::new(), "{same}");
        }
        for (line, wanted) in [
            ("--capacity 1M", "not for 1000000"),
            ("--entry fixed:8:8", "bytes:64, not fixed:8:8"),
            ("--extent-bytes 1GiB", "64.0 MiB for large records, not 1.0 GiB"),
            ("--capacity 10k --record-bytes 10KiB", "64.0 MiB for large records, not "),
            ("--max-clients 41", "40 client slots, not 41"),
            ("--preset paper", "its preset is hardened, not paper"),
        ] {
            let [difference] = &differing(line)[..] else { panic!("{line}: {:?}", differing(line)) };
            assert!(difference.starts_with("shm://a exists and is served as it is: "), "{line}: {difference}");
            assert!(difference.contains(wanted), "{line}: {difference}");
        }
        assert!(differences(&store, "shm://a", &parsed("--capacity 0")).is_err());
    }

    #[test]
    fn a_new_table_has_no_more_memory_than_it_may() {
        let refused = |line: &str| {
            let arguments = parsed(line);
            arguments.refuse_beyond_limit(&arguments.create_options("memory").unwrap()).err().map(|it| it.to_string())
        };
        for line in ["", "--max-memory 64MiB", "--capacity 1k --max-memory 8MiB", "--capacity 1M"] {
            assert_eq!(refused(line), None, "{line}");
        }
        for (line, remedy) in [
            ("--max-memory 1K", "allow more, or create it for fewer keys or clients; nothing was changed"),
            ("--capacity 1k --max-capacity 1M --max-memory 1K", "allow more, or create"),
            ("--capacity 1M --max-memory 8MiB", "and --max-memory allows 8.0 MiB: there is room for "),
        ] {
            assert!(refused(line).is_some_and(|said| said.contains(remedy)), "{line}: {:?}", refused(line));
        }
    }

    #[test]
    fn a_new_table_that_cannot_grow_needs_a_capacity() {
        for line in ["--preset paper", "--rdma a --preset paper", "--backing shm://a --preset paper"] {
            let error = parsed(line).create_options("shm://a").unwrap_err().to_string();
            assert!(error.contains("--capacity N, because tables of preset paper do not grow"), "{error}");
        }
        for line in [
            "",
            "--rdma a",
            "--rdma a --capacity 1k --max-capacity 1M",
            "--backing shm://a",
            "--capacity 1k",
            "--capacity 1k --preset paper",
        ] {
            assert!(parsed(line).create_options("memory").is_ok(), "{line}");
        }
    }
}
