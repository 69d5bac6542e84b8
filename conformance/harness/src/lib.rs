//! One harness for each decoder: a function that takes bytes, decodes them, and asserts what the decoder promises.
//!
//! A harness takes any bytes. It decodes them as they are, then corrects what chance would not get right (magic
//! numbers, checksums, lengths) as docs/layout.md says, so that the code behind those checks is reached as well. It
//! panics if a promise is broken: an access out of bounds, a value that does not encode to its source, a finder that
//! disagrees with a plain reading of the row. `fuzz/fuzz_targets` runs each harness under libFuzzer; the module
//! `decoders` of the conformance suite runs all of them, on every toolchain, on the same corpora and on mutated copies
//! of them.
//!
//! | harness | decodes | promises |
//! |---|---|---|
//! | `superblock` | superblock, configuration, table state | a decoded value encodes to the same words, respects every bound, and its areas do not overlap |
//! | `preset`, `names` | a user's parameters of a new table; names of formats, presets and checksums | a derived table is valid and holds what was requested; a name has one spelling |
//! | `row` | rows and entries, verified or not | finders agree with a plain reading; adding and removing an entry affects no other; a changed row verifies only in its place |
//! | `slot` | slot words, seals, redo records | a record is inside its slot and names only rows, entries, extents and marks of the table; a delta completes a row that is torn anywhere |
//! | `lock` | lock words of every width | the decoded owners agree with the bits; a release is exact; poison names no client |
//! | `extent`, `chunk` | extents, references to them, chunk words, size classes | an extent is inside its words, and its mark inside its chunk; slots do not overlap |
//! | `url` | table URLs, paths | a decoded URL is printed as it was written |
//! | `tsv`, `jsonl`, `debian` | the formats of `guira load` | an error names its line and spoils no later record; pieces, lost files and bounded lines change nothing else; decoded records can be written and read again |
//! | `wire` | frames of the TCP protocol | a decoded frame is inside its bytes and encodes to the same bytes |
#![forbid(unsafe_code)]

mod case;
mod extent;
mod feed;
mod load;
mod lock;
mod mutate;
mod names;
mod row;
mod slot;
mod superblock;
mod url;
mod wire;

pub use extent::{chunk, extent};
pub use load::{debian, jsonl, tsv};
pub use lock::lock;
pub use mutate::mutate;
pub use names::{names, preset};
pub use row::row;
pub use slot::slot;
pub use superblock::superblock;
pub use url::url;
pub use wire::wire;

/// A decoder's answer to an input. Both are correct; a harness that only ever gives one of them tests nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The input is a value.
    Accepted,
    /// The input is not a value.
    Refused,
}

impl Answer {
    fn of(accepted: bool) -> Answer {
        if accepted { Answer::Accepted } else { Answer::Refused }
    }
}

/// A seed of a corpus: its name and its bytes.
pub type Seed = (String, Vec<u8>);

/// A harness: its name, its function, and the seeds of its corpus.
#[derive(Clone, Copy)]
pub struct Harness {
    /// The name, which is also that of the fuzz target and of the corpus.
    pub name: &'static str,
    /// Decodes, and panics if a promise is broken.
    pub run: fn(&[u8]) -> Answer,
    /// Returns valid encodings and near misses.
    pub seeds: fn() -> Vec<Seed>,
}

/// Every harness.
pub const HARNESSES: [Harness; 13] = [
    Harness { name: "chunk", run: chunk, seeds: extent::chunk_seeds },
    Harness { name: "debian", run: debian, seeds: load::debian_seeds },
    Harness { name: "extent", run: extent, seeds: extent::extent_seeds },
    Harness { name: "jsonl", run: jsonl, seeds: load::jsonl_seeds },
    Harness { name: "lock", run: lock, seeds: lock::seeds },
    Harness { name: "names", run: names, seeds: names::name_seeds },
    Harness { name: "preset", run: preset, seeds: names::preset_seeds },
    Harness { name: "row", run: row, seeds: row::seeds },
    Harness { name: "slot", run: slot, seeds: slot::seeds },
    Harness { name: "superblock", run: superblock, seeds: superblock::seeds },
    Harness { name: "tsv", run: tsv, seeds: load::tsv_seeds },
    Harness { name: "url", run: url, seeds: url::seeds },
    Harness { name: "wire", run: wire, seeds: wire::seeds },
];
