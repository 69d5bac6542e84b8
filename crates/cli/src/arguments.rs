//! The command line: which command, in which format.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::commands::{check, create, destroy, dump, load, quickstart, single, stat, ycsb};
use crate::failure::{EXIT_CODES, EXIT_MISUSE, ErrorText};
use crate::output::{Format, Output};

/// Share a key/value table between processes: it lies in shared memory, and there is no server.
///
/// A table is named by a URL: shm://NAME is a file in /dev/shm, file:///PATH any file on a local file system.
#[derive(Debug, Parser)]
#[command(name = "guira", version, after_help = EXIT_CODES, max_term_width = 120)]
pub struct Arguments {
    /// How to show answers: human, or json (one object; dump: one a line).
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = true)]
    pub format: Format,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// See it work: real data, several processes, every byte checked. Start here.
    Quickstart(quickstart::Arguments),
    /// Create a table.
    Create(create::Arguments),
    /// Print the value of a key.
    Get(single::GetArguments),
    /// Store a value, whether the key exists or not.
    Put(single::ChangeArguments),
    /// Store a value for a key that does not exist yet.
    Insert(single::ChangeArguments),
    /// Replace the value of a key that exists.
    Update(single::ChangeArguments),
    /// Remove a key.
    Del(single::DelArguments),
    /// Store every record of a file.
    Load(load::Arguments),
    /// Print every key and value.
    Dump(dump::Arguments),
    /// Say what a table holds and who uses it.
    Stat(stat::Arguments),
    /// Verify every row, checksum, entry, lock and extent.
    Check(check::Arguments),
    /// Remove a table and all that is in it.
    Destroy(destroy::Arguments),
    /// Measure a table under a YCSB workload.
    Ycsb(ycsb::Arguments),
    /// One of the processes of ycsb.
    #[command(hide = true)]
    YcsbWorker,
    /// One of the processes of quickstart.
    #[command(hide = true)]
    QuickstartWorker(quickstart::WorkerArguments),
}

/// The arguments of this process. Where there is nothing to carry out (`--help`, or a mistake), it has been said, and
/// the exit code is returned.
pub fn parse() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        if !is_answer && asks_for_json(std::env::args_os()) {
            Output::new(Format::Json).error(&as_text(&error));
        } else {
            // Help on a closed output is nobody's loss.
            let _ = error.print();
        }
        if is_answer { ExitCode::SUCCESS } else { ExitCode::from(EXIT_MISUSE) }
    })
}

/// A mistake in the arguments as one line.
fn as_text(error: &clap::Error) -> ErrorText {
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.starts_with("Usage:"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let message = words.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    ErrorText { blame: guira::Blame::Misuse.as_str().to_owned(), effect: "none".to_owned(), message }
}

/// Whether arguments that cannot be parsed ask for JSON.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let arguments: Vec<OsString> = arguments.collect();
    arguments.iter().any(|argument| argument == "--format=json")
        || arguments.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_takes_a_format() {
        for line in [
            "create shm://a --capacity 10",
            "get shm://a k",
            "put shm://a k v",
            "insert shm://a k v",
            "update shm://a k v",
            "del shm://a k",
            "load shm://a -",
            "dump shm://a",
            "stat shm://a",
            "check shm://a",
            "destroy shm://a",
            "ycsb shm://a --workload a",
            "quickstart",
        ] {
            let format = |line: String| parsed(&line).unwrap_or_else(|error| panic!("{line}: {error}")).format;
            assert_eq!(format(format!("guira {line}")), Format::Human);
            assert_eq!(format(format!("guira {line} --format json")), Format::Json);
            assert_eq!(format(format!("guira --format json {line}")), Format::Json);
        }
    }

    #[test]
    fn negative_numbers_and_dashes_can_be_keys() {
        assert!(parsed("guira put shm://a -5 -6").is_ok());
        assert!(parsed("guira put shm://a -- --key -v").is_ok());
    }

    #[test]
    fn mistakes_are_one_line() {
        let text = as_text(&parsed("guira create smh://a --capacity 10").unwrap_err());
        assert!(text.message.contains("smh") && !text.message.contains('\n'), "{}", text.message);
        assert!(!text.message.contains("Usage"), "{}", text.message);
        for line in
            ["guira", "guira frob", "guira create shm://a", "guira get shm://a", "guira create shm://a --capacity x"]
        {
            assert_eq!(as_text(&parsed(line).unwrap_err()).blame, "misuse", "{line}");
        }
    }

    #[test]
    fn json_is_asked_for_even_in_a_mistake() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        assert!(asks("guira frob --format json") && asks("guira --format=json"));
        assert!(!asks("guira json --format human"));
    }
}
