//! Comparison of an existing table with the options that were asked for.

use std::fmt;

use guira_fabric::ByteCount;
use guira_layout::{EntryFormat, Preset, TableConfig};

use crate::CreateOptions;
use crate::options::Growth;

/// One difference between an existing table and the options: [`crate::OpenError::Mismatch`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// The entry format differs: keys or values of the program may have lengths that do not fit.
    Format {
        /// The format asked for.
        asked: EntryFormat,
        /// The table's format.
        found: EntryFormat,
    },
    /// The table has room for too few keys, also when it has grown as far as it may.
    Capacity {
        /// Keys that the table should have room for: the capacity, or that to which it may grow.
        asked: u64,
        /// Keys that the table can have room for, at the fill of its preset.
        found: u64,
    },
    /// The preset differs.
    Preset {
        /// The preset asked for.
        asked: Preset,
        /// The table's preset, or `None` if its parameters are those of no preset that this program knows.
        found: Option<Preset>,
    },
    /// The table has too little space for values that do not fit in a row.
    ExtentBytes {
        /// Bytes asked for.
        asked: u64,
        /// Bytes the table has.
        found: u64,
    },
    /// Too few clients can have the table open at once.
    MaxClients {
        /// Clients asked for.
        asked: u16,
        /// Client slots the table has.
        found: u16,
    },
    /// The hash seed differs.
    Seed {
        /// The seed asked for.
        asked: u64,
        /// The table's seed.
        found: u64,
    },
    /// Only one of the two has redo records: without them, the changes of a client that is killed cannot be completed.
    CommitRecords {
        /// Whether redo records were asked for.
        asked: bool,
        /// Whether the table has them.
        found: bool,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = |kept: &bool| if *kept { "keeps redo records" } else { "keeps no redo records" };
        match self {
            Mismatch::Format { asked, found } => write!(f, "its entry format is {found}, not {asked}"),
            Mismatch::Capacity { asked, found } => write!(f, "it has room for {}, not for {asked}", keys(*found)),
            Mismatch::Preset { asked, found: Some(found) } => write!(f, "its preset is {found}, not {asked}"),
            Mismatch::Preset { asked, found: None } => {
                write!(f, "its parameters are of no known preset, not of {asked}")
            }
            Mismatch::ExtentBytes { asked, found } => {
                write!(f, "it has {} for large records, not {}", ByteCount(*found), ByteCount(*asked))
            }
            Mismatch::MaxClients { asked, found } => {
                write!(f, "it has {found} client slot{}, not {asked}", if *found == 1 { "" } else { "s" })
            }
            Mismatch::Seed { asked, found } => write!(f, "its hash seed is {found}, not {asked}"),
            Mismatch::CommitRecords { asked, found } => {
                write!(f, "it {}, but should {}", kept(found), if *asked { "keep them" } else { "keep none" })
            }
        }
    }
}

fn keys(count: u64) -> String {
    format!("{count} key{}", if count == 1 { "" } else { "s" })
}

/// Joins the differences into one sentence.
pub(crate) fn sentence(mismatches: &[Mismatch]) -> String {
    mismatches.iter().map(Mismatch::to_string).collect::<Vec<_>>().join(", and ")
}

/// Returns all differences between a table with the parameters `found` and `options`; `asked` are the parameters of a
/// new table. Bounds on what the table can hold may be larger than asked for: a program that needs room for some keys
/// is served by room for more, and rows come in groups, so that equality would depend on their size. Parameters that
/// decide how bytes are interpreted (format, preset, seed) have to be equal.
pub(crate) fn mismatches(options: &CreateOptions, asked: &TableConfig, found: &TableConfig) -> Vec<Mismatch> {
    let preset = Preset::of(found);
    let records = (asked.rules.commit_records, found.rules.commit_records);
    let mut all = Vec::new();
    if options.format != found.format {
        all.push(Mismatch::Format { asked: options.format, found: found.format });
    }
    let room = found.max_capacity();
    let keys = match options.growth {
        Growth::None => options.capacity,
        Growth::To(keys) => keys,
        // As many as there happen to be.
        Growth::Machine => 0,
    };
    if keys > room {
        all.push(Mismatch::Capacity { asked: keys, found: room });
    }
    if preset != Some(options.preset) {
        all.push(Mismatch::Preset { asked: options.preset, found: preset });
    } else if records.0 != records.1 {
        // The redo records of another preset follow from it.
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
