//! The results of the quickstart steps, as text and as JSON.

use std::time::Duration;

use guira::Url;
use guira::admin::Stat;
use guira_lab::driver::{OperationFigures, OperationTally};
use serde::Serialize;

use super::source::Survey;
use super::worker::{Compared, Stored};
use crate::commands::create::Created;
use crate::units::{bytes, count, counted, per_second, percent, rate, share, time};

/// Maximum number of errors that a step shows.
const WRONG_SHOWN: usize = 5;

/// The results of all steps so far.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The table.
    pub url: String,
    /// Number of processes that used it at the same time.
    pub processes: u32,
    /// Whether all results are correct.
    pub ok: bool,
    /// Whether the table still exists.
    pub kept: bool,
    /// Step 1.
    pub input: Option<Input>,
    /// Step 2.
    pub table: Option<Table>,
    /// Step 3.
    pub load: Option<Load>,
    /// Step 4.
    pub read_back: Option<ReadBack>,
    /// Step 5.
    pub change: Option<Change>,
    /// Step 6.
    pub check: Option<Check>,
    /// A key to try, made printable.
    #[serde(skip)]
    pub first_key: String,
}

impl Report {
    /// Creates a report without results.
    pub fn new(url: &Url, processes: u32) -> Report {
        Report {
            url: url.to_string(),
            processes,
            ok: false,
            kept: false,
            input: None,
            table: None,
            load: None,
            read_back: None,
            change: None,
            check: None,
            first_key: String::new(),
        }
    }

    /// Whether all results are correct.
    pub fn is_ok(&self) -> bool {
        let read_back = self.read_back.as_ref().is_some_and(|step| step.wrong == 0 && step.all_compared);
        let change = self.change.as_ref().is_some_and(|step| step.wrong.is_empty());
        read_back && change && self.check.as_ref().is_some_and(|step| step.clean)
    }

    /// Returns the closing text: the verdict, and what to try next.
    pub fn next_steps(&self) -> String {
        let verdict = match self.is_ok() {
            true => "Everything checks out.",
            false => "SOMETHING IS WRONG, see above: this is a bug, please report it.",
        };
        let url = &self.url;
        let next = if self.kept {
            format!(
                "The table still exists. Try:\n  \
                 guira get {url} {}\n  \
                 guira stat {url}\n  \
                 guira dump {url} | head\n  \
                 guira destroy {url}",
                quoted(&self.first_key)
            )
        } else {
            "The table was removed (--keep keeps it). Next steps:\n  \
             guira quickstart FILE                      the same with your data: TSV or JSON lines\n  \
             guira create shm://mine --capacity 1M      a table of your own\n  \
             guira put shm://mine hello world           from any process of this machine\n  \
             guira get shm://mine hello\n  \
             guira ycsb shm://bench --workload b        measure it\n  \
             guira --help"
                .to_owned()
        };
        format!("\n{verdict}\n{next}")
    }
}

/// Quotes a printable key for a shell.
fn quoted(printable: &str) -> String {
    let bare = printable.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or("KEY");
    let is_plain = |c: char| c.is_alphanumeric() || "._/+:-".contains(c);
    if bare.is_empty() || bare.contains('\'') || bare.contains('\\') {
        "KEY".to_owned()
    } else if bare.chars().all(is_plain) && !bare.starts_with('-') {
        bare.to_owned()
    } else {
        format!("-- '{bare}'")
    }
}

/// Step 1: the data.
#[derive(Debug, Serialize)]
pub struct Input {
    source: String,
    records: u64,
    records_left_out: u64,
    bytes: u64,
}

impl Input {
    /// Creates the step from a survey of a source with `records_all` records.
    pub fn new(source: String, survey: &Survey, records_all: u64) -> Input {
        let records_left_out = records_all - survey.records;
        Input { source, records: survey.records, records_left_out, bytes: survey.bytes }
    }

    /// Returns the step as text.
    pub fn human(&self) -> String {
        let left_out = match self.records_left_out {
            0 => String::new(),
            records => format!("\n              not enough memory for the other {}", count(records)),
        };
        let (source, records) = (&self.source, counted(self.records, "record"));
        format!("1 input       {source}: {records}, {}{left_out}", bytes(self.bytes))
    }
}

/// Step 2: the table.
#[derive(Debug, Serialize)]
pub struct Table {
    #[serde(flatten)]
    created: serde_json::Value,
    #[serde(skip)]
    text: String,
}

impl Table {
    /// Creates the step from the created table.
    pub fn new(created: &Created) -> Table {
        let text = created.human().replace('\n', "\n              ");
        Table { created: serde_json::to_value(created).unwrap_or_default(), text }
    }

    /// Returns the step as text.
    pub fn human(&self) -> String {
        format!("2 table       {}", self.text)
    }
}

/// Step 3: loading the data.
#[derive(Debug, Serialize)]
pub struct Load {
    records: u64,
    inserted: u64,
    elapsed_ns: u64,
    records_per_s: f64,
    entries: u64,
    fill: f64,
    inline_entries: u64,
    extent_entries: u64,
    put: OperationFigures,
}

impl Load {
    /// Creates the step from what all processes stored.
    pub fn new(stored: &Stored, elapsed: Duration, stat: &Stat) -> Load {
        let elapsed_ns = nanoseconds(elapsed);
        Load {
            records: stored.records,
            inserted: stored.inserted,
            elapsed_ns,
            records_per_s: per_second(stored.records, elapsed_ns),
            entries: stat.table.entries,
            fill: stat.table.fill,
            inline_entries: stat.table.inline_entries,
            extent_entries: stat.table.extent_entries,
            put: stored.tally.figures(),
        }
    }

