//! Plans: charts as data, read from TOML files.
//!
//! A plan has an experiment, the parameter along the x axis with its values, and a series for each variation:
//!
//! ```toml
//! title = "YCSB-A by clients"
//! measure = "throughput"
//! x = { parameter = "clients", values = [8, 40, 320], scale = "logarithmic" }
//! series = [{ name = "Guira" }, { name = "as printed", setting = "as-printed" }]
//! [base]
//! workload = "a"
//! [quick]
//! values = [8, 320]
//! entries = 4_000_000
//! ```
//!
//! Parameters of `[base]` change the default experiment; with `--quick` those of `[quick]` change it further, and its
//! `values` replace those of the x axis; those of a series, and then the x axis, come last. A series may have `values` of
//! its own, at which it is measured with and without `--quick`. Invariants: every
//! experiment of a plan has been checked, and x ascends.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::parameters::{Parameter, Value};
use super::{Experiment, LabError, Measure};
use crate::published;
use crate::report::{Axis, Ceiling, Scale, Shape};

/// The largest number of values on the x axis, and of series: as many as can be told apart in a chart.
const MAX_VALUES: usize = 64;
const MAX_SERIES: usize = 16;

/// A chart as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The heading.
    pub title: String,
    /// Sentences about the chart, or an empty text.
    pub about: String,
    /// The quantity of the y axis.
    pub measure: Measure,
    /// How the points are drawn.
    pub shape: Shape,
    /// The name of the published figure that is drawn with it: `6c`.
    pub published: Option<String>,
    /// The vertical axis.
    pub y: Axis,
    /// Limits of the hardware, drawn as lines.
    pub ceilings: Vec<Ceiling>,
    /// The text of the plan file.
    pub text: String,
    full: Points,
    quick: Points,
}

/// The x axis and the experiments of a plan.
#[derive(Clone, Debug, PartialEq)]
struct Points {
    x: Axis,
    series: Vec<PlannedSeries>,
}

/// A series of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSeries {
    /// The name in the legend.
    pub name: String,
    /// The published series that it predicts: its name.
    pub predicts: Option<String>,
    /// Its experiments, by ascending x.
    pub cells: Vec<Cell>,
}

/// One experiment of a plan, and its position on the x axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The position.
    pub x: f64,
    /// The experiment.
    pub experiment: Experiment,
}

/// A plan as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Source {
    title: String,
    #[serde(default)]
    about: String,
    measure: Measure,
    #[serde(default = "lines")]
    shape: Shape,
    published: Option<Spanned<String>>,
    #[serde(default)]
    ceilings: Vec<Ceiling>,
    x: SourceAxis,
    #[serde(default = "linear")]
    y_scale: Scale,
    series: Vec<Spanned<Settings>>,
    #[serde(default)]
    base: Settings,
    #[serde(default)]
    quick: Settings,
}

/// The x axis as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceAxis {
    parameter: Spanned<String>,
    values: Spanned<Vec<Value>>,
    #[serde(default = "linear")]
    scale: Scale,
}

/// Names and values as they are written.
type Settings = BTreeMap<Spanned<String>, Spanned<Setting>>;

/// A value as it is written.
#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "expected a number, a text or a list of them")]
enum Setting {
    One(Value),
    Many(Vec<Value>),
}

fn lines() -> Shape {
    Shape::Lines
}

fn linear() -> Scale {
    Scale::Linear
}

impl Plan {
    /// Reads a plan file of this name.
    ///
    /// # Errors
    /// [`LabError::Plan`] with the line of the first error.
    pub fn parse(name: &str, text: &str) -> Result<Plan, LabError> {
        Reader { name, text }.read()
    }

    /// Returns the horizontal axis.
    pub fn x(&self, quick: bool) -> &Axis {
        &self.points(quick).x
    }

    /// Returns the series, with their experiments.
    pub fn series(&self, quick: bool) -> &[PlannedSeries] {
        &self.points(quick).series
    }

    fn points(&self, quick: bool) -> &Points {
        if quick { &self.quick } else { &self.full }
    }
}

