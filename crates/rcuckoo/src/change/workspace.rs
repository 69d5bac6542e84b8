//! A client's working memory for changes: reused buffers, cached rows, and the progress of the current change.

use guira_layout::{Generation, Record, RowId};

use super::Stage;
use super::full_rows::FullRows;
use super::search::{SEARCH_ROWS, Search};
use super::window::Window;
use crate::locks::SeenKey;
use crate::{Buffer, ClientConfig, ErrorKind, MAX_LOCKS, Table};

/// Rows under locks for which a client has memory from the start: both of a key and a path. The rows that
/// `Synchronize::Locks` adds cost an allocation the first time.
const WINDOW_ROWS: usize = MAX_LOCKS;
/// Verbs for which a client's batch has memory from the start: releases, tries and READs for every lock word, which is
/// more than a commit needs. Only the WRITEs of a long value are added to this.
const BATCH_VERBS: usize = 3 * MAX_LOCKS;

/// Buffers in which changes are made. Nothing in them outlives the change that put it there.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Both rows of the key.
    pub(crate) pair: Vec<u64>,
    /// Rows that are locked, or were sampled together with locked ones.
    pub(crate) window: Window,
    /// The entry to be written.
    pub(crate) entry: Vec<u64>,
    /// The head, or all, of an extent with the key's digest.
    pub(crate) extent: Vec<u64>,
    /// Rows of a segment that is split, and of the one that it is split into.
    pub(crate) segments: [Vec<u64>; 2],
    pub(crate) record: Record,
    pub(crate) buffer: Buffer,
}

impl Workspace {
    pub(crate) fn new(table: &Table) -> Workspace {
        let row_words = table.rows().row_words();
        Workspace {
            pair: vec![0; 2 * row_words],
            window: Window::new(row_words, WINDOW_ROWS),
            entry: vec![0; table.rows().entry_words()],
            extent: Vec::new(),
            segments: [Vec::new(), Vec::new()],
            record: Record::default(),
            buffer: Buffer::with_capacity(BATCH_VERBS),
        }
    }
}

/// The state of path searches.
#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) search: Search,
    /// Rows that were sampled for a search, without locks or before they were released; emptied before the next one.
    pub(crate) sampled: Window,
    /// The parts of the map of full rows that the search has read.
    pub(crate) full: FullRows,
    /// Rows to be locked.
    pub(crate) plan: Vec<RowId>,
}

impl Paths {
    pub(crate) fn new(config: &ClientConfig, row_words: usize) -> Paths {
        Paths {
            search: Search::new(config.search, config.seed),
            sampled: Window::new(row_words, SEARCH_ROWS),
            full: FullRows::default(),
            plan: Vec::with_capacity(WINDOW_ROWS),
        }
    }
}

/// The progress of a change, and how long the next one has waited.
#[derive(Debug, Default)]
pub(crate) struct ChangeProgress {
    /// The stage that the change had reached when its first attempt began.
    pub(crate) stage: Stage,
    /// The extent that the change has written; no other ever has this generation. [R-EXTENT-3]
    pub(crate) written: Option<Generation>,
    /// Whether the change has posted its commit.
    pub(crate) committed: bool,
    /// The sum that the last addition stored.
    pub(crate) sum: u64,
    /// How many more segments the change may split.
    pub(crate) splits_left: u32,
    /// The reason why the change splits no segment.
    pub(crate) unsplit: Option<ErrorKind>,
    /// The key of the change as it was sampled when a lock of it was found taken.
    pub(crate) seen: Option<SeenKey>,
    /// Time since which the change has waited for a lock.
    pub(crate) waiting_since_ns: Option<u64>,
    /// Time since which the next change has waited in a lock queue.
    pub(crate) queued_since_ns: Option<u64>,
}
