//! A description of a run in words: its parameters, its events, and its violations.

use std::fmt::{Display, Write as _};

use guira_check::history::{History, HistoryError};
use guira_fabric::{Addr, Space};
use guira_fabric_sim::{Event, EventKind, FaultPlan, Part};

use super::run::Run;
use super::tally::Counts;

/// Number of last events in a description.
const TAIL: usize = 60;
/// Most events, the last ones, that touch the rows and locks of a wrong key.
const RELEVANT: usize = 200;

/// The parts of a run that are described.
pub(super) struct Description<'r> {
    pub(super) setup: &'r dyn Display,
    pub(super) plan: &'r FaultPlan,
    pub(super) events: &'r [Event],
    pub(super) history: &'r History,
    pub(super) history_error: Option<&'r HistoryError>,
    pub(super) log_hash: u64,
    pub(super) counts: &'r Counts,
    pub(super) wrong: &'r [String],
    /// Says where a key is.
    pub(super) place: &'r dyn Fn(u64) -> String,
    /// Whether an event touched the place of a key.
    pub(super) touches: &'r dyn Fn(&Event, u64) -> bool,
}

/// Describes a run of a table: what it drew, what became of it, and what concerns the key that went wrong.
pub fn describe(run: &Run) -> String {
    let mut counts = Counts::default();
    counts.add(&run.tally.counts());
    let description = Description {
        setup: &run.setup,
        plan: &run.plan,
        events: &run.events,
        history: &run.history,
        history_error: run.history_error.as_ref(),
        log_hash: run.log_hash,
        counts: &counts,
        wrong: &run.wrong,
        place: &|key| run.rows_of(key).map(|row| row.to_string()).join(" and "),
        touches: &|event, key| touches(run, event, key),
    };
    description.text()
}

impl Description<'_> {
    /// Describes a run. A failed run: the parameters, the fault plan, the faults that happened, the operations on the
    /// key whose answers no order explains, the events that touched its place, the last events, and the violations. A
    /// run that passed: the parameters, the plan, the faults, the last events, and the counts.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.setup);
        let mut line = |what: &str| _ = writeln!(text, "{what}");
        line(&format!("relaxations: {:?}", self.plan.relaxations));
        for fault in &self.plan.clients {
            line(&format!("planned: client {} after {} verbs: {:?}", fault.client.0, fault.after_verbs, fault.fault));
        }
        for fault in &self.plan.node {
            line(&format!("planned: the node at {} ns: {:?}", fault.at_ns, fault.fault));
        }
        if let Some(limit) = &self.plan.memory {
            line(&format!("planned: the node has no memory for others after {} grants: {limit:?}", limit.grants));
        }
        line("faults that happened:");
        let is_access = |event: &&Event| {
            use EventKind::{Add, Handled, Read, Swap, Write};
            matches!(event.kind, Read(_) | Write(_) | Swap(_) | Add(_) | Handled(_))
        };
        let is_routine =
            |event: &&Event| matches!(event.kind, EventKind::Posted(_) | EventKind::Replied | EventKind::Resumed);
        self.events
            .iter()
            .filter(|event| !is_access(event) && !is_routine(event))
            .for_each(|event| line(&event.to_string()));
        if let Some(error) = self.history_error {
            self.operations(error, &mut line);
        }
        line("the last events:");
        let from = self.events.len().saturating_sub(TAIL);
        self.events[from..].iter().for_each(|event| line(&event.to_string()));
        line(&format!("event log hash {:#018x}", self.log_hash));
        for (name, count) in self.counts.all() {
            line(&format!("{name}: {count}"));
        }
        match self.wrong {
            [] => line("no violations"),
            wrong => wrong.iter().for_each(|wrong| line(&format!("WRONG: {wrong}"))),
        }
        text
    }

    /// Describes the operations on the key of an error, and the events that touched its place.
    fn operations(&self, error: &HistoryError, line: &mut dyn FnMut(&str)) {
        let key = match error {
            HistoryError::NotLinearizable(violation) => violation.key,
            HistoryError::Undecided { key, .. } => *key,
        };
        line(&format!("operations on key {key}, which belongs to {}:", (self.place)(key)));
        let operations = self.history.operations().filter(|operation| operation.key == key);
        operations.for_each(|operation| line(&format!("  {operation}")));
        let touching: Vec<&Event> = self.events.iter().filter(|event| (self.touches)(event, key)).collect();
        if !touching.is_empty() {
            line(&format!("the last of {} events that touched these rows or their locks:", touching.len()));
        }
        let from = touching.len().saturating_sub(RELEVANT);
        touching[from..].iter().for_each(|event| line(&event.to_string()));
    }
}

/// Whether an event touched a row of `key`, or the lock of one.
fn touches(run: &Run, event: &Event, key: u64) -> bool {
    let (EventKind::Read(part) | EventKind::Write(part) | EventKind::Swap(part) | EventKind::Add(part)) = &event.kind
    else {
        return false;
    };
    let table = &run.bench.table;
    run.rows_of(key).iter().any(|row| {
        let lock = table.locks().addr(table.locks().mask(table.locks().lock_of(*row)).word);
        overlaps(part, table.geometry().row(*row), table.rows().row_words() as u64) || overlaps(part, lock, 1)
    })
}

fn overlaps(part: &Part, addr: Addr, words: u64) -> bool {
    let is_device = |addr: Addr| addr.space() == Space::Device;
    let (from, at) = (part.addr.word(), addr.word());
    is_device(part.addr) == is_device(addr) && from < at + words && at < from + u64::from(part.words)
}
