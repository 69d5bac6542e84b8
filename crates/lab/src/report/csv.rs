//! CSV: one file for each chart, with the same bytes for the same chart.
//!
//! The columns are `series`, `origin`, `x`, `y`, `lowest`, `highest`, `bound_by`, and one for each further figure, `p99 [us]`. A figure that
//! a series has not is an empty cell. Numbers are written as the shortest text that reads back as the same number, so
//! nothing is lost; texts with commas, quotes or line breaks are quoted as in RFC 4180.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::{Chart, Origin, Point, Series};

/// Returns a chart as CSV.
pub fn csv(chart: &Chart) -> String {
    let columns = columns(chart.series.iter().flat_map(|series| &series.points));
    let heads =
        columns.iter().map(|(name, unit)| if unit.is_empty() { name.clone() } else { format!("{name} [{unit}]") });
    let fixed = ["series", "origin", "x", "y", "lowest", "highest", "bound_by"].map(str::to_owned);
    let mut out = line(fixed.into_iter().chain(heads));
    for series in &chart.series {
        for point in &series.points {
            out += &line(cells(chart, series, point, &columns).into_iter());
        }
    }
    out
}

/// Writes a file so that it has all of its content or does not exist: under a temporary name beside it, which is then
/// renamed.
///
/// # Errors
/// The system's error; no file has changed then.
pub fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let temporary = path.with_file_name(name);
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Returns the names and units of all further figures of `points`, in the order in which they first appear.
pub(super) fn columns<'p>(points: impl IntoIterator<Item = &'p Point>) -> Vec<(String, String)> {
    let mut columns: Vec<(String, String)> = Vec::new();
    for (name, unit, _) in points.into_iter().flat_map(|point| &point.more) {
        if !columns.iter().any(|(known, known_unit)| known == name && known_unit == unit) {
            columns.push((name.clone(), unit.clone()));
        }
    }
    columns
}

fn cells(chart: &Chart, series: &Series, point: &Point, columns: &[(String, String)]) -> Vec<String> {
    let origin = match series.origin {
        Origin::Measured => "measured",
        Origin::Published => "published",
    };
    let x = chart.x.name_of(point.x).map_or_else(|| point.x.to_string(), str::to_owned);
    let [lowest, highest] = match point.spread {
        Some((lowest, highest)) => [lowest.to_string(), highest.to_string()],
        None => [String::new(), String::new()],
    };
    let (name, y, bound_by) = (series.name.clone(), point.y.to_string(), point.bound_by.clone());
    let mut cells = vec![name, origin.to_owned(), x, y, lowest, highest, bound_by];
    cells.extend(columns.iter().map(|(name, unit)| {
        let figure = point.more.iter().find(|more| more.0 == *name && more.1 == *unit);
        figure.map_or(String::new(), |more| more.2.to_string())
    }));
    cells
}

fn line(cells: impl Iterator<Item = String>) -> String {
    cells.map(|cell| quoted(&cell)).collect::<Vec<_>>().join(",") + "\n"
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::{Shape, samples};
    use super::*;

    #[test]
    fn a_chart_has_a_line_for_each_point_and_a_column_for_each_figure() {
        let mut chart = samples::of(Shape::Bars);
        chart.series.truncate(2);
        chart.series[0].points.truncate(1);
        chart.series[1].points.truncate(2);
        chart.series[1].name = "\"as\" printed".to_owned();
        let expected = "series,origin,x,y,lowest,highest,bound_by,p99 [us]\n\
                        Guira,measured,one,3,2.5,3.5,\"the link, from the server\",12.5\n\
                        \"\"\"as\"\" printed\",measured,one,2,,,,\n\
                        \"\"\"as\"\" printed\",measured,independent,4,,,,\n";
        assert_eq!(csv(&chart), expected);
    }

    /// Points of one series have different figures, if not all kinds of operations occur in all of them.
    #[test]
    fn a_figure_stands_under_its_own_name() {
        let mut chart = samples::of(Shape::Bars);
        chart.series.truncate(1);
        chart.series[0].points.truncate(2);
        let figure = |name: &str, value| (name.to_owned(), String::new(), value);
        let [first, second] = &mut chart.series[0].points[..] else { panic!("two points") };
        first.more = vec![figure("read p50", 1.0)];
        second.more = vec![figure("update p50", 2.0), figure("read p50", 3.0)];
        let text = csv(&chart);
        let ends: Vec<&str> = text.lines().map(|line| line.split("bound_by").last().unwrap()).collect();
        assert!(ends[0].ends_with(",read p50,update p50"), "{text}");
        assert!(ends[1].ends_with(",1,") && ends[2].ends_with(",3,2"), "{text}");
        let page = super::super::page::table(&chart, &chart.series[0]);
        let cells = |row: usize| page.split("<tr>").nth(row).unwrap().matches("<td").count();
        assert_eq!(page.matches("<th>").count(), 5, "{page}");
        assert_eq!((cells(2), cells(3)), (5, 5), "{page}");
        assert!(page.contains("<td class=\"number\">3</td><td class=\"number\">2</td>"), "{page}");
    }

    #[test]
    fn numbers_read_back_as_they_were() {
        let numbers = [0.1 + 0.2, 1e-9, 1e21, 320.0, -0.0];
        let points: Vec<(f64, f64)> = numbers.iter().map(|number| (8.0, *number)).collect();
        let series = vec![samples::series("a", Origin::Published, None, &points)];
        let text =
            csv(&samples::chart(Shape::Lines, super::super::Axis::new("x", "", super::super::Scale::Linear), series));
        let read: Vec<f64> =
            text.lines().skip(1).map(|line| line.split(',').nth(3).unwrap().parse().unwrap()).collect();
        assert_eq!(read, numbers);
        assert!(text.contains("\na,published,8,320,,,\n"), "{text}");
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let scratch = guira_testing::ScratchFolder::new();
        let directory = scratch.path();
        let path = directory.join("6c.csv");
        write_whole(&path, b"one").unwrap();
        write_whole(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
        // The new name is a directory: the temporary file must not remain.
        fs::create_dir(directory.join("full")).unwrap();
        fs::write(directory.join("full/file"), b"").unwrap();
        assert!(write_whole(&directory.join("full"), b"three").is_err());
        assert!(write_whole(&directory.join("missing/6c.csv"), b"three").is_err());
        assert_eq!(fs::read_dir(directory).unwrap().count(), 2);
    }
}
