//! `guira lab FIGURE`, `guira lab all` and `guira lab run`: charts as tables on the terminal, and as files.

use std::fs;
use std::path::{Path, PathBuf};

use guira_lab::experiment::{
    self, FigureInfo, LabError, Outcomes, Plan, RunOptions, definition_of, figures, figures_named, run_figure,
    run_published_plan,
};
use guira_lab::report::{Chart, Claim, Directory, Distance, Origin, Point, Run, Series, claims, distances, number};
use serde::Serialize;

use super::RunArguments;
use super::watch::Watcher;
use crate::failure::Failure;
use crate::output::{Output, table};
use crate::units::{counted, percent};

/// The answer in JSON.
#[derive(Serialize)]
struct Answer<'c> {
    charts: Vec<ChartAnswer<'c>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<String>,
}

/// A chart in JSON, with its distance from the paper.
#[derive(Serialize)]
struct ChartAnswer<'c> {
    #[serde(flatten)]
    chart: &'c Chart,
    distances: Vec<DistanceAnswer>,
    claims: Vec<Claim>,
}

#[derive(Serialize)]
struct DistanceAnswer {
    #[serde(flatten)]
    distance: Distance,
    verdict: &'static str,
}

/// Something to measure: a built-in figure, or a plan of the user.
struct Task<'t> {
    id: &'t str,
    definition: &'t str,
    plan: Option<&'t Plan>,
}

impl Task<'_> {
    fn measure(
        &self,
        options: &RunOptions,
        outcomes: &mut Outcomes,
        watch: &Watcher<'_>,
    ) -> Result<Vec<Chart>, LabError> {
        match self.plan {
            Some(plan) => run_published_plan(self.id, plan, options, outcomes, watch),
            None => run_figure(self.id, options, outcomes, watch),
        }
    }
}

/// Measures figures by their names.
pub fn measure(names: &[String], run: RunArguments, out: Option<&Path>, output: &Output) -> Result<(), Failure> {
    let mut chosen: Vec<&'static FigureInfo> = Vec::new();
    for name in names {
        chosen.extend(figures_named(name)?);
    }
    if chosen.is_empty() {
        return Err(Failure::Misuse("no figure given; guira lab list shows all figures".to_owned()));
    }
    let of_rcuckoo = chosen.iter().all(|figure| figure.is_of_rcuckoo());
    let title =
        if of_rcuckoo { "Figures of the RCuckoo paper, measured on a model" } else { "Figures, measured on a model" };
    carry_out(&tasks(&chosen), run, out, title, &names.join(" "), output)
}

/// Measures every figure of RCuckoo.
pub fn measure_all(run: RunArguments, out: &Path, output: &Output) -> Result<(), Failure> {
    let chosen: Vec<&FigureInfo> = figures().iter().filter(|figure| figure.is_of_rcuckoo()).collect();
    let title = "Every figure of the RCuckoo paper, measured on a model";
    carry_out(&tasks(&chosen), run, Some(out), title, "all", output)
}

/// Carries out a plan of the user.
pub fn run_plan(path: &Path, run: RunArguments, out: Option<&Path>, output: &Output) -> Result<(), Failure> {
    let shown = path.display().to_string();
    let text = fs::read_to_string(path).map_err(Failure::host(format!("read {shown}")))?;
    let plan = Plan::parse(&shown, &text)?;
    let id = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
    let is_figure = figures().iter().any(|figure| figure.id == id);
    // In a directory, a plan of the user does not take the place of a figure, or of another file of the report.
    let id = if is_figure || ["manifest", "report"].contains(&&*id) { format!("plan-{id}") } else { id.into_owned() };
    let task = Task { id: &id, definition: &plan.text, plan: Some(&plan) };
    carry_out(&[task], run, out, &plan.title, &format!("run {shown}"), output)
}

fn tasks<'t>(chosen: &[&'t FigureInfo]) -> Vec<Task<'t>> {
    chosen.iter().map(|figure| Task { id: figure.id, definition: definition_of(figure.id), plan: None }).collect()
}

