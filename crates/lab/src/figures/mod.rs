//! Figures of the paper that are no grids of experiments: 1, of single verbs, 4, of placement and search alone, and 5,
//! of a small table that a few clients fill; and of other stores what a formula gives.
//!
//! Figures 4 and 5 measure what the paper's authors' programs do ([`crate::as_run`]), and what the real tables and
//! clients do. Invariants: the same seed gives the same charts, whatever the number of threads, and no published point
//! changes a measured one.

pub mod fig1;
pub mod fig4;
pub mod fig5;
mod heap_table;
pub mod linear;
mod parallel;

use crate::published;
use crate::report::{Axis, Chart, Scale, Series, Shape};

/// Returns a chart with the published series and axes of its figure.
fn chart(id: &str, title: &str, shape: Shape, series: Vec<Series>, notes: &[&str]) -> Chart {
    chart_of(id, id, title, shape, series, notes)
}

/// Returns chart `id` with the published series and axes of figure `figure`.
fn chart_of(id: &str, figure: &str, title: &str, shape: Shape, mut series: Vec<Series>, notes: &[&str]) -> Chart {
    let axis = || Axis::new("", "", Scale::Linear);
    let (x, y) = published::axes(figure).unwrap_or_else(|| (axis(), axis()));
    series.extend(published::series(figure));
    let notes = notes.iter().chain(published::notes(figure)).map(|note| (*note).to_owned()).collect();
    Chart { id: id.to_owned(), title: title.to_owned(), x, y, shape, series, ceilings: Vec::new(), notes }
}
