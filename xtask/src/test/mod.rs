//! `cargo xtask test`, the gate: what decides whether a change is right. `cargo xtask release`, the release check: what
//! measures this machine, takes long, or asks what changes without the sources. Both run their steps by two workers,
//! each step with its heading, its time and its outcome.
//!
//! A failed step does not stop the others: they run, and every failure is in the summary; only steps that need a failed
//! build are not run. A step that hangs is killed at its limit, with all its processes. The output of a step is printed
//! when it ends, and is in `target/xtask/STEP.log` meanwhile.

pub mod budget;
mod changed;
mod needs;
mod porcupine;
mod process;
mod ship;
mod steps;
mod suites;
mod workers;

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::report::{Format, Verdict};
use crate::tree;
use budget::Times;
use changed::Changed;
pub use process::Shell;
pub use steps::{Budget, STEPS, target_directory};
use steps::{Step, StepName};
use suites::Programs;

/// Interval of the lines that name the running steps.
const PROGRESS_EVERY: Duration = Duration::from_secs(60);

/// The steps to run.
#[derive(Args)]
pub struct Options {
    /// Leave this step out; may be repeated.
    #[arg(long, value_name = "STEP", value_enum)]
    skip: Vec<StepName>,
    /// Run only this step; may be repeated.
    #[arg(long, value_name = "STEP", value_enum)]
    only: Vec<StepName>,
    /// Run only the steps and tests that a change can affect: the difference from the commit BASE, or from the last
    /// one.
    #[arg(long, value_name = "BASE", num_args = 0..=1, default_missing_value = "HEAD", conflicts_with = "long")]
    changed: Option<String>,
    /// Run the long forms: histories for an hour, 100,000 seeds, fuzz targets for a minute each. Takes hours.
    #[arg(long)]
    long: bool,
    /// Record the time of every step in xtask/budget.toml. Use a fresh clone and an empty cargo home.
    #[arg(long, conflicts_with_all = ["skip", "only", "changed", "long"])]
    record: bool,
    /// List the steps with their commands, budgets and limits, and run none.
    #[arg(long)]
    list: bool,
}

/// The selected part of the tests, and the times of its suites.
pub struct Scope {
    pub is_long: bool,
    changed: Option<Changed>,
    /// Suites and their seconds, in the order in which they ended.
    suites: Mutex<Vec<(String, f64)>>,
    /// The test programs, once a step has built them; asking cargo again would wait for its lock.
    programs: Mutex<Option<Arc<Programs>>>,
}

impl Scope {
    fn of(options: &Options, shell: &Shell) -> Result<Scope> {
        let changed = options.changed.as_ref().map(|base| Changed::since(base, shell)).transpose()?;
        Ok(Scope { is_long: options.long, changed, suites: Mutex::default(), programs: Mutex::default() })
    }

    /// Whether all tests are selected.
    pub fn is_whole(&self) -> bool {
        self.changed.is_none()
    }

    /// Whether the package's tests are selected.
    pub fn touches(&self, package: &str) -> bool {
        self.changed.as_ref().is_none_or(|changed| changed.touches(package))
    }

    fn concerns(&self, step: StepName) -> bool {
        self.changed.as_ref().is_none_or(|changed| changed.concerns(step))
    }

    /// The test programs: those that an earlier step built, or else the result of `build`.
    pub fn programs(&self, build: impl FnOnce() -> Result<Programs, Outcome>) -> Result<Arc<Programs>, Outcome> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        match &*programs {
            Some(built) => Ok(Arc::clone(built)),
            None => Ok(Arc::clone(programs.insert(Arc::new(build()?)))),
        }
    }

    /// Keeps the time of a suite.
    pub fn note(&self, suite: &str, seconds: f64) {
        self.suites.lock().unwrap_or_else(PoisonError::into_inner).push((suite.to_owned(), seconds));
    }
}

impl Options {
    fn selects(&self, purpose: Purpose, name: StepName) -> bool {
        let is_chosen = if self.only.is_empty() { purpose.has(name) } else { self.only.contains(&name) };
        is_chosen && !self.skip.contains(&name)
    }
}

/// The outcome of a step.
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
    /// Not run, because a build that it needs failed.
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

/// Which steps a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Gate,
    Release,
}

impl Purpose {
    /// The steps that both begin with, and its own.
    fn has(self, name: StepName) -> bool {
        let is_of_both = matches!(name, StepName::Needs | StepName::Components);
        is_of_both || name.is_of_release() == (self == Purpose::Release)
    }
}