fn carry_out(
    tasks: &[Task<'_>],
    arguments: RunArguments,
    out: Option<&Path>,
    title: &str,
    command: &str,
    output: &Output,
) -> Result<(), Failure> {
    let run = run_of(arguments, title, command, out);
    let mut results = out.map(|path| Results::open(path, &run)).transpose()?;
    let watcher = Watcher::new(output);
    let (mut all, mut outcomes) = (Vec::new(), Outcomes::default());
    for (index, task) in tasks.iter().enumerate() {
        let charts = match results.as_ref().and_then(|results| results.finished(task)) {
            Some(charts) => charts,
            None => {
                let measured = task.measure(&arguments.options(arguments.chart_seeds()), &mut outcomes, &watcher);
                watcher.finish();
                let charts = match measured {
                    Ok(charts) => charts,
                    Err(LabError::Stopped) => return Err(stopped(results.as_ref(), index, tasks.len())?),
                    Err(error) => return Err(error.into()),
                };
                if let Some(results) = &mut results {
                    results.store(task, &charts)?;
                    results.write_page()?;
                }
                charts
            }
        };
        for chart in &charts {
            output.human_line(&(human(chart) + "\n"))?;
        }
        all.extend(charts);
    }
    let report = results.map(|results| results.write_page()).transpose()?;
    let report = report.map(|path| path.display().to_string());
    let answer = Answer { charts: all.iter().map(ChartAnswer::of).collect(), report: report.clone() };
    match output.format() {
        crate::output::Format::Json => output.answer(&answer, String::new),
        crate::output::Format::Human => report.map_or(Ok(()), |path| output.line(&format!("report: {path}"))),
    }
}

/// Writes the page of what is finished, and returns the failure of an interrupted run.
fn stopped(results: Option<&Results<'_>>, finished: usize, of: usize) -> Result<Failure, Failure> {
    let Some(results) = results else { return Ok(Failure::LabStopped { kept: None }) };
    results.write_page()?;
    let kept = format!("{finished} of {} are finished in {}", counted(of as u64, "figure"), results.path.display());
    Ok(Failure::LabStopped { kept: Some(kept) })
}

fn run_of(arguments: RunArguments, title: &str, command: &str, out: Option<&Path>) -> Run {
    let quick = if arguments.quick { " --quick" } else { "" };
    let out = out.map_or(String::new(), |path| format!(" --out {}", path.display()));
    let seeds = arguments.seeds.map_or(String::new(), |seeds| format!(" --seeds {seeds}"));
    Run {
        title: title.to_owned(),
        command: format!("guira lab {command}{quick} --seed {}{seeds}{out}", arguments.seed),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("GUIRA_COMMIT").map(str::to_owned),
        seed: arguments.seed,
        seeds: arguments.chart_seeds(),
        quick: arguments.quick,
    }
}

/// The directory of a run.
struct Results<'r> {
    path: PathBuf,
    directory: Directory,
    run: &'r Run,
}

impl<'r> Results<'r> {
    /// Opens the directory before anything is measured.
    fn open(path: &Path, run: &'r Run) -> Result<Results<'r>, Failure> {
        let directory = Directory::open(path)
            .map_err(|error| Failure::Misuse(format!("cannot write results to {}: {error}", path.display())))?;
        Ok(Results { path: path.to_owned(), directory, run })
    }

    fn finished(&self, task: &Task<'_>) -> Option<Vec<Chart>> {
        self.directory.finished(task.id, self.run, task.definition)
    }

    fn store(&mut self, task: &Task<'_>, charts: &[Chart]) -> Result<(), Failure> {
        let attempt = format!("write results to {}", self.path.display());
        self.directory.store(task.id, self.run, task.definition, charts).map_err(Failure::host(attempt))
    }

    fn write_page(&self) -> Result<PathBuf, Failure> {
        let order: Vec<&str> = experiment::figures().iter().map(|figure| figure.id).collect();
        let attempt = format!("write the report to {}", self.path.display());
        self.directory.write_page(self.run, &order).map_err(Failure::host(attempt))
    }
}

impl ChartAnswer<'_> {
    fn of(chart: &Chart) -> ChartAnswer<'_> {
        let answer = |distance: Distance| DistanceAnswer { verdict: distance.verdict().text(), distance };
        ChartAnswer { chart, distances: distances(chart).into_iter().map(answer).collect(), claims: claims(chart) }
    }
}

