//! `guira list`: lists the tables in shared memory.

use clap::Args;
use guira::admin::{ClientCounts, ListedState, ListedTable, TableSummary, printable};
use serde::Serialize;

use super::{Verdict, stat::age};
use crate::advice::{self, Advised};
use crate::failure::Failure;
use crate::output::{Output, table};
use crate::units::{bytes, percent, share};
use crate::users;

/// Columns of the narrowest usual terminal.
const COLUMNS: usize = 80;
/// Number of fields after the URL.
const FIELDS: usize = 6;
/// Characters between two columns.
const GAP: usize = 2;
/// Maximum number of characters of a user's name; JSON has the number.
const OWNER_CHARS: usize = 10;

/// List the tables in shared memory of this host.
///
/// Lists the shm:// tables of all users that you may read, and the files in /dev/shm that you may not read and that may
/// be tables. Fill is exact for small tables and estimated from a sample of the rows, marked with ~, for large ones;
/// guira stat counts exactly. Clients are those that can change a table; processes that only read are not counted.
/// Nothing is changed.
#[derive(Debug, Args)]
pub struct Arguments {}

#[derive(Serialize)]
struct Answer<'t> {
    tables: &'t [ListedTable],
}

/// Carries out the command.
pub fn run(_arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let tables = guira::admin::list()?;
    output.answer(&Answer { tables: &tables }, || human(&tables))?;
    Ok(Verdict::Fine)
}

fn human(tables: &[ListedTable]) -> String {
    if tables.is_empty() {
        return "no tables in shared memory".to_owned();
    }
    let head = ["owner", "size", "fill", "clients", "dead", "age"].map(str::to_owned);
    let fields: Vec<[String; FIELDS]> = std::iter::once(head).chain(tables.iter().map(fields)).collect();
    let width = |column: usize| fields.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let room = COLUMNS.saturating_sub((0..FIELDS).map(|column| width(column) + GAP).sum());
    let mut rows = Vec::new();
    for (index, fields) in fields.into_iter().enumerate() {
        let url = index.checked_sub(1).map_or_else(|| "table".to_owned(), |at| shown(&tables[at]));
        if url.chars().count() > room {
            // In full, because users copy it.
            rows.push(vec![url]);
            rows.push(std::iter::once(String::new()).chain(fields).collect());
        } else {
            rows.push(std::iter::once(url).chain(fields).collect());
        }
    }
    let mut lines = vec![aligned(&rows)];
    lines.extend(tables.iter().filter_map(note));
    lines.join("\n")
}

/// Returns a table's URL, made printable: any user may create files of any name beside the tables.
fn shown(listed: &ListedTable) -> String {
    printable(&listed.url.to_string())
}

/// Aligns rows in columns. A URL on a line of its own does not widen the first column.
fn aligned(rows: &[Vec<String>]) -> String {
    let (alone, whole): (Vec<_>, Vec<_>) = rows.iter().cloned().partition(|row| row.len() == 1);
    let whole = table(&whole);
    let (mut alone, mut whole) = (alone.iter(), whole.lines());
    let lines = rows.iter().filter_map(|row| match row.len() {
        1 => alone.next().map(|row| row[0].clone()),
        _ => whole.next().map(str::to_owned),
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn fields(listed: &ListedTable) -> [String; FIELDS] {
    let owner: String = users::name(listed.owner_uid).chars().take(OWNER_CHARS).collect();
    // Not the bytes of the file: those are addresses, most of which have no memory in a table that grows.
    let size = bytes(listed.stored_bytes);
    match &listed.state {
        ListedState::Table(table) => {
            [owner, size, fill(table), living(&table.clients), dead(&table.clients), age(table.created_unix_ns)]
        }
        _ => [owner, size, "?".to_owned(), "?".to_owned(), "?".to_owned(), "?".to_owned()],
    }
}

fn fill(table: &TableSummary) -> String {
    let about = if table.entries_error > 0 { "~" } else { "" };
    format!("{about}{}", percent(share(table.entries, table.capacity)))
}

/// Returns the number of clients that are, or may be, alive.
fn living(clients: &ClientCounts) -> String {
    match clients.unknown {
        0 => (clients.live + clients.stopped).to_string(),
        unknown => format!("{unknown}?"),
    }
}

fn dead(clients: &ClientCounts) -> String {
    (clients.dead + clients.recovering + clients.damaged).to_string()
}

/// Returns the remark below the list about a table that needs one.
fn note(listed: &ListedTable) -> Option<String> {
    let url = shown(listed);
    Some(match &listed.state {
        ListedState::Table(table) if table.clients.stopped > 0 => {
            let stat = advice::guira(Advised::Stat, &[&url]);
            format!("{url}: {} of its clients stopped; {stat} lists them", table.clients.stopped)
        }
        ListedState::Table(_) => return None,
        ListedState::Destroyed => match advice::destroy(&listed.url) {
            Some(_) => format!("{url}: destroyed; {} removes its name", advice::guira(Advised::Destroy, &[&url])),
            None => format!("{url}: destroyed"),
        },
        ListedState::Unfinished => format!("{url}: being created, or left behind by a creation that was killed"),
        ListedState::ServedByDevice => format!("{url}: served over RDMA; only the server's rdma:// URL opens it"),
        ListedState::Unreadable => format!("{url}: no permission to read it; it may be a table"),
        ListedState::Damaged { reason } => format!("{url}: {}", printable(reason)),
        _ => format!("{url}: unknown to this version of guira"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_says_so() {
        assert_eq!(human(&[]), "no tables in shared memory");
    }
}