    /// Returns the step as text.
    pub fn human(&self, processes: u32) -> String {
        let replaced = match self.records - self.inserted {
            0 => String::new(),
            replaced => format!(" ({} replaced an earlier one)", count(replaced)),
        };
        format!(
            "3 load        {} stored {}{replaced} in {}, {}, including reading the input\n              \
             {:.2} round trips each, median {}, 99 % within {}\n              \
             fill {}: {} entries, {} in rows and {} in extents",
            processes_of(processes),
            counted(self.records, "record"),
            time(self.elapsed_ns),
            rate(self.records_per_s),
            self.put.round_trips.mean,
            time(self.put.latency_ns.p50),
            time(self.put.latency_ns.p99),
            percent(self.fill),
            count(self.entries),
            count(self.inline_entries),
            count(self.extent_entries),
        )
    }
}

/// Step 4: reading the data back.
#[derive(Debug, Serialize)]
pub struct ReadBack {
    records: u64,
    all_compared: bool,
    wrong: u64,
    wrong_examples: Vec<String>,
    elapsed_ns: u64,
    get: OperationFigures,
}

impl ReadBack {
    /// Creates the step from the comparison of `records` records.
    pub fn new(compared: Compared, records: u64, elapsed: Duration) -> ReadBack {
        ReadBack {
            records: compared.records,
            all_compared: compared.records == records,
            wrong: compared.wrong,
            wrong_examples: compared.wrong_shown,
            elapsed_ns: nanoseconds(elapsed),
            get: compared.tally.figures(),
        }
    }

    /// Returns the step as text.
    pub fn human(&self) -> String {
        let verdict = match (self.wrong, self.all_compared) {
            (0, true) => "every byte matches the input".to_owned(),
            (0, false) => "NOT ALL were compared".to_owned(),
            (wrong, _) => format!("{} ARE WRONG: {}", count(wrong), self.wrong_examples.join(", ")),
        };
        format!(
            "4 read back   another process read {} and compared them: {verdict}\n              \
             {:.2} round trips each, median {}, 99 % within {}",
            counted(self.records, "record"),
            self.get.round_trips.mean,
            time(self.get.latency_ns.p50),
            time(self.get.latency_ns.p99),
        )
    }
}

/// Step 5: changing records.
#[derive(Debug, Serialize)]
pub struct Change {
    processes: u32,
    changes: u64,
    wrong: Vec<String>,
    elapsed_ns: u64,
    changes_per_s: f64,
    retries_share: f64,
    change: OperationFigures,
}

impl Change {
    /// Creates the step from the changes of all processes.
    pub fn new(processes: u32, tally: &OperationTally, wrong: Vec<String>, elapsed: Duration) -> Change {
        let elapsed_ns = nanoseconds(elapsed);
        Change {
            processes,
            changes: tally.count,
            wrong,
            elapsed_ns,
            changes_per_s: per_second(tally.count, elapsed_ns),
            retries_share: share(tally.retries, tally.count),
            change: tally.figures(),
        }
    }

    /// Returns the step as text.
    pub fn human(&self) -> String {
        let verdict = match self.wrong.len() {
            0 => "no increment was lost, every shared key holds the last write of a process".to_owned(),
            _ => {
                let shown: Vec<String> = self.wrong.iter().take(WRONG_SHOWN).cloned().collect();
                format!("{} ARE WRONG: {}", self.wrong.len(), shown.join("; "))
            }
        };
        format!(
            "5 change      {} incremented counters, wrote shared keys, inserted and removed keys\n              \
             {} changes in {}, {}: {verdict}",
            processes_of(self.processes),
            count(self.changes),
            time(self.elapsed_ns),
            rate(self.changes_per_s),
        )
    }
}

/// Step 6: checking the table.
#[derive(Debug, Serialize)]
pub struct Check {
    clean: bool,
    summary: String,
}

impl Check {
    /// Creates the step from a check.
    pub fn new(clean: bool, summary: String) -> Check {
        Check { clean, summary }
    }

    /// Returns the step as text.
    pub fn human(&self, problems: &str) -> String {
        let problems: String = problems.lines().map(|line| format!("\n              {line}")).collect();
        format!("6 check       {}{problems}", self.summary)
    }
}

fn processes_of(processes: u32) -> String {
    if processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_quoted_for_a_shell() {
        let quoted = |key: &[u8]| quoted(&guira_input::printable(key, 200));
        assert_eq!(quoted(b"libc6"), "libc6");
        assert_eq!(quoted(b"/usr/share/doc/a b"), "-- '/usr/share/doc/a b'");
        assert_eq!(quoted(b"-x"), "-- '-x'");
        for odd in [&b"it's"[..], b"a\n", b"\"", b"", b"\xff\\", &[b'x'; 300]] {
            assert_eq!(quoted(odd), "KEY", "{odd:?}");
        }
    }

    #[test]
    fn an_unfinished_report_is_not_ok() {
        let url = "shm://a".parse().unwrap();
        let report = Report::new(&url, 4);
        assert!(!report.is_ok());
        assert!(report.next_steps().contains("WRONG"));
    }
}
