//! `guira lab ask`: answers one question.

use clap::{Arg, ArgMatches, Args, FromArgMatches};
use guira_lab::experiment::{
    Accepts, Answer, Experiment, Growth, GrowthAnswer, Kind, KindAnswer, LabError, Mix, PARAMETERS, Parameter, Times,
    Value, ask, ask_growth,
};
use guira_lab::report::number;

use super::RunArguments;
use super::watch::Watcher;
use crate::failure::Failure;
use crate::output::{Output, fields, table};
use crate::units::{count, counted, parse_count, percent};

/// The arguments: the options of a run, and one for each parameter of an experiment.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    run: RunArguments,
    /// Show what growing costs: a table that is made for one N-th of its keys, and grows until the fixed one beside it
    /// is full as asked [default: 32].
    ///
    /// Both tables have as many keys at first as the one that grows is made for, and clients insert the others. Without
    /// further options the workload is w, and the entries are 2 million, or 200,000 with --quick.
    #[arg(long, value_name = "N", conflicts_with = "seeds", num_args = 0..=1, default_missing_value = "32", value_parser = clap::value_parser!(u32).range(2..=i64::from(Growth::FACTOR_MAX)))]
    grow: Option<u32>,
    /// With --grow: time in which the memory node's processor makes 64 KiB of memory, in µs.
    #[arg(long, value_name = "X", requires = "grow", allow_negative_numbers = true, default_value_t = Growth::default().memory_us)]
    memory_us: f64,
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
/// Entries of a table of fixed size beside one that grows, unless others are given: so few that a run takes a minute.
const GROWN_ENTRIES: u64 = 2_000_000;
/// Same for a quick run.
const QUICK_GROWN_ENTRIES: u64 = 200_000;

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

