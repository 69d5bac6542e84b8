//! `cargo xtask test`: every check and every test, in order, each with its heading, its time and its outcome.
//!
//! A failed step does not hide the next one: the others run and every failure is in the summary, except that nothing
//! can follow a build that failed. A step that hangs is killed at its limit, with everything it started.

mod needs;
mod process;
mod ship;
mod steps;

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::report::{Format, Verdict};
use crate::tree;
pub use process::Shell;
pub use steps::{Budget, target_directory};
use steps::{STEPS, Step, StepName};

/// Which steps to run.
#[derive(Args)]
pub struct Options {
    /// Leave this step out; may be repeated.
    #[arg(long, value_name = "STEP", value_enum)]
    skip: Vec<StepName>,
    /// Run only this step; may be repeated.
    #[arg(long, value_name = "STEP", value_enum)]
    only: Vec<StepName>,
    /// List the steps with their commands and limits, and run none.
    #[arg(long)]
    list: bool,
}

impl Options {
    fn selects(&self, name: StepName) -> bool {
        (self.only.is_empty() || self.only.contains(&name)) && !self.skip.contains(&name)
    }
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "detail", rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    Failed(String),
    TimedOut(String),
    /// This machine cannot run the step, and the step is optional.
    NotAvailable(String),
    /// Left out on the command line.
    Skipped,
    /// Not reached, because the build failed.
    NotRun,
}

impl Outcome {
    fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::TimedOut(_))
    }

    fn ran(&self) -> bool {
        matches!(self, Self::Passed) || self.is_failure()
    }

    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "FAILED",
            Self::TimedOut(_) => "TIMED OUT",
            Self::NotAvailable(_) => "not available",
            Self::Skipped => "skipped",
            Self::NotRun => "not run",
        }
    }

    pub fn detail(&self) -> &str {
        match self {
            Self::Failed(detail) | Self::TimedOut(detail) | Self::NotAvailable(detail) => detail,
            Self::Passed | Self::Skipped | Self::NotRun => "",
        }
    }
}

/// Runs `cargo xtask test`.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    if options.list {
        return list(format);
    }
    let shell = Shell::new(tree::workspace_root()?, format);
    let started = Instant::now();
    let done = run_all(options, &shell, |step| step.run(&shell));
    let summary = Summary::new(done, started.elapsed());
    match format {
        Format::Human => println!("\n{}", summary.human()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&summary)?),
    }
    Ok(if summary.ok { Verdict::Passed } else { Verdict::Failed })
}

fn list(format: Format) -> Result<Verdict> {
    match format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&STEPS)?),
        Format::Human => STEPS.iter().for_each(|step| {
            println!("{:<12} at most {:>4} s  {}", step.name.to_string(), step.limit_s, step.title);
        }),
    }
    Ok(Verdict::Passed)
}

/// Runs the selected steps in order with `run`; what follows a failed build is not run.
fn run_all(options: &Options, shell: &Shell, run: impl Fn(&Step) -> Outcome) -> Vec<Done> {
    let mut done = Vec::with_capacity(STEPS.len());
    let mut is_built = true;
    for step in &STEPS {
        let started = Instant::now();
        let outcome = match (options.selects(step.name), is_built) {
            (false, _) => Outcome::Skipped,
            (true, false) => Outcome::NotRun,
            (true, true) => {
                shell.say(&format!("\n== {}: {}", step.name, step.title));
                let outcome = run(step);
                let seconds = started.elapsed().as_secs_f64();
                let line = format!("-- {} {} in {seconds:.1} s  {}", step.name, outcome.word(), outcome.detail());
                shell.say(line.trim_end());
                outcome
            }
        };
        is_built &= !(step.name == StepName::Build && outcome.is_failure());
        done.push(Done { name: step.name.to_string(), seconds: started.elapsed().as_secs_f64(), outcome });
    }
    done
}