/// Runs `cargo xtask test` or `cargo xtask release`. A step that is named by `--only` runs in either.
pub fn command(purpose: Purpose, options: &Options, format: Format) -> Result<Verdict> {
    let shell = Shell::new(tree::workspace_root()?, format);
    let times = budget::read(shell.root()).unwrap_or_default();
    if options.list {
        return list(purpose, &times, format);
    }
    let (started, scope) = (Instant::now(), Scope::of(options, &shell)?);
    let logs = Logs::new(&shell)?;
    let selects = |name| options.selects(purpose, name) && scope.concerns(name);
    let done = with_progress(&shell, |running| {
        let run = |step: &Step| {
            running.started(step.name);
            match logs.shell(&shell, step.name) {
                Ok(logged) => step.run(&logged, &scope),
                Err(error) => Outcome::Failed(format!("{}: {error}", logs.path(step.name).display())),
            }
        };
        workers::run_all(workers::count(), selects, run, |step, done| {
            running.ended(step.name, || logs.show(&shell, step, done));
        })
    });
    let elapsed_s = started.elapsed().as_secs_f64();
    let suites = scope.suites.into_inner().unwrap_or_else(PoisonError::into_inner);
    let summary = Summary::new(done, suites, elapsed_s, &times);
    match format {
        Format::Human => println!("\n{}", summary.human()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&summary)?),
    }
    if options.record {
        ensure!(summary.ok, "the times of a failed run are not recorded");
        budget::record(shell.root(), elapsed_s, &summary.steps, &summary.suites)?;
    }
    Ok(if summary.ok { Verdict::Passed } else { Verdict::Failed })
}

fn list(purpose: Purpose, times: &Times, format: Format) -> Result<Verdict> {
    let steps: Vec<&Step> = STEPS.iter().filter(|step| purpose.has(step.name)).collect();
    match format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&steps)?),
        Format::Human => steps.iter().for_each(|step| {
            let name = step.name.to_string();
            let budget = times.budget_s(&name).map_or("-".to_owned(), |seconds| format!("{seconds:.0}"));
            println!("{name:<12} budget {budget:>4} s, at most {:>5} s  {}", step.limit_s, step.title);
        }),
    }
    Ok(Verdict::Passed)
}

/// The logs that steps write while they run.
struct Logs {
    directory: PathBuf,
}

impl Logs {
    fn new(shell: &Shell) -> Result<Logs> {
        let directory = target_directory(shell, "xtask");
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        Ok(Logs { directory })
    }

    fn path(&self, step: StepName) -> PathBuf {
        self.directory.join(format!("{step}.log"))
    }

    /// A shell that writes to the step's log.
    fn shell(&self, shell: &Shell, step: StepName) -> io::Result<Shell> {
        Ok(shell.logged(File::create(self.path(step))?))
    }

    /// Prints the output of the step below its heading.
    fn show(&self, shell: &Shell, step: &Step, done: &Done) {
        shell.say(&format!("\n== {}: {}", step.name, step.title));
        let printed = fs::read(self.path(step.name)).unwrap_or_default();
        shell.say(String::from_utf8_lossy(&printed).trim_end());
        let line =
            format!("-- {} {} in {:.1} s  {}", step.name, done.outcome.word(), done.seconds, done.outcome.detail());
        shell.say(line.trim_end());
    }
}

/// The running steps with their start times.
struct Running<'s> {
    shell: &'s Shell,
    steps: Mutex<Vec<(StepName, Instant)>>,
}

impl Running<'_> {
    fn started(&self, step: StepName) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push((step, Instant::now()));
    }

    /// Removes the step, and runs `show` while no other step prints.
    fn ended(&self, step: StepName, show: impl FnOnce()) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.retain(|(name, _)| *name != step);
        show();
    }

    fn report(&self) {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = steps.iter().map(|(name, since)| format!("{name} for {} s", since.elapsed().as_secs()));
        self.shell.say(&format!("   running: {}", lines.collect::<Vec<_>>().join(", ")));
    }
}

/// Runs `work`, and prints every minute which steps run.
fn with_progress<T>(shell: &Shell, work: impl FnOnce(&Running<'_>) -> T) -> T {
    let running = Running { shell, steps: Mutex::default() };
    let (ends, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| {
            let end = end;
            while end.recv_timeout(PROGRESS_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                running.report();
            }
        });
        let result = work(&running);
        drop(ends);
        result
    })
}

/// One step's line in the summary.
#[derive(Debug, Serialize)]
pub struct Done {
    pub name: String,
    pub seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_s: Option<f64>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Done {
    fn new(step: &Step, seconds: f64, outcome: Outcome) -> Done {
        Done { name: step.name.to_string(), seconds, budget_s: None, outcome }
    }

    fn line(&self) -> String {
        let budget = self.budget_s.map_or("-".to_owned(), |seconds| format!("{seconds:.0}"));
        let is_over = self.outcome.ran() && self.budget_s.is_some_and(|budget_s| self.seconds > budget_s);
        let over = if is_over { "over budget " } else { "" };
        let (word, detail) = (self.outcome.word(), self.outcome.detail());
        let line = format!("{:<12} {:>9.1} {budget:>8}  {word:<13} {over}{detail}", self.name, self.seconds);
        line.trim_end().to_owned()
    }
}

#[derive(Debug, Serialize)]
struct Summary {
    ok: bool,
    seconds: f64,
    steps: Vec<Done>,
    /// Names and seconds of the suites.
    suites: Vec<(String, f64)>,
}

impl Summary {
    fn new(steps: Vec<Done>, suites: Vec<(String, f64)>, seconds: f64, times: &Times) -> Self {
        let ok = !steps.iter().any(|done| done.outcome.is_failure() || done.outcome == Outcome::NotRun);
        let with_budget = |done: Done| Done { budget_s: times.budget_s(&done.name), ..done };
        Self { ok, seconds, steps: steps.into_iter().map(with_budget).collect(), suites }
    }

