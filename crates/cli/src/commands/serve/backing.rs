//! What `guira serve` serves: memory of its own, or a table with a name, which it creates if there is none.

use std::fmt;
use std::str::FromStr;

use guira::layout::{ConfigError, PresetOptions, TableConfig};
use guira::{CreateOptions, EntryFormat, Preset, Store, Url, UrlError};

use super::Arguments;
use crate::commands::create;
use crate::failure::Failure;
use crate::output::Output;
use crate::units::count;

/// The word for memory of this process.
const MEMORY: &str = "memory";
/// How a new table stores keys and values, unless asked otherwise: as `guira create`.
const DEFAULT_FORMAT: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };

/// Where a served table is.
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
pub struct Backed {
    pub store: Store,
    /// Where it is, as the user wrote it.
    pub name: String,
    /// Whether it was created just now.
    pub is_new: bool,
    /// What was asked of a new table, and this one does not have.
    pub differences: Vec<String>,
}

impl Backed {
    /// Opens the table, or creates it.
    pub fn prepare(arguments: &Arguments, output: &Output) -> Result<Backed, Failure> {
        let (url, name) = (&arguments.backing.0, arguments.backing.to_string());
        if !url.is_unnamed() {
            match Store::open(url) {
                Ok(store) => return Backed::existing(store, name, arguments),
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let store = match create::create(url, &arguments.create_options(&name)?, output) {
            // Somebody else was faster.
            Err(Failure::Taken { .. }) => return Backed::existing(Store::open(url)?, name, arguments),
            created => created?,
        };
        Ok(Backed { store, name, is_new: true, differences: Vec::new() })
    }

    fn existing(store: Store, name: String, arguments: &Arguments) -> Result<Backed, Failure> {
        let differences = differences(store.table().config(), &name, arguments)
            .map_err(|error| Failure::Misuse(format!("{error}; nothing was changed")))?;
        Ok(Backed { store, name, is_new: false, differences })
    }
}

impl Arguments {
    fn create_options(&self, name: &str) -> Result<CreateOptions, Failure> {
        let Some(capacity) = self.capacity else {
            let what = if self.backing.0.is_unnamed() { "a table in memory" } else { name };
            let message = format!("{what} has to be created: say how many keys it must hold with --capacity N");
            return Err(Failure::Misuse(format!("{message}; nothing was changed")));
        };
        let mut options = CreateOptions::new(capacity).format(self.entry.unwrap_or(DEFAULT_FORMAT));
        options = options.preset(self.preset.unwrap_or(Preset::Hardened));
        options = self.space.apply(options);
        if let Some(clients) = self.max_clients {
            options = options.max_clients(clients);
        }
        Ok(options)
    }
}

/// What was asked for, and the table `found` does not have. What was not asked for is as it is.
fn differences(found: &TableConfig, name: &str, arguments: &Arguments) -> Result<Vec<String>, ConfigError> {
    let preset = arguments.preset.unwrap_or(Preset::Hardened);
    let options = PresetOptions {
        capacity: arguments.capacity.unwrap_or(1),
        format: arguments.entry.unwrap_or(found.format),
        extent_bytes: arguments.space.extent_bytes,
        max_clients: arguments.max_clients,
        hash_seed: 0,
        device_bytes: u64::MAX,
    };
    let asked = preset.config(&options)?;
    let mut differences = Vec::new();
    let mut compare = |option: Option<&str>, what: &str, asked: String, found: String| {
        if let Some(option) = option.filter(|_| asked != found) {
            let both = format!("{what} {found}, not {asked} as {option} would have made it");
            differences.push(format!("{name} exists and is served as it is: {both}"));
        }
    };
    let given = |is_given: bool, option| is_given.then_some(option);
    let is_sized = arguments.capacity.is_some();
    compare(given(is_sized, "--capacity"), "rows are", count(asked.rows), count(found.rows));
    let is_formatted = arguments.entry.is_some();
    compare(given(is_formatted, "--entry"), "its format is", asked.format.to_string(), found.format.to_string());
    let extents = |config: &TableConfig| count(config.chunks * config.chunk_bytes);
    let has_extents = arguments.space.extent_bytes.is_some();
    compare(given(has_extents, "--extent-bytes"), "bytes for extents are", extents(&asked), extents(found));
    let clients = |config: &TableConfig| count(config.max_clients.into());
    let is_bounded = arguments.max_clients.is_some();
    compare(given(is_bounded, "--max-clients"), "client slots are", clients(&asked), clients(found));
    let shape =
        |config: &TableConfig| format!("{}/{}/{}", config.checksum.name(), config.version_bits, config.rows_per_lock);
    let is_preset = arguments.preset.is_some();
    compare(given(is_preset, "--preset"), "checksum, version bits and rows per lock are", shape(&asked), shape(found));
    Ok(differences)
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
    fn places_are_shown_as_they_are_written() {
        for text in ["memory", "shm://cache", "file:///var/tmp/cache"] {
            assert_eq!(text.parse::<Backing>().unwrap().to_string(), text);
        }
        assert_eq!(Backing::default().to_string(), "memory");
        assert!("memory://".parse::<Backing>().is_err() && "cache".parse::<Backing>().is_err());
    }

    #[test]
    fn what_differs_is_what_was_asked_for() {
        let options = |preset: Preset, capacity| {
            let format = EntryFormat::Bytes { inline_bytes: 64 };
            let (extent_bytes, max_clients) = (Some(1 << 26), Some(40));
            let options =
                PresetOptions { capacity, format, extent_bytes, max_clients, hash_seed: 9, device_bytes: u64::MAX };
            preset.config(&options).unwrap()
        };
        let found = options(Preset::Hardened, 10_000);
        let told = |line: &str| differences(&found, "shm://a", &parsed(line)).unwrap();
        for same in
            ["", "--capacity 10000", "--entry bytes:64 --max-clients 40", "--extent-bytes 64MiB --preset hardened"]
        {
            assert_eq!(told(same), Vec::<String>::new(), "{same}");
        }
        for (line, option, wanted) in [
            ("--capacity 1M", "--capacity", "rows"),
            ("--entry fixed:8:8", "--entry", "bytes:64, not fixed:8:8"),
            ("--extent-bytes 1GiB", "--extent-bytes", "67,108,864, not 1,073,741,824"),
            ("--max-clients 41", "--max-clients", "40, not 41"),
            ("--preset paper", "--preset", "checksum"),
        ] {
            let [difference] = &told(line)[..] else { panic!("{line}: {:?}", told(line)) };
            assert!(difference.contains(option) && difference.contains(wanted), "{line}: {difference}");
        }
        assert!(differences(&found, "shm://a", &parsed("--capacity 0")).is_err());
    }

    #[test]
    fn a_new_table_needs_a_capacity() {
        for line in ["", "--backing shm://a"] {
            let error = parsed(line).create_options("shm://a").unwrap_err().to_string();
            assert!(error.contains("--capacity N"), "{error}");
        }
        assert!(parsed("--capacity 1k").create_options("memory").is_ok());
    }
}