/// Rows of a table on the terminal; a distribution has hundreds of points.
const ROWS_MAX: usize = 24;

/// Formats a chart as a table with a column for each series, and a line for each distance. Published series have values
/// where something was measured; the files have all of their points.
fn human(chart: &Chart) -> String {
    let is_measured = |series: &&Series| series.origin == Origin::Measured;
    let mut positions: Vec<f64> =
        chart.series.iter().filter(is_measured).flat_map(|series| &series.points).map(|point| point.x).collect();
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    let step = positions.len().div_ceil(ROWS_MAX).max(1);
    let positions: Vec<f64> = positions.into_iter().step_by(step).collect();
    let shown = |point: &Point| number(point.y) + if point.is_unsteady { "~" } else { "" };
    let at = |series: &Series, x: f64| series.points.iter().find(|point| point.x == x).map(shown);
    let shown = chart.series.iter().filter(|series| positions.iter().any(|x| at(series, *x).is_some()));
    let shown: Vec<&Series> = shown.collect();
    let heads = shown.iter().map(|series| match series.origin {
        Origin::Measured => series.name.clone(),
        Origin::Published => format!("{}*", series.name),
    });
    let mut rows = vec![std::iter::once(chart.x.title()).chain(heads).collect::<Vec<_>>()];
    for x in positions {
        let name = chart.x.name_of(x).map_or_else(|| number(x), str::to_owned);
        let values = shown.iter().map(|series| at(series, x).unwrap_or_default());
        rows.push(std::iter::once(name).chain(values).collect());
    }
    let mut text = format!("{}\n{}\n\n{}", chart.title, chart.y.title(), table(&rows));
    let points = chart.series.iter().flat_map(|series| &series.points);
    let spread = points.clone().filter_map(|point| Some(spread_of(point.spread?))).fold(0.0, f64::max);
    if points.clone().any(|point| point.spread.is_some()) {
        text += &format!("\nmedians of several seeds, which differ by up to {}", percent(spread));
    }
    if points.clone().any(|point| point.is_unsteady) {
        text += "\n~ not steady when the longest measurement ended: it would go on changing";
    }
    if shown.iter().any(|series| series.origin == Origin::Published) {
        text += "\n* published by the authors";
    }
    for distance in distances(chart) {
        let Distance { measured, published, .. } = &distance;
        let (size, verdict) = (distance.text(&chart.x), distance.verdict().text());
        let kind = if distance.is_calibration { "calibration: " } else { "" };
        text += &format!("\n{kind}{measured} to {published}: {size}: {verdict}");
    }
    for claim in claims(chart) {
        text += &format!("\n\u{201c}{}\u{201d} {}", claim.text, claim.result());
    }
    text
}

/// The difference between two values, as a part of the larger one.
fn spread_of((lowest, highest): (f64, f64)) -> f64 {
    if highest > 0.0 { (highest - lowest) / highest } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use guira_lab::report::{Axis, Scale, Shape};

    use super::*;

    #[test]
    fn a_chart_is_a_table_with_its_distance() {
        let series = |name: &str, origin, predicts: Option<&str>, points: &[(f64, f64)]| Series {
            name: name.to_owned(),
            origin,
            predicts: predicts.map(str::to_owned),
            points: points.iter().map(|(x, y)| Point::new(*x, *y)).collect(),
        };
        let chart = Chart {
            id: "6c".to_owned(),
            title: "YCSB-A".to_owned(),
            x: Axis::new("clients", "", Scale::Logarithmic),
            y: Axis::new("throughput", "million/s", Scale::Linear),
            shape: Shape::Lines,
            series: vec![
                series("Guira", Origin::Measured, Some("RCuckoo"), &[(8.0, 1.1), (320.0, 12.0)]),
                series("RCuckoo", Origin::Published, None, &[(8.0, 1.0), (16.0, 2.0)]),
            ],
            ceilings: Vec::new(),
            notes: Vec::new(),
        };
        let text = human(&chart);
        let expected = "YCSB-A\nthroughput [million/s]\n\n\
                        clients  Guira  RCuckoo*\n8          1.1         1\n320         12\n\
                        * published by the authors\nGuira to RCuckoo: ";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with(": agrees") || text.ends_with(": near"), "{text}");
    }
}
