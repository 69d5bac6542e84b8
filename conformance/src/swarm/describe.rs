//! A description of a run in words: its parameters, its events, and its violations.

use std::fmt::Write as _;

use guira_check::history::{HistoryError, Operation};
use guira_fabric::{Addr, Space};
use guira_fabric_sim::{Event, EventKind, Part};

use super::run::Run;

/// Number of last events in a description.
const TAIL: usize = 60;
/// Most events, the last ones, that touch the rows and locks of a wrong key.
const RELEVANT: usize = 200;

/// Describes a run. A failed run: the parameters, the fault plan, the faults that happened, the operations on the key
/// whose answers no order explains, the events that touched its rows and locks, the last events, and the violations. A
/// run that passed: the parameters, the plan, the faults, the last events, and the counts.
pub fn describe(run: &Run) -> String {
    let mut text = format!("{}\n", run.setup);
    let mut line = |what: &str| _ = writeln!(text, "{what}");
    line(&format!("relaxations: {:?}", run.plan.relaxations));
    for fault in &run.plan.clients {
        line(&format!("planned: client {} after {} verbs: {:?}", fault.client.0, fault.after_verbs, fault.fault));
    }
    for fault in &run.plan.node {
        line(&format!("planned: the node at {} ns: {:?}", fault.at_ns, fault.fault));
    }
    if let Some(limit) = &run.plan.memory {
        line(&format!("planned: the node has no memory for others after {} grants: {limit:?}", limit.grants));
    }
    line("faults that happened:");
    let is_access = |event: &&Event| {
        matches!(event.kind, EventKind::Read(_) | EventKind::Write(_) | EventKind::Swap(_) | EventKind::Add(_))
    };
    let is_routine =
        |event: &&Event| matches!(event.kind, EventKind::Posted(_) | EventKind::Replied | EventKind::Resumed);
    run.events
        .iter()
        .filter(|event| !is_access(event) && !is_routine(event))
        .for_each(|event| line(&event.to_string()));
    if let Some(error) = &run.history_error {
        let key = match error {
            HistoryError::NotLinearizable(violation) => violation.key,
            HistoryError::Undecided { key, .. } => *key,
        };
        let [first, second] = run.rows_of(key);
        line(&format!("operations on key {key}, which belongs to {first} and {second}:"));
        let operations: Vec<&Operation> = run.history.operations().filter(|operation| operation.key == key).collect();
        operations.iter().for_each(|operation| line(&format!("  {operation}")));
        let touching: Vec<&Event> = run.events.iter().filter(|event| touches(run, event, key)).collect();
        line(&format!("the last of {} events that touched these rows or their locks:", touching.len()));
        let from = touching.len().saturating_sub(RELEVANT);
        touching[from..].iter().for_each(|event| line(&event.to_string()));
    }
    line("the last events:");
    let from = run.events.len().saturating_sub(TAIL);
    run.events[from..].iter().for_each(|event| line(&event.to_string()));
    line(&format!("event log hash {:#018x}", run.log_hash));
    for (name, count) in run.tally.counts() {
        line(&format!("{name}: {count}"));
    }
    match run.passed() {
        true => line("no violations"),
        false => run.wrong.iter().for_each(|wrong| line(&format!("WRONG: {wrong}"))),
    }
    text
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
