//! Reports: the results of experiments as charts, CSV files and one HTML page.

mod chart;
mod claims;
mod csv;
mod directory;
mod distance;
#[cfg(test)]
mod markup;
mod page;
#[cfg(test)]
mod samples;
mod style;
mod svg;
mod text;

pub use chart::{Axis, Ceiling, Chart, Origin, Point, Scale, Series, Shape};
pub use claims::{Claim, claims};
pub use csv::{csv, write_whole};
pub use directory::{Directory, PAGE_FILE, fingerprint};
use distance::BEST_WITHIN;
pub use distance::{Distance, Size, Verdict, distances};
pub use page::{Run, page};
pub use style::{BACKGROUND, BORDER, FAINT, FONT, GRID, TEXT};
pub use svg::svg;
pub use text::{escaped, number};
