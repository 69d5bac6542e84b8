//! Reports: the results of experiments as charts, CSV files and one HTML page.

mod chart;

pub use chart::{Axis, Ceiling, Chart, Origin, Point, Scale, Series, Shape};
