//! A table that exists, compared with what was asked for.

use std::fmt;

use guira_fabric::ByteCount;
use guira_layout::{EntryFormat, Preset, TableConfig};

use crate::CreateOptions;

/// One thing in which a table is not as it was asked for: [`crate::OpenError::Mismatch`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// Keys and values are stored otherwise: what the program puts there may be of lengths that do not fit.
    Format {
        /// The format asked for.
        asked: EntryFormat,
        /// The table's.
        found: EntryFormat,
    },
    /// The table has room for fewer keys.
    Capacity {
        /// Keys there was to be room for.
        asked: u64,
        /// Keys the table has room for, filled to the same degree.
        found: u64,
    },
    /// The table started from other parameters.
    Preset {
        /// The preset asked for.
        asked: Preset,
        /// The table's, or `None` if this program has none like it.
        found: Option<Preset>,
    },
    /// There is less memory for values that do not fit in a row.
    ExtentBytes {
        /// Bytes asked for.
        asked: u64,
        /// Bytes the table has.
        found: u64,
    },
    /// Fewer clients can have the table open at once.
    MaxClients {
        /// Clients asked for.
        asked: u16,
        /// Client slots the table has.
        found: u16,
    },
    /// Keys are hashed with another seed.
    Seed {
        /// The seed asked for.
        asked: u64,
        /// The table's.
        found: u64,
    },
    /// Changes leave redo records where they were to leave none, or the other way round: without them nobody can
    /// complete the changes of a client that is killed.
    CommitRecords {
        /// Whether changes were to leave them.
        asked: bool,
        /// Whether they do.
        found: bool,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keeps = |keeps: &bool| if *keeps { "leave" } else { "leave no" };
        match self {
            Mismatch::Format { asked, found } => write!(f, "its entry format is {found}, not {asked}"),
            Mismatch::Capacity { asked, found } => write!(f, "it has room for {}, not for {asked}", keys(*found)),
            Mismatch::Preset { asked, found: Some(found) } => write!(f, "its preset is {found}, not {asked}"),
            Mismatch::Preset { asked, found: None } => {
                write!(f, "its parameters are those of no preset, not of {asked}")
            }
            Mismatch::ExtentBytes { asked, found } => {
                write!(f, "it has {} for large records, not {}", ByteCount(*found), ByteCount(*asked))
            }
            Mismatch::MaxClients { asked, found } => {
                write!(f, "it has {found} client slot{}, not {asked}", if *found == 1 { "" } else { "s" })
            }
            Mismatch::Seed { asked, found } => write!(f, "its hash seed is {found}, not {asked}"),
            Mismatch::CommitRecords { asked, found } => {
                write!(f, "its changes {} redo records, but were to {} redo records", keeps(found), keeps(asked))
            }
        }
    }
}

fn keys(count: u64) -> String {
    format!("{count} key{}", if count == 1 { "" } else { "s" })
}

/// Several of them in one sentence.
pub(crate) fn sentence(mismatches: &[Mismatch]) -> String {
    mismatches.iter().map(Mismatch::to_string).collect::<Vec<_>>().join(", and ")
}

/// Everything in which a table with the parameters `found` is not what `options` ask for; `asked` is what a new table
/// would have. Numbers that bound what the table can do may be larger than asked for: a program that needs room for
/// some keys is served by room for more, and rows come in groups, so that equality would depend on their size. What
/// decides how bytes are read (format, preset, seed) has to be equal.
pub(crate) fn mismatches(options: &CreateOptions, asked: &TableConfig, found: &TableConfig) -> Vec<Mismatch> {
    let preset = Preset::of(found);
    let records = (asked.rules.commit_records, found.rules.commit_records);
    let mut all = Vec::new();
    if options.format != found.format {
        all.push(Mismatch::Format { asked: options.format, found: found.format });
    }
    if options.capacity > found.capacity() {
        all.push(Mismatch::Capacity { asked: options.capacity, found: found.capacity() });
    }
    if preset != Some(options.preset) {
        all.push(Mismatch::Preset { asked: options.preset, found: preset });
    } else if records.0 != records.1 {
        // Those of another preset follow from it.
        all.push(Mismatch::CommitRecords { asked: records.0, found: records.1 });
    }
    let extent_bytes = options.extent_bytes.or_else(|| options.record_bytes.map(|_| asked.extent_bytes()));
    let extent_bytes = extent_bytes.filter(|asked| options.format.has_extents() && *asked > found.extent_bytes());
    all.extend(extent_bytes.map(|asked| Mismatch::ExtentBytes { asked, found: found.extent_bytes() }));
    let clients = options.max_clients.filter(|asked| *asked > found.max_clients);
    all.extend(clients.map(|asked| Mismatch::MaxClients { asked, found: found.max_clients }));
    let seed = options.seed.filter(|asked| *asked != found.hash_seed);
    all.extend(seed.map(|asked| Mismatch::Seed { asked, found: found.hash_seed }));
    all
}
