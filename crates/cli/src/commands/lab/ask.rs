//! `guira lab ask`: answers one question.

use clap::{Arg, ArgMatches, Args, FromArgMatches};
use guira_lab::experiment::{Accepts, Answer, Experiment, LabError, PARAMETERS, Parameter, Value, ask};
use guira_lab::report::number;

use super::RunArguments;
use super::watch::Watcher;
use crate::failure::Failure;
use crate::output::{Output, fields, table};
use crate::units::{count, parse_count, percent};

/// The arguments: the options of a run, and one for each parameter of an experiment.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    parameters: Parameters,
}

/// The values of parameters as they are given.
#[derive(Debug, Default)]
struct Parameters {
    given: Vec<(&'static str, String)>,
}

/// The name of a parameter's option. The option --format is that of the output.
fn option_of(parameter: &Parameter) -> &'static str {
    if parameter.name == "format" { "entry" } else { parameter.name }
}

impl Args for Parameters {
    fn augment_args(command: clap::Command) -> clap::Command {
        let default = Experiment::default();
        PARAMETERS.iter().fold(command, |command, parameter| {
            let default =
                default.value_of(parameter.name).map_or(String::new(), |value| format!(" [default: {value}]"));
            let unit = if parameter.unit.is_empty() { String::new() } else { format!(" in {}", parameter.unit) };
            let help = format!("The {}{unit}: {}{default}", parameter.label, parameter.accepts);
            let name = option_of(parameter);
            let argument = Arg::new(name).long(name).value_name(value_name(parameter)).help(help);
            // Negative numbers are refused by name, and not as unknown options.
            command.arg(argument.allow_hyphen_values(true))
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Parameters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Parameters, clap::Error> {
        let mut parameters = Parameters::default();
        parameters.update_from_arg_matches(matches)?;
        Ok(parameters)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given = PARAMETERS
            .iter()
            .filter_map(|parameter| Some((parameter.name, matches.get_one::<String>(option_of(parameter))?.clone())))
            .collect();
        Ok(())
    }
}

fn value_name(parameter: &Parameter) -> &'static str {
    match parameter.accepts {
        Accepts::Integer(..) | Accepts::PowerOfTwo(..) => "N",
        Accepts::Number(..) => "X",
        Accepts::Name(_) => "NAME",
        Accepts::Format => "FORMAT",
    }
}

/// Entries of the table of a quick run, unless others are given: those of quick figures, at most.
const QUICK_ENTRIES: u64 = 2_000_000;

impl Parameters {
    /// Returns `experiment` with these parameters.
    fn apply_to(&self, mut experiment: Experiment) -> Result<Experiment, LabError> {
        for (name, text) in &self.given {
            let number = parse_count(text).ok().and_then(|number| i64::try_from(number).ok());
            let value = number.map_or_else(|| Value::parse(text), Value::Integer);
            experiment = experiment.with(name, &value)?;
        }
        experiment.check()?;
        Ok(experiment)
    }
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<(), Failure> {
    let mut experiment = Experiment::default();
    if arguments.run.quick {
        experiment.entries = QUICK_ENTRIES;
    }
    let experiment = arguments.parameters.apply_to(experiment)?;
    let watcher = Watcher::new(output);
    let answer = ask(&experiment, &arguments.run.options(), &watcher);
    watcher.finish();
    let answer = match answer {
        Err(LabError::Stopped) => return Err(Failure::LabStopped { kept: None }),
        answer => answer?,
    };
    output.answer(&answer, || human(&answer))
}

/// Resources whose use is shown, the most used first.
const RESOURCES_MAX: usize = 4;

/// Formats an answer.
fn human(answer: &Answer) -> String {
    let experiment = &answer.experiment;
    let named = |name: &str| experiment.value_of(name).map_or(String::new(), |value| value.to_string());
    let asked = format!(
        "{}: {} clients on {} hosts with {}, workload {}, theta {}, {} entries of {}, {} % full",
        named("setting"),
        count(experiment.clients.into()),
        count(experiment.hosts.min(experiment.clients).into()),
        named("nic"),
        named("workload"),
        named("theta"),
        count(experiment.entries),
        named("format"),
        named("fill"),
    );
    let mut rows = vec![
        ["", "operations", "p50 µs", "p99 µs", "p99.9 µs", "round trips", "messages", "bytes"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for kind in &answer.kinds {
        let costs = [kind.p50_us, kind.p99_us, kind.p999_us, kind.round_trips, kind.messages, kind.bytes];
        let head = [kind.kind.name().to_owned(), count(kind.operations)];
        rows.push(head.into_iter().chain(costs.map(number)).collect());
    }
    let used = answer
        .resources
        .iter()
        .take(RESOURCES_MAX)
        .map(|(name, share)| format!("{name} {}", percent(*share)))
        .collect::<Vec<_>>();
    let mut lines = vec![
        ("throughput", format!("{} million operations a second", number(answer.throughput_mops))),
        ("slowest client", format!("{} of the mean", percent(answer.fairness))),
        ("limited by", answer.bound_by.clone()),
    ];
    if !used.is_empty() {
        lines.push(("in use", used.join(", ")));
    }
    let notes: String = answer.notes.iter().map(|note| format!("\n\n{note}")).collect();
    format!("{asked}\n\n{}\n\n{}{notes}", fields(&lines), table(&rows))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn asked(line: &str) -> Result<Experiment, String> {
        let line = Line::try_parse_from(format!("ask {line}").split_whitespace()).map_err(|error| error.to_string())?;
        line.arguments.parameters.apply_to(Experiment::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_parameter_is_an_option() {
        let default = Experiment::default();
        assert_eq!(asked(""), Ok(default));
        let line = "--nic connectx-6 --workload b --clients 1k --theta 0 --entries 4M --entry fixed:8:8 --fill 50";
        let experiment = asked(line).unwrap();
        assert_eq!((experiment.clients, experiment.entries, experiment.theta), (1000, 4_000_000, 0.0));
        assert_eq!(experiment.format.to_string(), "fixed:8:8");
    }

    #[test]
    fn a_wrong_value_is_named_with_the_right_ones() {
        for (line, expected) in [
            ("--clients 0", "clients is 0, but must be a whole number from 1 to 32767"),
            ("--theta -1", "theta is -1, but must be a number from 0 to 2"),
            ("--theta 2.1", "theta is 2.1, but must be a number from 0 to 2"),
            ("--nic connectx-9", "nic is connectx-9, but must be one of connectx-3"),
            ("--setting paper", "setting is paper, but must be one of guira"),
            ("--rows-per-lock 24", "rows-per-lock is 24, but must be a power of two"),
            ("--lock-bits 8", "320 clients are more than the 127 slots"),
        ] {
            let message = asked(line).unwrap_err();
            assert!(message.starts_with(expected), "{line}: {message}");
        }
    }
}
