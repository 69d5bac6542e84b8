//! `guira list`.

use clap::Args;
use guira::admin::{ClientCounts, ListedState, ListedTable, TableSummary, printable};
use serde::Serialize;

use super::{Verdict, stat::age};
use crate::failure::Failure;
use crate::output::{Output, table};
use crate::units::{bytes, percent, share};
use crate::users;

/// Columns of the narrowest terminal that is usual.
const COLUMNS: usize = 80;
/// Columns for what stands behind a URL.
const FIELDS: usize = 6;
/// Characters between two columns.
const GAP: usize = 2;
/// Characters of a user's name that are shown; JSON has the number.
const OWNER_CHARS: usize = 10;

/// List the tables in shared memory of this host.
///
/// These are the shm:// tables of every user, as far as you may read them, and the files in /dev/shm that you may not
/// read and that may be tables. Fill is exact for small tables, and from a sample of the rows, with a ~, for large
/// ones; guira stat counts. Clients are those that can change a table; who only reads leaves no trace. Nothing is
/// changed.
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
            // Whole, because it is to be copied.
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

/// A table's URL. Anybody may put files of any name where tables are.
fn shown(listed: &ListedTable) -> String {
    printable(&listed.url.to_string())
}

/// Rows as a table, in which URLs that have a line of their own take no room of others.
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
    let size = bytes(listed.file_bytes);
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

/// Clients that live, or may.
fn living(clients: &ClientCounts) -> String {
    match clients.unknown {
        0 => (clients.live + clients.stopped).to_string(),
        unknown => format!("{unknown}?"),
    }
}

fn dead(clients: &ClientCounts) -> String {
    (clients.dead + clients.recovering + clients.damaged).to_string()
}

/// What has to be said of a table beside its numbers.
fn note(listed: &ListedTable) -> Option<String> {
    let url = shown(listed);
    Some(match &listed.state {
        ListedState::Table(table) if table.clients.stopped > 0 => {
            format!("{url}: {} of its clients stopped; guira stat {url} names them", table.clients.stopped)
        }
        ListedState::Table(_) => return None,
        ListedState::Destroyed => format!("{url}: destroyed; guira destroy {url} removes its name"),
        ListedState::Unfinished => format!("{url}: being created, or left by a creation that was killed"),
        ListedState::Unreadable => format!("{url}: you may not read it; it may be a table"),
        ListedState::Damaged { reason } => format!("{url}: {}", printable(reason)),
        _ => format!("{url}: of a kind that this program does not know"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_to_be_nothing() {
        assert_eq!(human(&[]), "no tables in shared memory");
    }
}
