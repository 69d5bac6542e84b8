//! A real table in private memory that one real client fills, with the rows that each insert writes.

use std::sync::Arc;
use std::task::{Context, Poll};

use guira_fabric::heap::HeapLane;
use guira_fabric::{Addr, Caps, FabricError, Lane, Profile, Region, Submitted, Traffic, Verb};
use guira_layout::{EntryFormat, OffsetRule, Preset, PresetOptions, RowId, TableConfig};
use guira_rcuckoo::{Change, Client, ClientConfig, ErrorKind, NewValue, Outcome, SlotClient, claim_slot};

use crate::experiment::LabError;
use crate::simulated::{FillPlan, FilledTable, ready};

/// Entries of the tables of figure 4: keys and values of 4 bytes.
const FORMAT: EntryFormat = EntryFormat::Fixed { key_bytes: 4, value_bytes: 4 };

/// Returns the parameters of a table of `rows` rows with the locality factor `factor`; `None` for independent rows.
///
/// # Errors
/// No table has these parameters.
pub(super) fn config(preset: Preset, rows: u64, factor: Option<f64>, seed: u64) -> Result<TableConfig, LabError> {
    let options = PresetOptions {
        capacity: 1,
        format: FORMAT,
        extent_bytes: None,
        max_clients: Some(16),
        hash_seed: seed,
        device_bytes: u64::MAX,
    };
    let config = preset.config_of_rows(rows, &options).map_err(|error| LabError::Conflict(error.to_string()))?;
    Ok(match factor {
        Some(factor) => TableConfig { offsets: TableConfig::offset_table(factor, rows), ..config },
        None => TableConfig { offset_rule: OffsetRule::Independent, ..config },
    })
}

/// A table, and a client that fills it.
pub(super) struct HeapTable {
    client: Client,
    lane: RowWatch,
    entries: u64,
    occupied: u64,
}

impl HeapTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// No table has these parameters, or there is too little memory.
    pub(super) fn new(config: &TableConfig, seed: u64) -> Result<HeapTable, LabError> {
        let plan = FillPlan {
            config: config.clone(),
            caps: Profile::Shm.caps(),
            records: 0,
            value_bytes: None,
            insert_row: None,
            seed,
        };
        let filled = FilledTable::new(&plan, &mut |_| std::ops::ControlFlow::Continue(())).map_err(failed)?;
        let table = filled.table();
        let first_row = table.geometry().row(RowId(0));
        let row_words = table.geometry().row(RowId(1)).word() - first_row.word();
        let inner = filled.region().lane();
        let mut lane = RowWatch { inner, first_row, row_words, rows: config.rows, written: Vec::new() };
        let owner = ready(claim_slot(&mut lane, table, 0, &SlotClient::default())).map_err(failed)?;
        let owner = owner.ok_or_else(|| failed("a new table has no free slot"))?;
        let client = Client::new(Arc::clone(table), owner, ClientConfig::for_table(table));
        Ok(HeapTable { client, lane, entries: config.max_entries(), occupied: 0 })
    }

    /// Returns the occupied part of all entries.
    pub(super) fn fill(&self) -> f64 {
        self.occupied as f64 / self.entries as f64
    }

    /// Inserts a new key, and returns the number of rows from the lowest that it writes to the highest; `None` if it
    /// finds no path.
    ///
    /// # Errors
    /// The insert failed in another way.
    pub(super) fn insert(&mut self, key: u32) -> Result<Option<u64>, LabError> {
        self.lane.written.clear();
        let key = key.to_le_bytes();
        match ready(self.client.change(&mut self.lane, &key, Change::Insert(NewValue::Inline(&key)))) {
            Ok(changed) if changed.outcome == Outcome::Inserted => {
                self.occupied += 1;
                let rows = || self.lane.written.iter();
                Ok(rows().max().zip(rows().min()).map(|(high, low)| high - low + 1))
            }
            Ok(changed) => Err(failed(format!("{:?}", changed.outcome))),
            Err(error) if matches!(error.kind, ErrorKind::Full { .. }) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

fn failed(reason: impl ToString) -> LabError {
    LabError::Failed { what: "an insert into a table in private memory".to_owned(), reason: reason.to_string() }
}

/// A lane that notes which rows are written.
struct RowWatch {
    inner: HeapLane,
    first_row: Addr,
    row_words: u64,
    rows: u64,
    written: Vec<u64>,
}

impl Lane for RowWatch {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn traffic(&self) -> &Traffic {
        self.inner.traffic()
    }

    fn traffic_mut(&mut self) -> &mut Traffic {
        self.inner.traffic_mut()
    }

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        for verb in batch.iter() {
            if let Verb::Write { addr, .. } = verb
                && addr.space() == self.first_row.space()
                && let Some(word) = addr.word().checked_sub(self.first_row.word())
                && word / self.row_words < self.rows
            {
                self.written.push(word / self.row_words);
            }
        }
        self.inner.submit(batch)
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        self.inner.poll(batch, cx)
    }

    fn forget(&mut self) {
        self.inner.forget();
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        self.inner.poll_drain(found, cx)
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_pause(until_ns, cx)
    }

    fn now_ns(&mut self) -> u64 {
        self.inner.now_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insert_reports_the_rows_that_it_writes() {
        for preset in [Preset::Paper, Preset::Hardened] {
            let config = config(preset, 64, Some(2.3), 1).unwrap();
            let mut table = HeapTable::new(&config, 1).unwrap();
            assert_eq!(table.insert(1).unwrap(), Some(1), "an empty table needs no move");
            let spans: Vec<u64> = (2..).map_while(|key| table.insert(key).unwrap()).collect();
            assert!(spans.iter().any(|span| *span > 1) && spans.iter().all(|span| *span <= 64), "{preset}: {spans:?}");
            assert!((0.7..=1.0).contains(&table.fill()), "{preset}: {}", table.fill());
            assert_eq!((table.fill() * table.entries as f64).round() as usize, spans.len() + 1);
        }
    }
}