impl Arguments {
    /// Returns the experiment that is asked for.
    fn experiment(&self) -> Result<Experiment, LabError> {
        let default = Experiment::default();
        self.parameters.apply_to(match (self.grow, self.run.quick) {
            (None, false) => default,
            (None, true) => Experiment { entries: QUICK_ENTRIES, ..default },
            (Some(_), quick) => {
                let entries = if quick { QUICK_GROWN_ENTRIES } else { GROWN_ENTRIES };
                Experiment { entries, workload: Mix::W, ..default }
            }
        })
    }
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<(), Failure> {
    let (experiment, options) = (arguments.experiment()?, arguments.run.options(arguments.run.seeds.unwrap_or(1)));
    let watcher = Watcher::new(output);
    let Some(factor) = arguments.grow else {
        let answer = answered(ask(&experiment, &options, &watcher), &watcher)?;
        return output.answer(&answer, || human(&answer));
    };
    let growth = Growth { factor, memory_us: arguments.memory_us };
    let answer = answered(ask_growth(&experiment, &growth, &options, &watcher), &watcher)?;
    output.answer(&answer, || human_growth(&answer))
}

fn answered<A>(answer: Result<A, LabError>, watcher: &Watcher<'_>) -> Result<A, Failure> {
    watcher.finish();
    match answer {
        Err(LabError::Stopped) => Err(Failure::LabStopped { kept: None }),
        answer => Ok(answer?),
    }
}

/// Resources whose use is shown, the most used first.
const RESOURCES_MAX: usize = 4;

/// Formats an answer.
fn human(answer: &Answer) -> String {
    let experiment = &answer.experiment;
    let asked = asked(experiment);
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
    let spread = answer
        .throughput_spread
        .map_or(String::new(), |(lowest, highest)| format!(", {} to {} by seed", number(lowest), number(highest)));
    let mut lines = vec![
        ("throughput", format!("{} million operations a second{spread}", number(answer.throughput_mops))),
        (
            "measured",
            format!("{} ms, {}", number(answer.span_us / 1e3), if answer.is_steady { "steady" } else { "not steady" }),
        ),
        ("slowest client", format!("{} of the mean", percent(answer.fairness))),
        ("limited by", answer.bound_by.clone()),
    ];
    lines.extend(answer.matches_mops.map(|matches| ("records found", format!("{} million a second", number(matches)))));
    lines.extend(answer.element_bytes.map(|bytes| ("element", format!("{bytes} bytes of state at the end"))));
    lines.extend(answer.read_slots.map(|slots| ("a READ", format!("fetches {}", counted(slots, "slot")))));
    if answer.fill_at_end > experiment.fill + 0.01 {
        lines.push((
            "filled",
            format!("from {} to {}", percent(experiment.fill / 100.0), percent(answer.fill_at_end / 100.0)),
        ));
    }
    if !used.is_empty() {
        lines.push(("in use", used.join(", ")));
    }
    let notes: String = answer.notes.iter().map(|note| format!("\n\n{note}")).collect();
    format!("{asked}\n\n{}\n\n{}{notes}", fields(&lines), table(&rows))
}

/// Formats the settings of an experiment.
fn asked(experiment: &Experiment) -> String {
    let named = |name: &str| experiment.value_of(name).map_or(String::new(), |value| value.to_string());
    format!(
        "{}: {} on {} with {}, workload {}, theta {}, {} entries of {}, {} % full",
        named("setting"),
        counted(experiment.clients.into(), "client"),
        counted(experiment.hosts.min(experiment.clients).into(), "host"),
        named("nic"),
        named("workload"),
        named("theta"),
        count(experiment.entries),
        named("format"),
        named("fill"),
    )
}

/// Formats an answer about growth.
fn human_growth(answer: &GrowthAnswer) -> String {
    let GrowthAnswer { grows, fixed, ratio, .. } = answer;
    let mut rows = vec![["", "grows", "fixed", "ratio"].map(str::to_owned).to_vec()];
    let mut row = |name: &str, figures: [f64; 2], ratio: f64| {
        rows.push([name.to_owned()].into_iter().chain([figures[0], figures[1], ratio].map(number)).collect());
    };
    row("million operations a second", [grows, fixed].map(|side| side.answer.throughput_mops), ratio.throughput);
    let insert = |figure: fn(&KindAnswer) -> f64| {
        [grows, fixed].map(|side| side.answer.kinds.iter().find(|kind| kind.kind == Kind::Insert).map_or(0.0, figure))
    };
    row("insert: p50 µs", insert(|kind| kind.p50_us), ratio.p50);
    row("insert: p99 µs", insert(|kind| kind.p99_us), ratio.p99);
    row("insert: p99.9 µs", insert(|kind| kind.p999_us), ratio.p999);
    row("insert: round trips", insert(|kind| kind.round_trips), ratio.round_trips);
    row("insert: messages", insert(|kind| kind.messages), ratio.messages);
    row("insert: bytes", insert(|kind| kind.bytes), ratio.bytes);
    row("bytes of rows a key, in the end", [grows, fixed].map(|side| side.row_bytes_per_key), ratio.memory);
    let (asked, table) = (asked(&fixed.answer.experiment), table(&rows));
    let keys =
        format!("{} keys at first, for which one table is made, and {}", count(answer.first_keys), count(grows.keys));
    let sides = fields(&[
        ("fill in the end", format!("{} % and {} %", number(grows.fill_percent), number(fixed.fill_percent))),
        ("limited by", format!("{}; and {}", grows.answer.bound_by, fixed.answer.bound_by)),
    ]);
    let notes: String =
        [grows, fixed].iter().flat_map(|side| &side.answer.notes).map(|note| format!("\n\n{note}")).collect();
    format!("{asked}\n{keys} in the end\n\n{table}\n{sides}\n{}{notes}", human_splits(answer))
}

/// Formats what splits cost.
fn human_splits(answer: &GrowthAnswer) -> String {
    let splits = &answer.splits;
    let times = |times: &Times| {
        let [p50, p99, max] = [times.p50_us, times.p99_us, times.max_us].map(number);
        format!("p50 {p50} µs, p99 {p99} µs, longest {max} µs")
    };
    let each = [splits.round_trips, splits.messages, splits.bytes].map(number);
    let waiting = format!("{} changes for each split", number(splits.waiting_per_split));
    fields(&[
        ("splits", format!("{}, one for {} inserts", count(splits.splits), number(splits.inserts_per_split))),
        ("in vain", format!("{}, because another client was faster", count(splits.in_vain))),
        ("a split takes", times(&splits.time)),
        ("a split costs", format!("{} round trips, {} messages, {} bytes", each[0], each[1], each[2])),
        ("it holds locks for", times(&splits.locks_held)),
        ("others wait", format!("{waiting}: {}", times(&splits.waits))),
        ("of all time", format!("{} of the clients' time is waits for splits", percent(splits.waiting_share))),
    ])
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
