//! Tables that hold a number of records: filled once, in place, by the protocol itself, and copied for each run that
//! starts from them.
//!
//! Invariants: a table's bytes follow from its parameters, its seed and the number of its records. Records are stored
//! in rounds, so that all rows fill up at the same pace, as they do if keys arrive in random order; within a round they
//! are stored in the order of their primary rows, so that memory is visited in order and not at random. Values that do
//! not fit in a row are in extents, whose chunks are left without an owner.

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use guira_extents::Extents;
use guira_fabric::heap::{HeapLane, HeapRegion};
use guira_fabric::{Caps, FabricError, Profile, Region};
use guira_layout::{EntryKind, Geometry, Secret, Superblock, TableConfig, encode_extent};
use guira_rcuckoo::{
    Acquisition, CacheFill, Change, Client, ClientConfig, Error, ErrorKind, FormatError, InsertRow, NewValue, Outcome,
    RowList, SlotClient, Synchronize, Table, claim_slot, format_table, release_slot,
};

use super::records::{LOADED, Records, ValueError};

/// Rounds in which a table is filled.
const ROUNDS: u64 = 16;
/// Rows whose records are stored one after the other: their bytes, and those of their neighbours, fit in a core's
/// cache.
const ROWS_TOGETHER: u64 = 1_024;
/// Records whose rows are prefetched ahead of the one that is being stored.
const AHEAD_RECORDS: usize = 8;
/// Records between two calls of the progress function.
const PROGRESS_RECORDS: u64 = 1 << 20;
/// One in this many records may find no room. By the printed offset rule a tenth of the keys has one row only, and no
/// entry can be moved out of a row that is full of them: large tables have a few such rows long before they are full.
const RECORDS_PER_ABSENT: u64 = 1_000;
/// The slot of the client that fills the table.
const FILLER_SLOT: u16 = 0;

/// The parameters of a filled table.
#[derive(Clone, Debug, PartialEq)]
pub struct FillPlan {
    /// The table's parameters.
    pub config: TableConfig,
    /// The guarantees that the table's memory gives to the clients of a run.
    pub caps: Caps,
    /// Records in the table, numbered from 0.
    pub records: u64,
    /// Bytes of a value; `None` stands for the values of a fixed format, and for 8 bytes otherwise.
    pub value_bytes: Option<usize>,
    /// The row that a record goes to if both of its rows have a free entry; `None` stands for the one that clients on
    /// memory with `caps` choose, if they have no predictor. [R-INSERT-1]
    pub insert_row: Option<InsertRow>,
    /// Seed of the table's random numbers.
    pub seed: u64,
}

/// A table that holds records `0..count`, in memory of its own.
#[derive(Clone)]
pub struct FilledTable {
    region: HeapRegion,
    table: Arc<Table>,
    records: Records,
    count: u64,
    /// The records below `count` that found no room, in ascending order.
    absent: Vec<u64>,
}

/// The reason why a table was not filled or copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FillError {
    /// The machine has too little free memory. Nothing was allocated.
    #[error("the table needs {needed_bytes} bytes of memory, but only {available_bytes} are available")]
    Memory {
        /// Bytes that the table and the order of its records take.
        needed_bytes: u64,
        /// Bytes that the machine has available.
        available_bytes: u64,
    },
    /// The table's parameters are impossible.
    #[error("no table has these parameters: {0}")]
    Config(String),
    /// The table cannot hold values of this length.
    #[error(transparent)]
    Values(#[from] ValueError),
    /// The table's keys are too short for that many records.
    #[error("keys of {format} name only {most} records, not {records}")]
    Keys {
        /// The table's format.
        format: String,
        /// Records with keys of their own.
        most: u64,
        /// The records asked for.
        records: u64,
    },
    /// A record could not be stored.
    #[error("record {record} of {records} was not stored: {reason}")]
    Record {
        /// The record.
        record: u64,
        /// The records asked for.
        records: u64,
        /// The error of the protocol.
        reason: String,
    },
    /// A record found no room, after many others.
    #[error("record {record} of {records} found no room")]
    NoRoom {
        /// The record.
        record: u64,
        /// The records asked for.
        records: u64,
    },
    /// The table's memory refused a batch.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The progress function stopped it.
    #[error("stopped on request")]
    Stopped,
}

/// A progress function, which gets the number of records that are stored; `Break` stops the filling there.
pub type FillProgress<'p> = &'p mut dyn FnMut(u64) -> ControlFlow<()>;

impl FillPlan {
    /// Returns the bytes of memory that the filled table takes while it is being filled.
    ///
    /// # Errors
    /// The parameters are impossible.
    pub fn needed_bytes(&self) -> Result<u64, FillError> {
        let order_bytes = self.records.div_ceil(ROUNDS) * size_of::<u32>() as u64;
        Ok(table_bytes(&self.geometry()?) + order_bytes)
    }

