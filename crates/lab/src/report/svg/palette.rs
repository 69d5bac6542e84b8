//! The looks of series: hues, dashes and marks, so that series can be told apart without colour.
//!
//! A measured series has a full line and full marks. A published series has a dashed line and hollow marks, in the hue
//! and with the marks of the first measured series that predicts it.

use super::super::style::{BACKGROUND, HUES};
use super::super::{Chart, Origin};

/// Dashes of published series.
const DASHES: [&str; 4] = ["7 4", "2 3", "10 3 2 3", "4 2"];
/// Radius of a mark.
const MARK: f64 = 4.6;

/// The look of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Index of the hue and of the mark.
    index: usize,
    /// The dashes of a published series.
    dash: Option<&'static str>,
}

/// Returns the look of each series of a chart.
pub(super) fn looks(chart: &Chart) -> Vec<Look> {
    let mut next = 0;
    let mut fresh = || {
        next += 1;
        next - 1
    };
    let measured: Vec<Option<usize>> =
        chart.series.iter().map(|series| (series.origin == Origin::Measured).then(&mut fresh)).collect();
    let mut published = 0;
    let looks = chart.series.iter().zip(&measured).map(|(series, own)| {
        if let Some(index) = own {
            return Look { index: *index, dash: None };
        }
        let mut pairs = chart.series.iter().zip(&measured);
        let predictor =
            pairs.find_map(|(other, index)| index.filter(|_| other.predicts.as_ref() == Some(&series.name)));
        published += 1;
        Look { index: predictor.unwrap_or_else(&mut fresh), dash: Some(DASHES[(published - 1) % DASHES.len()]) }
    });
    looks.collect()
}

impl Look {
    /// Opens a group with the strokes of the series.
    pub(super) fn open(&self) -> String {
        let hue = self.index % HUES.len();
        let colour = HUES[hue].0;
        format!("<g class=\"s{hue}\" stroke=\"{colour}\" fill=\"{colour}\" stroke-width=\"2\">\n")
    }

    /// The attributes of a line.
    pub(super) fn line(&self) -> String {
        let dash = self.dash.map_or(String::new(), |dash| format!(" stroke-dasharray=\"{dash}\""));
        format!("class=\"line\" fill=\"none\" stroke-linejoin=\"round\"{dash}")
    }

    /// The attributes of an area: hollow for a published series.
    pub(super) fn area(&self) -> String {
        match self.dash {
            None => "stroke-width=\"1.5\"".to_owned(),
            Some(_) => format!("class=\"hollow\" fill=\"{BACKGROUND}\" stroke-width=\"1.5\" stroke-dasharray=\"4 3\""),
        }
    }

    /// A mark with its centre at this point.
    pub(super) fn mark(&self, (x, y): (f64, f64)) -> String {
        let fill = match self.dash {
            None => "stroke-width=\"1\"".to_owned(),
            Some(_) => format!("class=\"hollow\" fill=\"{BACKGROUND}\" stroke-width=\"1.6\""),
        };
        let (low, high) = (MARK * 0.9, MARK * 1.15);
        match self.index % 7 {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{MARK}\" {fill}/>\n"),
            1 => format!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" {fill}/>\n",
                x - low,
                y - low,
                2.0 * low,
                2.0 * low
            ),
            2 => polygon(&[(x, y - high), (x + high, y + low), (x - high, y + low)], &fill),
            3 => polygon(&[(x, y - high), (x + high, y), (x, y + high), (x - high, y)], &fill),
            4 => polygon(&[(x, y + high), (x + high, y - low), (x - high, y - low)], &fill),
            5 => polygon(&[(x - high, y), (x + low, y - high), (x + low, y + high)], &fill),
            _ => polygon(&[(x + high, y), (x - low, y - high), (x - low, y + high)], &fill),
        }
    }
}

fn polygon(corners: &[(f64, f64)], fill: &str) -> String {
    let corners: Vec<String> = corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    format!("<polygon points=\"{}\" {fill}/>\n", corners.join(" "))
}
