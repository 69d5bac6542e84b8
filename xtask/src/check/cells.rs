//! Cells of tables in the documents: a cell that takes three sentences is a paragraph with a heading.
//!
//! A table is a row of dashes and bars, the head above it, and the rows below it down to a blank line; what stands in a
//! fenced block is code. Characters are those of the source, links included.

use super::documents::lines_outside_fences;
use crate::report::{Report, Violation};
use crate::tree::SourceFile;

/// Characters of a cell, without the blanks around it: two lines of a wide column.
const CELL_CHARACTERS: usize = 200;

/// Documents that are checked, besides everything in [`FOLDER`].
const DOCUMENTS: [&str; 3] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"];
const FOLDER: &str = "docs/";
/// Documents that programs write.
const GENERATED: [&str; 2] = ["docs/bench/peers.md", "docs/bench/tcp.md"];

/// Checks the tables of every document that people write.
pub fn check(markdown: &[&SourceFile]) -> Report {
    let files: Vec<&&SourceFile> = markdown.iter().filter(|file| is_checked(&file.path)).collect();
    let mut violations = Vec::new();
    let mut count = 0;
    for file in &files {
        for (line, row) in rows(&file.text) {
            let cells = cells_of(row);
            count += cells.len();
            let lengths = cells.iter().map(|cell| cell.chars().count());
            violations.extend(lengths.filter(|length| *length > CELL_CHARACTERS).map(|length| {
                let reason = format!("a cell of the table has {length} characters; the limit is {CELL_CHARACTERS}");
                Violation::new(&file.path, line, reason)
            }));
        }
    }
    let looked_at = format!("{count} cells of tables in {} documents", files.len());
    Report { name: "cells", looked_at, violations }
}

fn is_checked(path: &str) -> bool {
    (DOCUMENTS.contains(&path) || path.starts_with(FOLDER)) && !GENERATED.contains(&path)
}

/// The rows of every table, with their lines.
fn rows(text: &str) -> Vec<(usize, &str)> {
    let lines: Vec<(usize, &str)> = lines_outside_fences(text).collect();
    let mut rows = Vec::new();
    let mut is_in_table = false;
    for (index, (line, text)) in lines.iter().enumerate() {
        let is_head = lines.get(index + 1).is_some_and(|(below, dashes)| *below == line + 1 && is_delimiter(dashes));
        is_in_table = (is_in_table || is_head) && !text.trim().is_empty();
        if is_in_table {
            rows.push((*line, *text));
        }
    }
    rows
}

/// Whether a line is the one below a table's head: dashes, and at least one bar.
fn is_delimiter(line: &str) -> bool {
    let line = unquoted(line);
    line.contains('-') && line.contains('|') && line.chars().all(|c| matches!(c, '-' | '|' | ':' | ' '))
}

/// The cells of a row. A bar behind a backslash belongs to the cell.
fn cells_of(row: &str) -> Vec<&str> {
    let row = unquoted(row);
    let row = row.strip_prefix('|').unwrap_or(row);
    let row = row.strip_suffix('|').filter(|row| !row.ends_with('\\')).unwrap_or(row);
    let mut cells = Vec::new();
    let mut start = 0;
    for (at, _) in row.match_indices('|').filter(|(at, _)| !row[..*at].ends_with('\\')) {
        cells.push(row[start..at].trim());
        start = at + 1;
    }
    cells.push(row[start..].trim());
    cells
}

/// A line without the marks of a quotation around it.
fn unquoted(line: &str) -> &str {
    line.trim_start_matches([' ', '\t', '>']).trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = CELL_CHARACTERS + 1;

    fn found(path: &str, text: &str) -> Vec<String> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        check(&[&file]).violations.iter().map(Violation::to_string).collect()
    }

    fn table(cell: &str) -> String {
        format!("Text.\n\n| a | b |\n|---|---:|\n| {cell} | c |\n")
    }

    #[test]
    fn a_long_cell_fails_and_is_counted_in_characters() {
        let reason = format!("a cell of the table has {LONG} characters; the limit is {CELL_CHARACTERS}");
        for path in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/a.md", "docs/bench/README.md"] {
            assert_eq!(found(path, &table(&"é".repeat(CELL_CHARACTERS))), [""; 0]);
            assert_eq!(found(path, &table(&"é".repeat(LONG))), [format!("{path}:5: {reason}")]);
        }
    }

    #[test]
    fn heads_later_rows_quotations_and_rows_without_outer_bars_are_checked() {
        let long = "x".repeat(LONG);
        assert_eq!(found("README.md", &format!("| {long} |\n|---|\n| b |\n")).len(), 1);
        assert_eq!(found("README.md", &format!("{}| a | {long} |\n", table("b"))).len(), 1);
        assert_eq!(found("README.md", &format!("> | a |\n> |---|\n> | {long} |\n")).len(), 1);
        assert_eq!(found("README.md", &format!("a | b\n---|---\n{long} | c\n")).len(), 1);
        assert_eq!(found("README.md", &table(&format!("a \\| {long}"))).len(), 1);
    }

    #[test]
    fn prose_code_other_documents_and_generated_ones_pass() {
        let (long, wide) = ("x".repeat(LONG), table(&"x".repeat(LONG)));
        assert_eq!(found("docs/a.md", &format!("{}\n{long} | a\n", table("b"))), [""; 0]);
        assert_eq!(found("docs/a.md", &format!("```text\n{wide}```\n")), [""; 0]);
        assert_eq!(found("docs/a.md", &table(&[&long[1..], &long[1..]].join(" | "))), [""; 0]);
        for path in ["docs/bench/tcp.md", "docs/bench/peers.md", "crates/guira/README.md"] {
            assert_eq!(found(path, &wide), [""; 0]);
        }
    }
}