    /// Returns the table, without its memory.
    ///
    /// # Errors
    /// The parameters are impossible.
    pub fn table(&self) -> Result<Arc<Table>, FillError> {
        let secret = Secret(std::array::from_fn(|index| self.seed ^ 0x33 ^ (index as u64) << 32));
        let (incarnation, table) = (self.seed ^ 0x11, self.seed ^ 0x22);
        let superblock = Superblock { incarnation, table, secret, config: self.config.clone() };
        Table::new(superblock).map_err(|error| FillError::Config(error.to_string()))
    }

    fn geometry(&self) -> Result<Geometry, FillError> {
        Geometry::new(&self.config).map_err(|error| FillError::Config(error.to_string()))
    }
}

fn table_bytes(geometry: &Geometry) -> u64 {
    geometry.main_bytes() + geometry.device_bytes()
}

impl FilledTable {
    /// Creates a table, and stores its records.
    ///
    /// # Errors
    /// Any [`FillError`].
    pub fn new(plan: &FillPlan, progress: FillProgress<'_>) -> Result<FilledTable, FillError> {
        require_memory(plan.needed_bytes()?)?;
        let geometry = plan.geometry()?;
        let format = plan.config.format;
        let records = Records::of(format, plan.value_bytes)?;
        if plan.records > records.max().min(u64::from(u32::MAX)) {
            let most = records.max().min(u64::from(u32::MAX));
            return Err(FillError::Keys { format: format.to_string(), most, records: plan.records });
        }
        let table = plan.table()?;
        let region = HeapRegion::new(geometry.main_bytes(), geometry.device_bytes(), plan.caps);
        let filled = FilledTable { region, table, records, count: plan.records, absent: Vec::new() };
        let local = filled.region.with_caps(Profile::Shm.caps());
        ready(format_table(&mut local.lane(), &filled.table, |_| ControlFlow::Continue(()))).map_err(|error| {
            match error {
                FormatError::Fabric(error) => FillError::Fabric(error),
                FormatError::Stopped => FillError::Stopped,
            }
        })?;
        let absent = Filler::open(&filled, &local, plan)?.fill(progress)?;
        Ok(FilledTable { absent, ..filled })
    }

    /// Copies the table to memory of its own, with all of its records.
    ///
    /// # Errors
    /// [`FillError::Memory`].
    pub fn fork(&self) -> Result<FilledTable, FillError> {
        require_memory(table_bytes(self.table.geometry()))?;
        Ok(FilledTable { region: self.region.copied(), ..self.clone() })
    }

    /// Returns the rows that the table has: fewer than it has addresses for, if it grows.
    ///
    /// # Errors
    /// The table's memory refused a batch.
    pub fn rows(&self) -> Result<RowList, FillError> {
        Ok(ready(RowList::read(&mut self.region.with_caps(Profile::Shm.caps()).lane(), &self.table))?)
    }

