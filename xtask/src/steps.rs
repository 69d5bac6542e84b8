//! The steps of `cargo xtask test` and `cargo xtask release`: run one after the other, each with its heading, its time,
//! its outcome and the command that repeats it.
//!
//! A failed step does not stop the others. The output of each step is shown while it runs and kept in
//! `target/xtask/STEP.log`; the last lines of failed steps are printed again at the end, behind the summary, so that a
//! cut log still shows the cause.

use std::fs::{self, File};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::report::{Format, Verdict};
use crate::shell::{Outcome, Shell};
use crate::tree;

/// Lines of a failed step that are printed again.
const TAIL_LINES: usize = 40;

/// One step of a command.
#[derive(Serialize)]
pub struct Step {
    /// Its name in `--only` and `--skip`.
    pub name: &'static str,
    /// The command or the property that it checks, in one line.
    pub title: &'static str,
    #[serde(skip)]
    pub run: fn(&Shell) -> Outcome,
}

/// The steps to run.
#[derive(Args)]
pub struct Options {
    /// Run only this step; may be repeated.
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Leave this step out; may be repeated.
    #[arg(long, value_name = "STEP")]
    skip: Vec<String>,
    /// List the steps, and run none.
    #[arg(long)]
    list: bool,
}

/// The result of one step.
#[derive(Debug, Serialize)]
struct Done {
    name: &'static str,
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

/// Runs the selected steps of `cargo xtask COMMAND`.
pub fn run(command: &str, steps: &[Step], options: &Options, format: Format) -> Result<Verdict> {
    let steps = options.select(steps)?;
    if options.list {
        match format {
            Format::Human => steps.iter().for_each(|step| println!("{:<12} {}", step.name, step.title)),
            Format::Json => println!("{}", serde_json::to_string_pretty(&steps)?),
        }
        return Ok(Verdict::Passed);
    }
    let shell = Shell::new(tree::workspace_root()?, format);
    let summary = run_all(&shell, command, &steps)?;
    shell.say(&format!("\n{}", summary.human(command)));
    summary.steps.iter().filter(|done| done.outcome.is_failure()).for_each(|done| {
        shell.say(&format!(
            "\n== the last lines of {}; cargo xtask {command} --only {} repeats it",
            done.name, done.name
        ));
        shell.say(&tail(&fs::read_to_string(log_of(&shell, done.name)).unwrap_or_default()));
    });
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    }
    Ok(if summary.ok { Verdict::Passed } else { Verdict::Failed })
}

fn run_all(shell: &Shell, command: &str, steps: &[&Step]) -> Result<Summary> {
    let logs = shell.target_directory("xtask");
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let started = Instant::now();
    let mut done = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        shell.say(&format!("\n== {} ({} of {}): {}", step.name, index + 1, steps.len(), step.title));
        let (began, log) = (Instant::now(), log_of(shell, step.name));
        let outcome = match File::create(&log) {
            Ok(log) => (step.run)(&shell.logged(log)),
            Err(error) => Outcome::Failed(format!("{}: {error}", log.display())),
        };
        let seconds = began.elapsed().as_secs_f64();
        let line = format!("-- {command} {}: {} in {seconds:.1} s  {}", step.name, outcome.word(), outcome.detail());
        shell.say(line.trim_end());
        done.push(Done { name: step.name, seconds, outcome });
    }
    let ok = !done.iter().any(|done| done.outcome.is_failure());
    Ok(Summary { ok, seconds: started.elapsed().as_secs_f64(), steps: done })
}

fn log_of(shell: &Shell, step: &str) -> std::path::PathBuf {
    shell.target_directory("xtask").join(format!("{step}.log"))
}

/// The last lines of a log.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

impl Options {
    /// The steps that `--only` and `--skip` select.
    fn select<'s>(&self, steps: &'s [Step]) -> Result<Vec<&'s Step>> {
        let is_step = |name: &&String| steps.iter().any(|step| step.name == **name);
        if let Some(unknown) = self.only.iter().chain(&self.skip).find(|name| !is_step(name)) {
            let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
            bail!("there is no step {unknown:?}; the steps are {}", names.join(", "));
        }
        let is_in = |names: &[String], step: &Step| names.iter().any(|name| name == step.name);
        let is_selected = |step: &&Step| (self.only.is_empty() || is_in(&self.only, step)) && !is_in(&self.skip, step);
        Ok(steps.iter().filter(is_selected).collect())
    }
}

impl Summary {
    fn human(&self, command: &str) -> String {
        let mut lines = vec![format!("{:<12} {:>9}  outcome", "step", "seconds")];
        lines.extend(self.steps.iter().map(|done| {
            let (word, detail) = (done.outcome.word(), done.outcome.detail());
            format!("{:<12} {:>9.1}  {word:<13} {detail}", done.name, done.seconds).trim_end().to_owned()
        }));
        let failed: Vec<&str> =
            self.steps.iter().filter(|done| done.outcome.is_failure()).map(|done| done.name).collect();
        let verdict = if self.ok { "passed".to_owned() } else { format!("FAILED: {}", failed.join(", ")) };
        // A part that passed must not look like the whole, so the line has the number of steps.
        lines.push(format!("{command}: {verdict}; {} steps in {:.1} s", self.steps.len(), self.seconds));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 3] = [
        Step { name: "good", title: "passes", run: |_| Outcome::Passed },
        Step {
            name: "bad",
            title: "fails",
            run: |shell| {
                shell.say("the cause");
                Outcome::Failed("exit code 1".to_owned())
            },
        },
        Step { name: "absent", title: "cannot run here", run: |_| Outcome::NotAvailable("no tool".to_owned()) },
    ];

    fn options(only: &[&str], skip: &[&str]) -> Options {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Options { only: owned(only), skip: owned(skip), list: false }
    }

    fn names(options: &Options) -> Result<Vec<&'static str>> {
        static ALL: [Step; 3] = STEPS;
        Ok(options.select(&ALL)?.iter().map(|step| step.name).collect())
    }

    #[test]
    fn steps_are_selected_by_name() {
        assert_eq!(names(&options(&[], &[])).expect("all"), ["good", "bad", "absent"]);
        assert_eq!(names(&options(&["bad"], &[])).expect("one"), ["bad"]);
        assert_eq!(names(&options(&[], &["bad"])).expect("two"), ["good", "absent"]);
        let error = names(&options(&["bda"], &[])).expect_err("there is none").to_string();
        assert_eq!(error, "there is no step \"bda\"; the steps are good, bad, absent");
    }

    #[test]
    fn a_failed_step_fails_the_run_and_the_others_still_run() {
        let shell = Shell::new(tree::workspace_root().expect("the tests run inside the workspace"), Format::Json);
        let summary = run_all(&shell, "test", &STEPS.iter().collect::<Vec<_>>()).expect("there is room for logs");
        assert!(!summary.ok && summary.steps.len() == 3);
        let text = summary.human("test");
        assert!(text.contains("FAILED        exit code 1") && text.contains("test: FAILED: bad; 3 steps in"), "{text}");
        assert_eq!(fs::read_to_string(log_of(&shell, "bad")).expect("its log is kept"), "the cause\n");
        let passed = run_all(&shell, "test", &[&STEPS[0], &STEPS[2]]).expect("there is room for logs");
        assert!(passed.ok, "what this machine cannot run is not a failure");
    }
}