/// A plan file that is being read.
struct Reader<'t> {
    name: &'t str,
    text: &'t str,
}

impl Reader<'_> {
    fn read(&self) -> Result<Plan, LabError> {
        let source: Source = toml::from_str(self.text).map_err(|error| {
            let start = error.span().map(|span| span.start);
            self.error(start, error.message().trim_end())
        })?;
        let base = self.apply(&Experiment::default(), &source.base, &[])?;
        let quick_base = self.apply(&base, &source.quick, &["values"])?;
        let quick_values = match source.quick.get("values") {
            None => source.x.values.clone(),
            Some(values) => match values.get_ref() {
                Setting::Many(list) => Spanned::new(values.span(), list.clone()),
                Setting::One(_) => return Err(self.error(Some(values.span().start), "values must be a list")),
            },
        };
        let full = self.points(&source, &base, &source.x.values)?;
        let quick = self.points(&source, &quick_base, &quick_values)?;
        Ok(Plan {
            title: source.title,
            about: source.about.split_whitespace().collect::<Vec<_>>().join(" "),
            measure: source.measure,
            shape: source.shape,
            published: source.published.map(Spanned::into_inner),
            ceilings: source.ceilings,
            y: Axis::new(&source.measure.label(), source.measure.unit(), source.y_scale),
            text: self.text.to_owned(),
            full,
            quick,
        })
    }

    /// Applies settings to an experiment, except those of other keys that may stand among them.
    fn apply(&self, base: &Experiment, settings: &Settings, others: &[&str]) -> Result<Experiment, LabError> {
        let is_parameter = |key: &&Spanned<String>| !others.contains(&key.get_ref().as_str());
        let mut experiment = *base;
        for (key, value) in settings.iter().filter(|(key, _)| is_parameter(key)) {
            let parameter = Parameter::find(key.get_ref()).map_err(self.at(key))?;
            let Setting::One(one) = value.get_ref() else {
                return Err(self.error(Some(value.span().start), &format!("{} cannot be a list", parameter.name)));
            };
            experiment = experiment.with(parameter.name, one).map_err(self.at(value))?;
        }
        Ok(experiment)
    }

    fn points(&self, source: &Source, base: &Experiment, values: &Spanned<Vec<Value>>) -> Result<Points, LabError> {
        let parameter = Parameter::find(source.x.parameter.get_ref()).map_err(self.at(&source.x.parameter))?;
        let count = source.series.len();
        if count == 0 || count > MAX_SERIES {
            return Err(self.error(None, &format!("a plan has 1 to {MAX_SERIES} series, not {count}")));
        }
        let published = self.published(source)?;
        let mut all: Vec<PlannedSeries> = Vec::new();
        for written in &source.series {
            let series = self.one_series(source, base, values, written)?;
            if let Some(predicted) = series.predicts.as_ref().filter(|predicted| !published.contains(predicted)) {
                let names = if published.is_empty() { "none".to_owned() } else { published.join(", ") };
                let message = format!("{predicted:?} is no published series of this plan; there are: {names}");
                return Err(self.error(Some(written.span().start), &message));
            }
            if all.iter().any(|other| other.name == series.name) {
                let message = format!("there are two series {:?}", series.name);
                return Err(self.error(Some(written.span().start), &message));
            }
            all.push(series);
        }
        Ok(Points { x: axis(parameter, source.x.scale, values.get_ref()), series: all })
    }

    /// Returns the names of the published series that are drawn with the plan.
    fn published(&self, source: &Source) -> Result<Vec<String>, LabError> {
        let Some(figure) = &source.published else { return Ok(Vec::new()) };
        let names: Vec<String> = published::series(figure.get_ref()).into_iter().map(|series| series.name).collect();
        if names.is_empty() {
            let message = format!("there are no published points of figure {:?}", figure.get_ref());
            return Err(self.error(Some(figure.span().start), &message));
        }
        Ok(names)
    }

    fn one_series(
        &self,
        source: &Source,
        base: &Experiment,
        values: &Spanned<Vec<Value>>,
        written: &Spanned<Settings>,
    ) -> Result<PlannedSeries, LabError> {
        let start = Some(written.span().start);
        let settings = written.get_ref();
        let name = self.text_of(settings, "name")?.filter(|name| !name.trim().is_empty());
        let name = name.ok_or_else(|| self.error(start, "a series needs a name"))?;
        let on_axis = source.x.parameter.get_ref();
        if let Some((key, _)) = settings.iter().find(|(key, _)| key.get_ref() == on_axis) {
            let message = format!("{on_axis} is on the x axis and cannot be a series' own");
            return Err(self.error(Some(key.span().start), &message));
        }
        let predicts = self.text_of(settings, "predicts")?;
        let varied = self.apply(base, settings, &["name", "predicts", "values"])?;
        let own = self.own_values(settings, values)?;
        let values = own.as_ref().unwrap_or(values);
        let positions = self.positions(values)?;
        let mut cells = Vec::new();
        for (value, x) in values.get_ref().iter().zip(positions) {
            let experiment = varied.with(source.x.parameter.get_ref(), value);
            let experiment = experiment.map_err(self.at(values))?;
            experiment.check().map_err(self.at(written))?;
            if let Measure::Cost(_, kind, _) = source.measure
                && !experiment.workload.has(kind)
            {
                let message = format!("series {name:?} has no operations of kind {} to measure", kind.name());
                return Err(self.error(start, &message));
            }
            cells.push(Cell { x, experiment });
        }
        let is_number = values.get_ref().iter().all(|value| value.as_number().is_some());
        if source.x.scale == Scale::Logarithmic && is_number && cells.iter().any(|cell| cell.x <= 0.0) {
            return Err(self.error(Some(values.span().start), "0 has no place on a logarithmic axis"));
        }
        Ok(PlannedSeries { name, predicts, cells })
    }

    /// Returns the values at which a series is measured, if they are not those of the x axis.
    fn own_values(
        &self,
        settings: &Settings,
        of_axis: &Spanned<Vec<Value>>,
    ) -> Result<Option<Spanned<Vec<Value>>>, LabError> {
        let Some(written) = settings.get("values") else { return Ok(None) };
        let is_number = |value: &Value| value.as_number().is_some();
        match written.get_ref() {
            Setting::Many(list) if list.iter().chain(of_axis.get_ref()).all(is_number) => {
                Ok(Some(Spanned::new(written.span(), list.clone())))
            }
            _ => Err(self
                .error(Some(written.span().start), "values of a series are a list of numbers, as those of its axis")),
        }
    }

    /// Returns the positions of values on the x axis: numbers are their own, names are numbered.
    fn positions(&self, values: &Spanned<Vec<Value>>) -> Result<Vec<f64>, LabError> {
        let list = values.get_ref();
        let wrong = |message: &str| Err(self.error(Some(values.span().start), message));
        if list.is_empty() || list.len() > MAX_VALUES {
            return wrong(&format!("an axis has 1 to {MAX_VALUES} values, not {}", list.len()));
        }
        let numbers: Vec<f64> = list.iter().filter_map(Value::as_number).collect();
        match numbers.len() {
            0 => Ok((0..list.len()).map(|index| index as f64).collect()),
            count if count < list.len() => wrong("an axis has numbers or names, not both"),
            _ if !numbers.is_sorted_by(|one, next| one < next) => wrong("the values of an axis must ascend"),
            _ => Ok(numbers),
        }
    }

    fn text_of(&self, settings: &Settings, key: &str) -> Result<Option<String>, LabError> {
        let Some(value) = settings.get(key) else { return Ok(None) };
        match value.get_ref() {
            Setting::One(Value::Text(text)) => Ok(Some(text.clone())),
            _ => Err(self.error(Some(value.span().start), &format!("{key} must be a text"))),
        }
    }

    /// Returns a function that adds the line of `part` to an error.
    fn at<T>(&self, part: &Spanned<T>) -> impl Fn(LabError) -> LabError {
        let start = part.span().start;
        move |error| self.error(Some(start), &error.to_string())
    }

    fn error(&self, start: Option<usize>, message: &str) -> LabError {
        let line = start.and_then(|start| self.text.get(..start)).map(|before| before.matches('\n').count() + 1);
        LabError::Plan { name: self.name.to_owned(), line, message: message.replace('\n', " ") }
    }
}

