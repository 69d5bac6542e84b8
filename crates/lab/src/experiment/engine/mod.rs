//! The engine: carries out experiments on modelled networks, several at a time, and turns their results into charts.
//!
//! Invariants: each experiment is a simulation of its own, on a copy of its table, with a seed that follows from the
//! run's; so results do not depend on the number of threads, nor on the order in which they come. At most one filled
//! table and one copy for each thread exist at a time, and only one filled table where memory is short.

mod as_run;
mod cell;
mod configure;
mod growth;
mod jobs;
mod stores;

use self::cell::Outcome;
pub use self::growth::ask_growth;
pub use self::jobs::Outcomes;
use super::{Answer, Experiment, LabError, Plan, RunOptions, Watch};
use crate::report::{Chart, Origin, Point, Series, number};

/// Carries out the experiments of a plan that are not among `outcomes`, and adds theirs. Every table is checked at its
/// end, and so are the histories of sampled keys.
///
/// # Errors
/// [`LabError::Memory`] before anything is allocated; [`LabError::Stopped`]; [`LabError::Failed`] if a check fails.
pub fn run_plan(
    id: &str,
    plan: &Plan,
    options: &RunOptions,
    outcomes: &mut Outcomes,
    watch: &dyn Watch,
) -> Result<Chart, LabError> {
    let planned = plan.series(options.quick);
    let experiments: Vec<Experiment> =
        planned.iter().flat_map(|series| series.cells.iter().map(|cell| cell.experiment)).collect();
    watch.begin(&plan.title, experiments.len() as u64 * u64::from(options.seeds));
    let by_seed = jobs::run(&experiments, options, outcomes, watch)?;
    let mut by_seed: Vec<_> = by_seed.into_iter().map(Vec::into_iter).collect();
    let (mut notes, mut unsteady) = (Vec::new(), Vec::new());
    let mut series = Vec::new();
    for planned in planned {
        let (mut points, mut unsteady_at) = (Vec::new(), Vec::new());
        for cell in &planned.cells {
            let mut of_cell = Vec::new();
            for outcome in by_seed.iter_mut().filter_map(Iterator::next) {
                let cell_notes = match outcome {
                    Ok(outcome) => {
                        let point = point(cell.x, plan, &outcome);
                        // A seed may have no operation of the kind that is measured.
                        of_cell.extend(Some(point).filter(|point| point.y.is_finite()));
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
            let median = median_of(of_cell);
            unsteady_at.extend(
                median
                    .iter()
                    .filter(|point| point.is_unsteady)
                    .map(|point| plan.x(options.quick).name_of(point.x).map_or_else(|| number(point.x), str::to_owned)),
            );
            points.extend(median);
        }
        if !unsteady_at.is_empty() {
            unsteady.push(format!("{} at {}", planned.name, unsteady_at.join(", ")));
        }
        let (name, predicts) = (planned.name.clone(), planned.predicts.clone());
        series.push(Series { name, origin: Origin::Measured, predicts, points });
    }
    if !unsteady.is_empty() {
        notes.insert(0, format!("Not steady when the longest measurement ended: {}.", unsteady.join("; ")));
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
    Point {
        more: outcome.answer.figures(),
        bound_by: outcome.answer.bound_by.clone(),
        is_unsteady: !outcome.answer.is_steady,
        ..Point::new(x, outcome.measured(plan.measure).unwrap_or(f64::NAN))
    }
}

/// Returns the point with the median value, with the spread of all; unsteady if any is.
fn median_of(mut points: Vec<Point>) -> Option<Point> {
    points.sort_by(|one, other| one.y.total_cmp(&other.y));
    let spread = (points.len() > 1).then(|| (points[0].y, points[points.len() - 1].y));
    let is_unsteady = points.iter().any(|point| point.is_unsteady);
    let median = (!points.is_empty()).then(|| points.swap_remove((points.len() - 1) / 2))?;
    Some(Point { spread, is_unsteady, ..median })
}

/// Carries out one experiment, and returns the answer of the seed with the median throughput.
///
/// # Errors
/// Same as [`run_plan`].
pub fn ask(experiment: &Experiment, options: &RunOptions, watch: &dyn Watch) -> Result<Answer, LabError> {
    experiment.check()?;
    watch.begin("one experiment", options.seeds.into());
    let by_seed = jobs::run(std::slice::from_ref(experiment), options, &mut Outcomes::default(), watch)?;
    let answers = by_seed.into_iter().flatten().map(|outcome| Ok(outcome?.into_answer()));
    let mut answers: Vec<Answer> = answers.collect::<Result<_, LabError>>()?;
    answers.sort_by(|one, other| one.throughput_mops.total_cmp(&other.throughput_mops));
    let ends = answers.first().zip(answers.last()).filter(|_| answers.len() > 1);
    let throughput_spread = ends.map(|(first, last)| (first.throughput_mops, last.throughput_mops));
    let missing = || LabError::Failed { what: "the experiment".to_owned(), reason: "it has no result".to_owned() };
    let median = (answers.len().saturating_sub(1)) / 2;
    let answer = answers.into_iter().nth(median).ok_or_else(missing)?;
    Ok(Answer { throughput_spread, ..answer })
}