    /// Returns the table's memory.
    pub fn region(&self) -> &HeapRegion {
        &self.region
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Returns the format of the records.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Returns the number of records with which the table was filled, those that found no room included.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the records that found no room when the table was filled, in ascending order: hardly any.
    pub fn absent(&self) -> &[u64] {
        &self.absent
    }
}

/// The client that fills a table.
struct Filler<'f> {
    filled: &'f FilledTable,
    client: Client,
    lane: HeapLane,
    /// Space for values that do not fit in a row.
    extents: Extents,
    encoded: Vec<u64>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'f> Filler<'f> {
    fn open(filled: &'f FilledTable, local: &HeapRegion, plan: &FillPlan) -> Result<Filler<'f>, FillError> {
        let mut lane = local.lane();
        let claimed = ready(claim_slot(&mut lane, &filled.table, FILLER_SLOT, &SlotClient::default()))?;
        let owner = claimed.ok_or_else(|| FillError::Config("a new table has no free slot".to_owned()))?;
        let of_table = ClientConfig::for_table(&filled.table);
        // Where nobody else works, how locks are taken and what is read under them changes nothing but the time.
        let config = ClientConfig {
            acquisition: Acquisition::Together,
            synchronize: Synchronize::Path,
            cache_fill: CacheFill::Changes,
            insert_row: plan.insert_row.unwrap_or(of_table.across(&plan.caps).insert_row),
            ..of_table
        };
        let client = Client::new(Arc::clone(&filled.table), owner, config);
        let extents = Extents::new(Arc::clone(&filled.table), owner);
        Ok(Filler { filled, client, lane, extents, encoded: Vec::new(), key: Vec::new(), value: Vec::new() })
    }

    /// Stores all records. Returns those that found no room, in ascending order.
    fn fill(mut self, progress: FillProgress<'_>) -> Result<Vec<u64>, FillError> {
        let count = self.filled.count;
        let mut absent = Vec::new();
        let together = self.filled.table.config().rows.div_ceil(ROWS_TOGETHER) as usize;
        let (mut order, mut starts) = (Vec::new(), Vec::with_capacity(together + 1));
        for round in 0..ROUNDS {
            let (first, end) = (count * round / ROUNDS, count * (round + 1) / ROUNDS);
            self.sort(first, end, together, &mut order, &mut starts);
            for (index, record) in order.iter().enumerate() {
                if let Some(ahead) = order.get(index + AHEAD_RECORDS) {
                    self.filled.records.key_into(u64::from(*ahead), &mut self.key);
                    self.client.prefetch(&self.lane, &self.key);
                }
                match self.store(u64::from(*record)) {
                    Err(FillError::NoRoom { record, .. }) if (absent.len() as u64) < count / RECORDS_PER_ABSENT => {
                        absent.push(record);
                    }
                    stored => stored?,
                }
                let stored = first + index as u64 + 1;
                if stored.is_multiple_of(PROGRESS_RECORDS) && progress(stored).is_break() {
                    return Err(FillError::Stopped);
                }
            }
        }
        if self.filled.table.config().format.has_extents() {
            ready(self.extents.close(&mut self.lane))?;
        }
        ready(release_slot(&mut self.lane, &self.filled.table, self.client.owner()))?;
        absent.sort_unstable();
        Ok(absent)
    }

    /// Sets `order` to the records from `first` to `end`, those of [`ROWS_TOGETHER`] primary rows together: a counting
    /// sort, whose counts are in `starts`.
    fn sort(&mut self, first: u64, end: u64, together: usize, order: &mut Vec<u32>, starts: &mut Vec<u32>) {
        starts.clear();
        starts.resize(together + 1, 0);
        for record in first..end {
            starts[self.group(record) + 1] += 1;
        }
        for group in 1..starts.len() {
            starts[group] += starts[group - 1];
        }
        order.clear();
        order.resize((end - first) as usize, 0);
        for record in first..end {
            let next = &mut starts[self.group(record)];
            order[*next as usize] = record as u32;
            *next += 1;
        }
    }

    /// Returns the number of the rows to which the record's primary row belongs.
    #[inline]
    fn group(&mut self, record: u64) -> usize {
        let placement = self.filled.table.placement();
        self.filled.records.key_into(record, &mut self.key);
        (placement.rows(placement.digest(&self.key)).first.0 / ROWS_TOGETHER) as usize
    }

    #[inline]
    fn store(&mut self, record: u64) -> Result<(), FillError> {
        let (table, records) = (&self.filled.table, &self.filled.records);
        records.key_into(record, &mut self.key);
        records.value_into(record, LOADED, &mut self.value);
        let failed = |reason: String| FillError::Record { record, records: self.filled.count, reason };
        let key = table.key(&self.key).map_err(|kind| failed(kind.to_string()))?;
        let extent = match table.place(&key, self.value.len()).map_err(|kind| failed(kind.to_string()))? {
            EntryKind::Inline => None,
            EntryKind::Extent => {
                let reserved = match self.extents.try_reserve(&key, &self.value) {
                    Some(extent) => Ok(extent),
                    None => ready(self.extents.reserve(&mut self.lane, &key, &self.value)),
                };
                let extent = reserved.map_err(|error| failed(error.to_string()))?;
                encode_extent(&mut self.encoded, &extent, &self.key, &self.value, table.rows().sums());
                Some(extent)
            }
        };
        let insert = Change::Insert(match extent {
            None => NewValue::Inline(&self.value),
            Some(extent) => NewValue::Extent { extent, words: &self.encoded },
        });
        let begun = self.client.begin_in_place(&mut self.lane, &key, &insert);
        match ready(self.client.change_from(&mut self.lane, &key, insert, Some(begun))) {
            Ok(changed) if changed.outcome == Outcome::Inserted => {
                if let Some(extent) = extent {
                    self.extents.link(&extent);
                }
                Ok(())
            }
            Ok(changed) => Err(failed(format!("{:?}", changed.outcome))),
            Err(Error { kind: ErrorKind::Full { .. }, .. }) => {
                if let Some(extent) = extent {
                    self.extents.cancel(&extent);
                }
                Err(FillError::NoRoom { record, records: self.filled.count })
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// Refuses to allocate more than the machine has available, where that is known.
fn require_memory(needed_bytes: u64) -> Result<(), FillError> {
    match available_bytes() {
        Some(available_bytes) if available_bytes < needed_bytes => {
            Err(FillError::Memory { needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// Returns the bytes of memory that the kernel can give to this process without swapping.
pub fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}

/// Polls a future on a lane that executes in place, where nothing waits for another client.
pub(crate) fn ready<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}