/// One step's line in the summary.
#[derive(Debug, Serialize)]
struct Done {
    name: String,
    seconds: f64,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
struct Summary {
    ok: bool,
    seconds: f64,
    steps: Vec<Done>,
}

impl Summary {
    fn new(steps: Vec<Done>, elapsed: Duration) -> Self {
        let ok = !steps.iter().any(|done| done.outcome.is_failure() || done.outcome == Outcome::NotRun);
        Self { ok, seconds: elapsed.as_secs_f64(), steps }
    }

    fn human(&self) -> String {
        let mut lines = vec![format!("{:<12} {:>9}  outcome", "step", "seconds")];
        lines.extend(self.steps.iter().map(|done| {
            let line = format!(
                "{:<12} {:>9.1}  {:<13} {}",
                done.name,
                done.seconds,
                done.outcome.word(),
                done.outcome.detail()
            );
            line.trim_end().to_owned()
        }));
        let failed: Vec<&str> =
            self.steps.iter().filter(|done| done.outcome.is_failure()).map(|done| done.name.as_str()).collect();
        // A part that passed must not read like the whole: say how many steps ran.
        let ran = self.steps.iter().filter(|done| done.outcome.ran()).count();
        let ran = format!("{ran} of {} steps ran in {:.1} s", self.steps.len(), self.seconds);
        lines.push(match self.ok {
            true => format!("test: passed; {ran}"),
            false => format!("test: FAILED: {}; {ran}", failed.join(", ")),
        });
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn options(skip: &[StepName], only: &[StepName]) -> Options {
        Options { skip: skip.to_vec(), only: only.to_vec(), list: false }
    }

    fn outcomes(options: &Options, failing: StepName) -> Summary {
        let shell = Shell::new(PathBuf::from("."), Format::Json);
        let run = |step: &Step| match step.name == failing {
            true => Outcome::Failed("exit code 1".to_owned()),
            false => Outcome::Passed,
        };
        Summary::new(run_all(options, &shell, run), Duration::from_secs(1))
    }

    fn count(summary: &Summary, outcome: &Outcome) -> usize {
        summary.steps.iter().filter(|done| done.outcome == *outcome).count()
    }

    #[test]
    fn a_failed_step_fails_the_whole_and_the_others_still_run() {
        let summary = outcomes(&options(&[], &[]), StepName::Clippy);
        assert!(!summary.ok);
        assert_eq!(count(&summary, &Outcome::Passed), STEPS.len() - 1);
        assert!(summary.human().ends_with("FAILED: clippy; 17 of 17 steps ran in 1.0 s"));
    }

    #[test]
    fn nothing_follows_a_failed_build() {
        let summary = outcomes(&options(&[], &[]), StepName::Build);
        let build = STEPS.iter().position(|step| step.name == StepName::Build).expect("there is a build");
        assert!(!summary.ok);
        assert_eq!(count(&summary, &Outcome::Passed), build);
        assert_eq!(count(&summary, &Outcome::NotRun), STEPS.len() - build - 1);
    }

    #[test]
    fn skip_and_only_select_and_a_skipped_step_is_no_failure() {
        let summary = outcomes(&options(&[StepName::Clippy], &[]), StepName::Clippy);
        assert!(summary.ok);
        assert_eq!(count(&summary, &Outcome::Skipped), 1);
        let summary = outcomes(&options(&[], &[StepName::Format, StepName::Check]), StepName::Clippy);
        assert!(summary.ok);
        assert_eq!(count(&summary, &Outcome::Passed), 2);
        assert!(summary.human().ends_with("passed; 2 of 17 steps ran in 1.0 s"));
    }

    #[test]
    fn the_json_of_a_step_has_name_seconds_and_outcome() {
        let summary = outcomes(&options(&[], &[StepName::Clippy]), StepName::Clippy);
        let json = serde_json::to_value(&summary).expect("a summary is plain data");
        let clippy = json["steps"].as_array().and_then(|steps| steps.iter().find(|step| step["name"] == "clippy"));
        let clippy = clippy.expect("every step is in the summary");
        assert_eq!((&clippy["outcome"], &clippy["detail"]), (&"failed".into(), &"exit code 1".into()));
        assert!(clippy["seconds"].is_number());
        assert_eq!(json["steps"][0]["outcome"], "skipped");
    }
}
