//! Charts: the results of a figure as data, before anything draws them or writes them down.

use serde::{Deserialize, Serialize};

/// A chart: measured and published series over common axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// The name of the chart, unique in a report: `6a`, `sensitivity-factor`.
    pub id: String,
    /// The heading.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis; of a grid, the quantity of its cells.
    pub y: Axis,
    /// How the points are drawn.
    pub shape: Shape,
    /// The series, measured ones first.
    pub series: Vec<Series>,
    /// Limits of the hardware, drawn as lines.
    pub ceilings: Vec<Ceiling>,
    /// Sentences below the chart: settings, and mechanisms that the model lacks.
    pub notes: Vec<String>,
}

/// An axis of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// The quantity: `clients`.
    pub label: String,
    /// The unit, or an empty text.
    pub unit: String,
    /// The spacing of values.
    pub scale: Scale,
    /// The names of the values 0, 1, 2 and so on; empty if the values are numbers. Only with [`Scale::Category`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl Axis {
    /// Creates an axis of numbers.
    pub fn new(label: &str, unit: &str, scale: Scale) -> Axis {
        Axis { label: label.to_owned(), unit: unit.to_owned(), scale, names: Vec::new() }
    }

    /// Creates an axis of names: the value 0 is the first of them, 1 the second.
    pub fn of_names(label: &str, names: &[&str]) -> Axis {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Axis { label: label.to_owned(), unit: String::new(), scale: Scale::Category, names }
    }

    /// Returns the name of a value, if the axis has names.
    pub fn name_of(&self, value: f64) -> Option<&str> {
        let index = (value >= 0.0 && value.fract() == 0.0).then_some(value as usize)?;
        self.names.get(index).map(String::as_str)
    }

    /// Returns the label with the unit.
    pub fn title(&self) -> String {
        if self.unit.is_empty() { self.label.clone() } else { format!("{} [{}]", self.label, self.unit) }
    }
}

/// The spacing of values on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Equal differences are equally long. A vertical axis starts at 0.
    Linear,
    /// Equal ratios are equally long.
    Logarithmic,
    /// Each value has the same width, whatever it is.
    Category,
}

/// How the points of a chart are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Marked points, connected by lines.
    Lines,
    /// Lines without marks: distributions of many points.
    Curve,
    /// Bars in groups.
    Bars,
    /// Coloured cells: one row for each series, one column for each x.
    Grid,
}

/// The origin of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Measured by this run.
    Measured,
    /// Taken from the paper's published plotting data. It is drawn, and computes nothing but a distance.
    Published,
}

/// A series of points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The origin of the points.
    pub origin: Origin,
    /// The published series that this one predicts, if there is one: its name.
    pub predicts: Option<String>,
    /// The points, by ascending x.
    pub points: Vec<Point>,
}

/// A point, or a cell of a grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The position on the horizontal axis.
    pub x: f64,
    /// The value; of several seeds, the median one.
    pub y: f64,
    /// The lowest and the highest value of all seeds, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<(f64, f64)>,
    /// Whether the value would not have been the same after a longer time.
    #[serde(default)]
    pub is_unsteady: bool,
    /// Whether the model was fitted to this published point, which then judges nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_fitted: bool,
    /// Further figures of the same measurement, by name and unit: `("p99", "us", 12.5)`. Points of one series may have
    /// different ones.
    pub more: Vec<(String, String, f64)>,
    /// The resource that limits it, in words, or an empty text.
    pub bound_by: String,
}

impl Point {
    /// Creates a point without further figures.
    pub fn new(x: f64, y: f64) -> Point {
        Point { x, y, spread: None, is_unsteady: false, is_fitted: false, more: Vec::new(), bound_by: String::new() }
    }
}

/// A limit of the hardware: a horizontal line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// The limit in words: `100 Gbit/s, two READs a lookup`.
    pub name: String,
    /// The value on the vertical axis.
    pub y: f64,
}