    fn human(&self) -> String {
        let mut lines = vec![format!("{:<12} {:>9} {:>8}  outcome", "step", "seconds", "budget")];
        lines.extend(self.steps.iter().filter(|done| done.outcome != Outcome::Skipped).map(Done::line));
        let failed: Vec<&str> =
            self.steps.iter().filter(|done| done.outcome.is_failure()).map(|done| done.name.as_str()).collect();
        // A part that passed must not look like the whole, so the line has the number of steps.
        let ran = self.steps.iter().filter(|done| done.outcome.ran()).count();
        let selected = self.steps.iter().filter(|done| done.outcome != Outcome::Skipped).count();
        let ran = format!("{ran} of {selected} selected steps ran in {:.1} s", self.seconds);
        lines.push(match self.ok {
            true => format!("test: passed; {ran}"),
            false => format!("test: FAILED: {}; {ran}", failed.join(", ")),
        });
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(skip: &[StepName], only: &[StepName]) -> Options {
        let (skip, only) = (skip.to_vec(), only.to_vec());
        Options { skip, only, changed: None, long: false, record: false, list: false }
    }

    fn outcomes(options: &Options, failing: StepName) -> Summary {
        let run = |step: &Step| match step.name == failing {
            true => Outcome::Failed("exit code 1".to_owned()),
            false => Outcome::Passed,
        };
        let done = workers::run_all(2, |name| options.selects(Purpose::Gate, name), run, |_, _| {});
        Summary::new(done, Vec::new(), 1.0, &Times::default())
    }

    /// The steps of the gate.
    fn gate() -> impl Iterator<Item = &'static Step> {
        STEPS.iter().filter(|step| Purpose::Gate.has(step.name))
    }

    fn count(summary: &Summary, outcome: &Outcome) -> usize {
        summary.steps.iter().filter(|done| done.outcome == *outcome).count()
    }

    #[test]
    fn a_failed_step_fails_the_run_and_the_others_still_run() {
        let summary = outcomes(&options(&[], &[]), StepName::Clippy);
        assert!(!summary.ok);
        let all = gate().count();
        assert_eq!(count(&summary, &Outcome::Passed), all - 1);
        assert!(summary.human().ends_with(&format!("FAILED: clippy; {all} of {all} selected steps ran in 1.0 s")));
    }

    #[test]
    fn steps_that_need_a_failed_build_do_not_run() {
        let summary = outcomes(&options(&[], &[]), StepName::TestBuild);
        let needs_it = gate().filter(|step| step.after.contains(&StepName::TestBuild)).count();
        assert!(!summary.ok && needs_it > 2);
        assert_eq!(count(&summary, &Outcome::NotRun), needs_it);
        assert_eq!(count(&summary, &Outcome::Passed), gate().count() - needs_it - 1);
    }

    #[test]
    fn skip_and_only_select_steps_and_a_skipped_step_is_not_a_failure() {
        let summary = outcomes(&options(&[StepName::Clippy], &[]), StepName::Clippy);
        assert!(summary.ok);
        assert_eq!(count(&summary, &Outcome::Skipped), STEPS.len() - gate().count() + 1);
        let summary = outcomes(&options(&[], &[StepName::Format, StepName::Check]), StepName::Clippy);
        assert!(summary.ok);
        assert_eq!(count(&summary, &Outcome::Passed), 2);
        assert!(summary.human().ends_with("passed; 2 of 2 selected steps ran in 1.0 s"), "{}", summary.human());
    }

    /// Every step belongs to one command, and those that measure the machine do not decide whether a change is right.
    #[test]
    fn the_gate_has_no_step_that_measures_a_machine() {
        let names = |purpose: Purpose| STEPS.iter().map(|step| step.name).filter(move |name| purpose.has(*name));
        let release: Vec<StepName> = names(Purpose::Release).collect();
        assert!(names(Purpose::Gate).filter(|name| release.contains(name)).eq([StepName::Needs, StepName::Components]));
        assert_eq!(names(Purpose::Gate).count() + release.len(), STEPS.len() + 2);
        let measures = [StepName::Instructions, StepName::Advisories, StepName::Rdma, StepName::Mutants];
        assert!(measures.iter().all(|name| release.contains(name)));
        assert!(options(&[], &[StepName::Mutants]).selects(Purpose::Gate, StepName::Mutants), "--only names any step");
    }

    #[test]
    fn a_time_over_its_budget_is_shown_and_is_not_a_failure() {
        let times = Times::parse("[whole]\n[suites]\n[steps.clippy]\nbudget_s = 60\n").expect("it parses");
        let done = Done::new(&STEPS[StepName::Clippy.index()], 70.0, Outcome::Passed);
        let summary = Summary::new(vec![done], Vec::new(), 70.0, &times);
        assert!(
            summary.ok && summary.human().contains("70.0       60  passed        over budget"),
            "{}",
            summary.human()
        );
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
