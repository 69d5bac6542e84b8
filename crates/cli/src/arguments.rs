//! The command line: the commands, their arguments and the output format.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    bench, cas, check, completions, copy, create, destroy, doctor, dump, grow, incr, kick, lab, list, load, man,
    quickstart, serve, single, stat, token, top, ycsb,
};
use crate::failure::{EXIT_MISUSE, ErrorText, exit_codes};
use crate::output::{Format, Output, stdout, stdout_error};

/// Share a key/value table between processes in shared memory, without a server.
///
/// A table is named by a URL: shm://NAME is a file in /dev/shm, file:///PATH a file on any local file system, and
/// tcp://HOST:PORT the table that a memory node (guira serve) serves there, or rdma://HOST:PORT one with --rdma; the
/// default port is 7711. If the node requires a token, set the environment variable GUIRA_TOKEN_FILE to the path of the
/// file that holds it; if it requires TLS, use --tls-ca, --tls-cert and --tls-key.
#[derive(Debug, Parser)]
#[command(name = "guira", version, after_help = exit_codes(), max_term_width = 120)]
pub struct Arguments {
    /// Output format: human, or json (one object; with dump, one per line).
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = true)]
    pub format: Format,
    /// The command to carry out.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands. Each is described beside its arguments; only those that share arguments are described here.
#[derive(Debug, Subcommand)]
pub enum Command {
    Quickstart(quickstart::Arguments),
    Create(create::Arguments),
    /// Print the value of a key.
    ///
    /// The bytes are printed as they are; on a terminal, a newline is added.
    Get(single::KeyArguments),
    /// Store a value, whether or not the key exists.
    Put(single::ValueArguments),
    /// Store a value under a key that does not exist yet.
    Insert(single::ValueArguments),
    /// Replace the value of an existing key.
    Update(single::ValueArguments),
    /// Remove a key.
    #[command(visible_alias = "remove")]
    Del(single::KeyArguments),
    Incr(incr::Arguments),
    Cas(cas::Arguments),
    Load(load::Arguments),
    Dump(dump::Arguments),
    Copy(copy::Arguments),
    Grow(grow::Arguments),
    List(list::Arguments),
    Stat(stat::Arguments),
    Check(check::Arguments),
    Kick(kick::Arguments),
    Destroy(destroy::Arguments),
    Doctor(doctor::Arguments),
    Serve(serve::Arguments),
    Token(token::Arguments),
    Top(top::Arguments),
    Ycsb(ycsb::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
    /// Measure Guira against alternatives, or at a large size.
    #[command(subcommand)]
    Bench(bench::Command),
    Lab(lab::Arguments),
    /// A worker process of ycsb.
    #[command(hide = true)]
    YcsbWorker,
    /// A worker process of quickstart.
    #[command(hide = true)]
    QuickstartWorker(quickstart::WorkerArguments),
}

/// Returns the command line without the hidden commands by which the program starts its own workers.
pub fn public() -> clap::Command {
    let all = Arguments::command();
    let mut public = clap::Command::new("guira")
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments().cloned())
        .subcommands(all.get_subcommands().filter(|command| !command.is_hide_set()).cloned())
        .after_help(exit_codes())
        .subcommand_required(true);
    if let (Some(about), Some(long_about)) = (all.get_about(), all.get_long_about()) {
        public = public.about(about.clone()).long_about(long_about.clone());
    }
    public
}

/// Parses the arguments of this process. If there is nothing to carry out (`--help`, or a mistake), prints the help or
/// the error and returns the exit code.
pub fn parse() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        if !is_answer && asks_for_json(std::env::args_os()) {
            Output::new(Format::Json).error(&as_text(&error, std::env::args_os()));
        } else {
            let printed = error.print().and_then(|()| io::stdout().flush()).map_err(stdout_error);
            if is_answer && let Err(failure) = stdout().and(printed) {
                return Output::new(Format::Human).fail(&failure);
            }
        }
        if is_answer { ExitCode::SUCCESS } else { ExitCode::from(EXIT_MISUSE) }
    })
}

