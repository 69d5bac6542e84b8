//! Output: the only module that writes to standard output and standard error.
//!
//! Invariants: a reader that closes standard output ends what is written piece by piece, by [`Failure::ClosedOutput`],
//! and changes nothing else; it is never a panic. A standard output that was closed from the start cannot be written.
//! A closed standard error is ignored. JSON is one object on one line.

use std::io::{self, IsTerminal, StdoutLock, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use guira::admin::printable;
use guira_fabric::StandardFile;
use serde::Serialize;

use crate::failure::{ErrorText, Failure};
use crate::input;
use crate::units::count;

/// The format of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Human,
    /// One JSON object (with dump, one per line).
    Json,
}

/// The destination of answers and errors.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
}

impl Output {
    /// Creates an output in this format.
    pub fn new(format: Format) -> Output {
        Output { format }
    }

    /// Returns the chosen format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Writes the answer: `human` as text or `json` as an object, depending on the format. If nobody reads it, the
    /// command ends as if somebody had: with its verdict.
    pub fn answer(&self, json: &impl Serialize, human: impl FnOnce() -> String) -> Result<(), Failure> {
        let said = match self.format {
            Format::Human => self.line(&human()),
            Format::Json => {
                let text = serde_json::to_string(json).map_err(|error| Failure::host("write JSON")(error.into()))?;
                self.line(&text)
            }
        };
        match said {
            Err(Failure::ClosedOutput) => Ok(()),
            said => said,
        }
    }

    /// Writes a line of text, or nothing if the format is JSON.
    pub fn human_line(&self, line: &str) -> Result<(), Failure> {
        if self.format == Format::Human { self.line(line) } else { Ok(()) }
    }

    /// Writes bytes as they are; on a terminal, adds a newline.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = stdout()?;
        let end: &[u8] = if stdout.is_terminal() { b"\n" } else { b"" };
        stdout.write_all(bytes).and_then(|()| stdout.write_all(end)).and_then(|()| stdout.flush()).map_err(stdout_error)
    }

    /// Writes a line.
    pub fn line(&self, line: &str) -> Result<(), Failure> {
        let mut stdout = stdout()?;
        writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(stdout_error)
    }

    /// Writes a line of text to standard error, or nothing if the format is JSON.
    pub fn note(&self, line: &str) {
        if self.format == Format::Human {
            write_stderr(&shown(line));
        }
    }

    /// Writes a warning to standard error.
    pub fn warn(&self, warning: &str) {
        match self.format {
            Format::Human => write_stderr(&shown(&format!("guira: warning: {warning}"))),
            Format::Json => write_stderr(&serde_json::json!({ "warning": { "message": warning } }).to_string()),
        }
    }

    /// Reports a failure, and returns its exit code.
    pub fn fail(&self, failure: &Failure) -> ExitCode {
        if failure.is_closed_output() {
            // The reader has seen enough, as in `guira dump | head`.
            return ExitCode::SUCCESS;
        }
        self.error(&failure.text());
        ExitCode::from(failure.exit_code())
    }

    /// Writes an error to standard error, over a progress bar that may be on the terminal.
    pub fn error_over_bar(&self, error: &ErrorText) {
        let mut stderr = io::stderr().lock();
        if stderr.is_terminal() {
            // A closed standard error is ignored.
            let _ = stderr.write_all(b"\r\x1b[2K");
        }
        drop(stderr);
        self.error(error);
    }

    /// Writes an error to standard error.
    pub fn error(&self, error: &ErrorText) {
        match self.format {
            Format::Human => write_stderr(&format!("guira: {}", printable(&error.message.replace('\n', " ")))),
            Format::Json => {
                #[derive(Serialize)]
                struct Object<'e> {
                    error: &'e ErrorText,
                }
                write_stderr(&serde_json::to_string(&Object { error }).unwrap_or_default());
            }
        }
    }
}

/// Returns standard output, unless it was closed when the program started.
pub fn stdout() -> Result<StdoutLock<'static>, Failure> {
    input::open_at_start(StandardFile::Output).map_err(stdout_error)?;
    Ok(io::stdout().lock())
}

/// Turns a failure to write to standard output into a command's failure.
pub fn stdout_error(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::ClosedOutput
    } else {
        Failure::host("write to standard output")(error)
    }
}

/// Escapes control characters in each line: lines contain names of tables and files, which other users may have chosen.
fn shown(lines: &str) -> String {
    lines.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Writes a line to standard error.
fn write_stderr(line: &str) {
    // A closed standard error is ignored.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Formats all counters that are not 0 as a table under `head`; returns `None` if all are 0.
pub fn counter_table<'n>(head: &str, counters: impl IntoIterator<Item = (&'n str, u64)>) -> Option<String> {
    let counted = counters.into_iter().filter(|(_, times)| *times > 0);
    let mut rows = vec![vec![head.to_owned(), "times".to_owned()]];
    rows.extend(counted.map(|(name, times)| vec![name.replace('_', " "), count(times)]));
    (rows.len() > 1).then(|| table(&rows))
}

/// Formats rows as aligned columns: the first to the left, all others to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells_of = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width_of = |column| cells_of(column).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width_of(column).unwrap_or(0)).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Formats names and values, one per line, with the names padded.
pub fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines = fields.iter().map(|(name, text)| format!("{name:<width$}  {text}").trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["", "count", "µs"]), row(["read", "1", "12"]), row(["update", "1,000", ""])]);
        assert_eq!(text, "        count  µs\nread        1  12\nupdate  1,000");
        assert_eq!(table(&[]), "");
    }

    #[test]
    fn fields_are_aligned() {
        let text = fields(&[("rows", "64".to_owned()), ("fill", "1 %".to_owned()), ("entries", String::new())]);
        assert_eq!(text, "rows     64\nfill     1 %\nentries");
    }
}