fn axis(parameter: &Parameter, scale: Scale, values: &[Value]) -> Axis {
    let names: Vec<String> = values.iter().filter(|value| value.as_number().is_none()).map(Value::to_string).collect();
    let scale = if names.is_empty() { scale } else { Scale::Category };
    Axis { names, ..Axis::new(parameter.label, parameter.unit, scale) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Card, Mix, Setting as Protocol};

    const PLAN: &str = "title = \"A\"\nmeasure = \"throughput\"\npublished = \"6c\"\n\
        x = { parameter = \"clients\", values = [8, 16, 40], scale = \"logarithmic\" }\n\
        series = [\n  { name = \"Guira\" },\n  \
        { name = \"printed\", setting = \"as-printed\", predicts = \"RCuckoo\" },\n]\n\
        [base]\ntheta = 1\nworkload = \"b\"\n[quick]\nvalues = [8, 40]\nentries = 4_000_000\n";

    fn message(text: &str) -> String {
        Plan::parse("my.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn a_plan_becomes_experiments() {
        let plan = Plan::parse("my.toml", PLAN).unwrap();
        assert_eq!((plan.title.as_str(), plan.measure, plan.shape), ("A", Measure::Throughput, Shape::Lines));
        assert_eq!(*plan.x(false), Axis::new("clients", "", Scale::Logarithmic));
        assert_eq!(plan.y, Axis::new("throughput", "million/s", Scale::Linear));
        let [guira, printed] = plan.series(false) else { panic!("{plan:?}") };
        assert_eq!((guira.name.as_str(), guira.predicts.as_deref()), ("Guira", None));
        assert_eq!(printed.predicts.as_deref(), Some("RCuckoo"));
        let base = Experiment { theta: 1.0, workload: Mix::B, ..Experiment::default() };
        let printed_at = |clients| Experiment { clients, setting: Protocol::AsPrinted, ..base };
        let cells = [8, 16, 40].map(|clients| Cell { x: clients.into(), experiment: printed_at(clients) });
        assert_eq!(printed.cells, cells);
        let quick = &plan.series(true)[0].cells;
        assert_eq!(quick.len(), 2);
        assert_eq!(quick[1].experiment, Experiment { clients: 40, entries: 4_000_000, ..base });
    }

    #[test]
    fn a_series_can_have_values_of_its_own() {
        let plan = Plan::parse("my.toml", &PLAN.replace("\"RCuckoo\"", "\"RCuckoo\", values = [7, 9]")).unwrap();
        for (is_quick, of_axis) in [(false, vec![8.0, 16.0, 40.0]), (true, vec![8.0, 40.0])] {
            let [guira, printed] = plan.series(is_quick) else { panic!("{plan:?}") };
            let positions = |series: &PlannedSeries| series.cells.iter().map(|cell| cell.x).collect::<Vec<f64>>();
            assert_eq!((positions(guira), positions(printed)), (of_axis, vec![7.0, 9.0]));
            assert_eq!(printed.cells[1].experiment.clients, 9);
        }
    }

    #[test]
    fn names_on_the_axis_are_numbered() {
        let values = PLAN.replace("\"clients\"", "\"nic\"");
        let values = values.replace("[8, 16, 40]", "[\"connectx-3\", \"connectx-7\"]");
        let plan = Plan::parse("my.toml", &values.replace("[8, 40]", "[\"connectx-7\"]")).unwrap();
        assert_eq!(*plan.x(false), Axis::of_names("network card", &["connectx-3", "connectx-7"]));
        assert_eq!(*plan.x(true), Axis::of_names("network card", &["connectx-7"]));
        let last = plan.series(false)[0].cells[1];
        assert_eq!((last.x, last.experiment.nic), (1.0, Card::ConnectX7));
    }

    #[test]
    fn an_error_names_the_key_and_the_line() {
        for (from, to, expected) in [
            ("theta = 1", "thetta = 1", "my.toml, line 10: unknown parameter \"thetta\" (similar: theta)"),
            ("theta = 1", "theta = 3", "my.toml, line 10: theta is 3, but must be a number from 0 to 2"),
            ("theta = 1", "theta = [1]", "my.toml, line 10: theta cannot be a list"),
            ("theta = 1", "theta = true", "my.toml, line 10: expected a number, a text or a list of them"),
            ("title", "tittle", "my.toml, line 1: unknown field `tittle`, expected one of"),
            ("throughput", "thruput", "my.toml, line 2: measure \"thruput\" is not throughput, fairness,"),
            ("\"clients\"", "\"client\"", "my.toml, line 4: unknown parameter \"client\" (similar: clients)"),
            ("[8, 16, 40]", "[8, 40, 16]", "my.toml, line 4: the values of an axis must ascend"),
            ("[8, 16, 40]", "[8, \"x\"]", "my.toml, line 4: an axis has numbers or names, not both"),
            ("[8, 16, 40]", "[0, 8]", "my.toml, line 4: clients is 0, but must be a whole number from 1 to 32767"),
            ("[8, 16, 40]", "[]", "my.toml, line 4: an axis has 1 to 64 values, not 0"),
            ("as-printed", "as-print", "my.toml, line 7: setting is as-print, but must be one of guira, as-printed"),
            ("{ name = \"Guira\" }", "{ setting = \"guira\" }", "my.toml, line 6: a series needs a name"),
            ("\"printed\"", "\"Guira\"", "my.toml, line 7: there are two series \"Guira\""),
            ("\"6c\"", "\"9z\"", "my.toml, line 3: there are no published points of figure \"9z\""),
            (
                "\"RCuckoo\"",
                "\"Cuckoo\"",
                "my.toml, line 7: \"Cuckoo\" is no published series of this plan; there are:",
            ),
            (
                "published = \"6c\"\n",
                "",
                "my.toml, line 6: \"RCuckoo\" is no published series of this plan; there are: none",
            ),
            ("\"printed\"", "\" \"", "my.toml, line 7: a series needs a name"),
            ("{ name = \"Guira\" }", "{ name = \"G\", clients = 8 }", "my.toml, line 6: clients is on the x axis"),
            ("throughput", "p99-insert", "my.toml, line 6: series \"Guira\" has no operations of kind insert"),
            ("\"clients\", values = [8, 16, 40]", "\"theta\", values = [0, 1]", "my.toml, line 4: 0 has no place on a"),
            ("\"RCuckoo\"", "3", "my.toml, line 7: predicts must be a text"),
            ("\"RCuckoo\"", "\"RCuckoo\", values = 8", "my.toml, line 7: values of a series are a list of numbers"),
            ("\"RCuckoo\"", "\"RCuckoo\", values = [\"x\"]", "my.toml, line 7: values of a series are a list"),
            ("\"RCuckoo\"", "\"RCuckoo\", values = [9, 7]", "my.toml, line 7: the values of an axis must ascend"),
            ("[8, 40]", "8", "my.toml, line 13: values must be a list"),
            ("entries = 4_000_000", "entries = 1", "my.toml, line 14: entries is 1, but must be"),
            ("[base]\n", "[base]\nlock-bits = 4\n", "my.toml, line 6: 8 clients are more than the 7 slots"),
            ("theta = 1", "theta == 1", "my.toml, line 10: "),
        ] {
            assert!(PLAN.contains(from), "{from}");
            let found = message(&PLAN.replacen(from, to, 1));
            assert!(found.starts_with(expected), "{from} -> {to}: {found}");
            assert!(!found.contains('\n'), "{found:?}");
        }
        assert_eq!(message(""), "my.toml, line 1: missing field `title`");
    }
}
