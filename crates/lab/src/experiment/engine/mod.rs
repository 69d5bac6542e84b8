//! The engine: carries out experiments on modelled networks, several at a time, and turns their results into charts.
//!
//! Invariants: each experiment is a simulation of its own, on a copy of its table, with a seed that follows from the
//! run's; so results do not depend on the number of threads, nor on the order in which they come. At most one filled
//! table, and one copy for each thread, exist at a time.

mod as_run;
mod cell;
mod configure;
mod growth;
mod jobs;

use self::cell::Outcome;
pub use self::growth::ask_growth;
use super::{Answer, Experiment, LabError, Plan, RunOptions, Watch};
use crate::report::{Chart, Origin, Point, Series};

/// Carries out the experiments of a plan. Every table is checked at its end, and so are the histories of sampled keys.
///
/// # Errors
/// [`LabError::Memory`] before anything is allocated; [`LabError::Stopped`]; [`LabError::Failed`] if a check fails.
pub fn run_plan(id: &str, plan: &Plan, options: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let planned = plan.series(options.quick);
    let experiments: Vec<Experiment> =
        planned.iter().flat_map(|series| series.cells.iter().map(|cell| cell.experiment)).collect();
    watch.begin(&plan.title, experiments.len() as u64);
    let mut outcomes = jobs::run(&experiments, options, watch)?.into_iter();
    let mut notes = Vec::new();
    let mut series = Vec::new();
    for planned in planned {
        let mut points = Vec::new();
        for (cell, outcome) in planned.cells.iter().zip(&mut outcomes) {
            let cell_notes = match outcome {
                Ok(outcome) => {
                    points.push(point(cell.x, plan, &outcome));
                    outcome.answer.notes
                }
                Err(error) => vec![format!("{}: {error}", planned.name)],
            };
            for note in cell_notes {
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
        let (name, predicts) = (planned.name.clone(), planned.predicts.clone());
        series.push(Series { name, origin: Origin::Measured, predicts, points });
    }
    notes.splice(0..0, (!plan.about.is_empty()).then(|| plan.about.clone()));
    Ok(Chart {
        id: id.to_owned(),
        title: plan.title.clone(),
        x: plan.x(options.quick).clone(),
        y: plan.y.clone(),
        shape: plan.shape,
        series,
        ceilings: plan.ceilings.clone(),
        notes,
    })
}

fn point(x: f64, plan: &Plan, outcome: &Outcome) -> Point {
    let more = outcome.answer.figures();
    let y = outcome.measured(plan.measure).unwrap_or(f64::NAN);
    Point { x, y, more, bound_by: outcome.answer.bound_by.clone() }
}

/// Carries out one experiment.
///
/// # Errors
/// Same as [`run_plan`].
pub fn ask(experiment: &Experiment, options: &RunOptions, watch: &dyn Watch) -> Result<Answer, LabError> {
    experiment.check()?;
    watch.begin("one experiment", 1);
    let outcomes = jobs::run(std::slice::from_ref(experiment), options, watch)?;
    let missing = || LabError::Failed { what: "the experiment".to_owned(), reason: "it has no result".to_owned() };
    outcomes.into_iter().next().ok_or_else(missing)?.map(|outcome| outcome.answer)
}