/// Describes a mistake in the arguments in one line, with the values that were expected instead.
fn as_text(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> ErrorText {
    let mut expected = match error.get(ContextKind::InvalidArg) {
        // The missing arguments. The message names an argument that is present and wrong.
        Some(ContextValue::Strings(missing)) if error.kind() == ErrorKind::MissingRequiredArgument => missing.clone(),
        _ => Vec::new(),
    };
    if let Some(ContextValue::Strings(values)) = error.get(ContextKind::ValidValue) {
        expected.clone_from(values);
    }
    let mut message = message_of(error);
    let is_of_commands = matches!(
        error.kind(),
        ErrorKind::MissingSubcommand
            | ErrorKind::InvalidSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let command = named(arguments);
    if is_of_commands {
        expected = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        let wrong = match error.get(ContextKind::InvalidSubcommand) {
            Some(ContextValue::String(name)) if error.kind() == ErrorKind::InvalidSubcommand => {
                format!("unknown command {name:?}")
            }
            _ => "no command given".to_owned(),
        };
        message = format!("{wrong}; expected one of: {}", expected.join(", "));
    }
    let usage = command.clone().render_usage().to_string();
    let usage = Some(usage.trim_start_matches("Usage: ").split_whitespace().collect::<Vec<_>>().join(" "));
    ErrorText { blame: guira::Blame::Misuse.as_str().to_owned(), effect: "none".to_owned(), message, expected, usage }
}

/// Returns the parser's message without headings, usage and hints to the help.
fn message_of(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim);
    let lines = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let mut message = String::new();
    let mut is_list = false;
    for line in lines.filter(|line| !line.is_empty()) {
        let line = line.strip_prefix("error: ").unwrap_or(line);
        message.push_str(match line {
            _ if message.is_empty() => "",
            line if line.starts_with("tip: ") => "; ",
            _ if is_list => ", ",
            _ => " ",
        });
        is_list |= message.trim_end().ends_with(':');
        message.push_str(line);
    }
    message
}

/// Returns the most specific command that the arguments name; options and values are skipped.
fn named(arguments: impl Iterator<Item = OsString>) -> clap::Command {
    let mut command = public();
    command.build();
    for argument in arguments.skip(1) {
        if let Some(below) = command.find_subcommand(&argument).filter(|below| below.get_name() != "help") {
            command = below.clone();
        }
    }
    command
}

/// Whether arguments that cannot be parsed ask for JSON.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let arguments: Vec<OsString> = arguments.collect();
    arguments.iter().any(|argument| argument == "--format=json")
        || arguments.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_but_the_workers_is_public() {
        let names = |command: &clap::Command| -> Vec<String> {
            command.get_subcommands().map(|command| command.get_name().to_owned()).collect()
        };
        let mut known = names(&public());
        assert!(!known.iter().any(|name| name.contains("worker")), "{known:?}");
        known.extend(["ycsb-worker", "quickstart-worker"].map(str::to_owned));
        assert_eq!(known, names(&Arguments::command()));
        public().debug_assert();
    }

    #[test]
    fn every_command_is_described_in_a_line_and_at_length() {
        for command in public().get_subcommands() {
            let about = command.get_about().expect("every command has a description").to_string();
            assert!(about.len() <= 80 && !about.contains('\n'), "{}: {about}", command.get_name());
        }
        let load = parsed("guira load --help").unwrap_err().to_string();
        assert!(load.contains("JSON lines"), "the long description of the arguments is shown: {load}");
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
            "incr shm://a k --by -5",
            "cas shm://a k old new",
            "load shm://a -",
            "dump shm://a",
            "copy shm://a shm://b",
            "list",
            "stat shm://a",
            "check shm://a",
            "check shm://a --repair",
            "kick shm://a --slot 3",
            "grow shm://a --capacity 1M",
            "destroy shm://a",
            "doctor",
            "doctor shm://a --serve 1MiB",
            "serve --capacity 10",
            "token file",
            "top shm://a",
            "ycsb shm://a --workload a",
            "quickstart",
            "completions bash",
            "man",
            "bench peers",
            "bench large",
            "bench records",
            "lab fig6c --quick",
            "lab all --out report",
            "lab ask --clients 8",
            "lab run plan.toml",
            "lab list",
        ] {
            let format = |line: String| parsed(&line).unwrap_or_else(|error| panic!("{line}: {error}")).format;
            assert_eq!(format(format!("guira {line}")), Format::Human);
            assert_eq!(format(format!("guira {line} --format json")), Format::Json);
            assert_eq!(format(format!("guira --format json {line}")), Format::Json);
        }
    }

    /// A command neither shows nor accepts options that have no effect on it.
    #[test]
    fn tls_is_for_commands_that_reach_a_memory_node() {
        let remote = [
            "get", "put", "insert", "update", "del", "incr", "cas", "load", "dump", "copy", "stat", "check", "kick",
            "grow", "top", "ycsb", "doctor",
        ];
        for command in public().get_subcommands() {
            let (name, has) =
                (command.get_name(), |long: &str| command.get_arguments().any(|a| a.get_long() == Some(long)));
            assert_eq!(has("tls-ca"), remote.contains(&name), "{name}");
            assert_eq!(has("tls-cert") && has("tls-key"), remote.contains(&name) || name == "serve", "{name}");
        }
        assert!(parsed("guira --tls-ca x token file").is_err() && parsed("guira man --tls-ca x").is_err());
        assert!(parsed("guira get --tls-ca x --tls-cert y tcp://host k --tls-key z").is_ok());
    }

    #[test]
    fn negative_numbers_and_dashes_can_be_keys() {
        assert!(parsed("guira put shm://a -5 -6").is_ok());
        assert!(parsed("guira put shm://a -- --key -v").is_ok());
    }

    fn mistake(line: &str) -> ErrorText {
        as_text(&parsed(line).unwrap_err(), line.split(' ').map(OsString::from))
    }

    #[test]
    fn mistakes_are_one_line() {
        let text = mistake("guira create smh://a --capacity 10");
        assert!(text.message.contains("smh") && !text.message.contains('\n'), "{}", text.message);
        for line in ["guira", "guira frob", "guira create", "guira get shm://a", "guira create shm://a --capacity x"] {
            let text = mistake(line);
            assert_eq!(text.blame, "misuse", "{line}");
            assert!(!text.message.contains("Usage") && !text.message.contains("--help"), "{line}: {}", text.message);
        }
    }

    /// The message keeps everything the parser says: values, arguments, commands, tips and usage.
    #[test]
    fn mistakes_say_what_was_expected() {
        let text = mistake("guira load shm://a - --input cvs");
        assert_eq!(text.expected, ["tsv", "jsonl", "debian"]);
        assert!(text.message.contains("[possible values: tsv, jsonl, debian]"), "{}", text.message);
        let text = mistake("guira put");
        assert_eq!(text.expected, ["<URL>", "<KEY>", "<VALUE>"]);
        assert!(text.message.ends_with("were not provided: <URL>, <KEY>, <VALUE>"), "{}", text.message);
        assert!(text.usage.as_ref().is_some_and(|usage| usage.starts_with("guira put ")), "{:?}", text.usage);
        for (line, wrong) in
            [("guira", "no command given"), ("guira frob", "unknown command \"frob\""), ("guira bench frob", "frob")]
        {
            let text = mistake(line);
            assert!(text.message.contains(wrong) && text.message.contains("; expected one of: "), "{}", text.message);
            assert!(!text.message.contains("worker"), "{}", text.message);
            let known = if line.contains("bench") { "peers" } else { "quickstart" };
            assert!(text.expected.iter().any(|name| name == known), "{line}: {:?}", text.expected);
        }
        let text = mistake("guira get shm://a k --frmat json");
        assert!(text.message.ends_with("; tip: a similar argument exists: '--format'"), "{}", text.message);
        assert!(mistake("guira create shm://a --capacity x").message.contains("write 10000"));
        assert!(mistake("guira get redis://a k").message.contains("shm://NAME"));
        assert!(mistake("guira kick shm://a --slot 99999").message.contains("0..=65535"));
    }

    #[test]
    fn json_is_recognised_in_invalid_arguments() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        assert!(asks("guira frob --format json") && asks("guira --format=json"));
        assert!(!asks("guira json --format human"));
    }
}
