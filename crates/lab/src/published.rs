//! The points of the RCuckoo paper's figures, from its authors' published plotting data, and those that the papers of other
//! stores print.
//!
//! They are drawn beside measurements, and the distance is stated; what computes a result never reads them.
//! `published/README.md` has their source, and how the authors' runs differ from the text of the paper.

use crate::report::{Axis, Origin, Point, Scale, Series};

/// A published figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    id: &'static str,
    csv: &'static str,
    fitted: Fitted,
    notes: &'static [&'static str],
}

/// The points to which constants of the model are fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fitted {
    None,
    /// The first point of a series.
    First(&'static str),
    All,
}

/// The name of the paper's system in figure 6.
const RCUCKOO: &str = "RCuckoo";

const RUNS_OF_6: &str = "Published series: 100 M entries of 4-byte keys and values, 90 % full by the text. Points of \
                         Sherman were digitised from the plot. The series called Clover in the paper is Clover behind \
                         its authors' programmable switch with write steering.";

const RUNS_OF_7: &str = "Published series: 10 Mi entries, and 320 clients but in 7(b). A point is drawn at the middle of \
                         the fill that its run covered: the one that the paper plots at 90 went from 80 to 90 %. A \
                         read is one of the key that the client has inserted last, and fetches 8 bytes of each row.";

const RUNS_OF_LINEAR: &str = "Published points: one host with 28 threads, ConnectX-5 EDR, 120 Mi records. The tables here are \
                              smaller.";

const SOURCES: [Source; 27] = [
    Source {
        id: "1a",
        csv: include_str!("../published/fig1a.csv"),
        fitted: Fitted::All,
        notes: &["The published latency is a figure of the card's vendor, not a measurement of the authors."],
    },
    Source { id: "1b", csv: include_str!("../published/fig1b.csv"), fitted: Fitted::All, notes: &[] },
    Source { id: "1c", csv: include_str!("../published/fig1c.csv"), fitted: Fitted::All, notes: &[] },
    Source {
        id: "4a",
        csv: include_str!("../published/fig4a.csv"),
        fitted: Fitted::None,
        notes: &[
            "The authors' code forces a key's two rows to opposite parity, so only odd distances occur; the printed \
                  formula puts both rows into one for about 10.5 % of the keys at f = 2.3.",
        ],
    },
    Source { id: "4b", csv: include_str!("../published/fig4b.csv"), fitted: Fitted::None, notes: &[] },
    Source {
        id: "4c",
        csv: include_str!("../published/fig4c.csv"),
        fitted: Fitted::None,
        notes: &[
            "Published series: one simulated client, 65,536 rows, filled from 0 to 90 %; the text of the paper says \
                  100 K rows and 95 %.",
        ],
    },
    Source {
        id: "5",
        csv: include_str!("../published/fig5.csv"),
        fitted: Fitted::None,
        notes: &["Published cells: a simulated table that was filled to 100 %."],
    },
    Source {
        id: "6a",
        csv: include_str!("../published/fig6a.csv"),
        fitted: Fitted::First(RCUCKOO),
        notes: &[
            RUNS_OF_6,
            "In the authors' run each client reads one key again and again, on a table 40 to 50 % full, and fetches 8 \
             bytes of each row of 64, which cannot be verified.",
        ],
    },
    Source {
        id: "6b",
        csv: include_str!("../published/fig6b.csv"),
        fitted: Fitted::First(RCUCKOO),
        notes: &[RUNS_OF_6],
    },
    Source {
        id: "6c",
        csv: include_str!("../published/fig6c.csv"),
        fitted: Fitted::First(RCUCKOO),
        notes: &[
            RUNS_OF_6,
            "The authors' run of RCuckoo used Zipf 0.90; the text of the paper says 0.99, with which their own run \
             collapses beyond 80 clients.",
            "Not explained: the model collapses with 0.90, too, at 320 clients. The CAS of waiting clients keep the word of \
             the hottest lock busy all the time, so that its holder waits as well. It does so whether updates read the rows \
             of the key alone, as in the authors' later code, or all rows of their locks.",
        ],
    },
    Source {
        id: "7a",
        csv: include_str!("../published/fig7a.csv"),
        fitted: Fitted::None,
        notes: &[
            RUNS_OF_7,
            "The points of W and C, and the first two of A and B, are rounded in the authors' script. 11.2 million \
             inserts a second that read a KiB each fill a link of 100 Gbit/s with the replies to these READs alone.",
        ],
    },
    Source {
        id: "7b",
        csv: include_str!("../published/fig7b.csv"),
        fitted: Fitted::None,
        notes: &[RUNS_OF_7, "How many clients the light load of the authors had is not known."],
    },
    Source {
        id: "7c",
        csv: include_str!("../published/fig7c.csv"),
        fitted: Fitted::None,
        notes: &[
            RUNS_OF_7,
            "The authors' count of an insert leaves out the WRITEs of its entries and the release of its locks: 328 \
             bytes, if there is one of each. Without a move and a conflict it is 1,332 bytes: a masked CAS of 172, and a \
             READ of 16 rows of 1,160.",
        ],
    },
    Source { id: "7d", csv: include_str!("../published/fig7d.csv"), fitted: Fitted::None, notes: &[RUNS_OF_7] },
    Source {
        id: "8a",
        csv: include_str!("../published/fig8a.csv"),
        fitted: Fitted::None,
        notes: &[
            "Published series: 320 clients, 10 Mi entries 60 % full at first, a failure timeout of 10 ms. One client \
             alone ends its changes early and goes on. The popularity of keys is not recorded; \
             0.07 % of the updates were refused with one row per lock, and 0.65 % with 16, which only a nearly uniform one \
             explains. Here it is Zipf 0.5.",
            "What costs the authors' clients so much is that they count refusals for time: 5,000 of them take 50 ms instead \
             of 10 on a busy card, in which every client that wants a row of the lock stops and sends requests all the \
             time. Clients as printed count time.",
            "The published rate counts 14 to 27 % less reads than the clients were asked for; the model counts all.",
        ],
    },
    Source {
        id: "8b",
        csv: include_str!("../published/fig8b.csv"),
        fitted: Fitted::None,
        notes: &[
            "Published series: 320 clients, 100 Mi entries, 16 rows per lock; by the text of the paper the table is filled \
             from 85 to 95 %, by the authors' script to 90 %.",
            "The model has the factor between the best and the worst series, not their values: 8 to 751 round trips with 64 \
             locks a message. Not explained: dependent hashing, searched depth first, is second best on the model and \
             third in print.",
        ],
    },
    Source {
        id: "8c",
        csv: include_str!("../published/fig8c.csv"),
        fitted: Fitted::None,
        notes: &[
            "Published series: 320 to 400 clients, 10 Mi entries filled from 40 to about 55 %, keys of 4 bytes. A read \
             fetches 8 bytes of each row, however large its entries are: so the published rate of reads does not depend \
             on their size.",
        ],
    },
    Source {
        id: "8d",
        csv: include_str!("../published/fig8d.csv"),
        fitted: Fitted::None,
        notes: &[
            "Published series: at 8 bytes with the value in the row. By a comment of the authors' script, 9.91 of A is the \
             mean of 15.9, 9.6 and 4.2, and 17.26 of B that of 11.2, 21.5 and 19.0. The authors put values of 8 and 16 bytes into \
             extents, too, which Guira's formats do not: these points are drawn, and predicted by nothing.",
        ],
    },
    Source {
        id: "linear-table-1",
        csv: include_str!("../published/linear-table-1.csv"),
        fitted: Fitted::None,
        notes: &[RUNS_OF_LINEAR],
    },
    Source {
        id: "linear-table-1-slots",
        csv: include_str!("../published/linear-table-1-slots.csv"),
        fitted: Fitted::None,
        notes: &[],
    },
    Source {
        id: "linear-table-2",
        csv: include_str!("../published/linear-table-2.csv"),
        fitted: Fitted::First("0.25"),
        notes: &[RUNS_OF_LINEAR],
    },
    Source {
        id: "linear-7",
        csv: include_str!("../published/linear-7.csv"),
        fitted: Fitted::First("Variable Linear"),
        notes: &[RUNS_OF_LINEAR],
    },
    Source {
        id: "linear-9-p50",
        csv: include_str!("../published/linear-9-p50.csv"),
        fitted: Fitted::None,
        notes: &[RUNS_OF_LINEAR],
    },
    Source {
        id: "linear-9-p90",
        csv: include_str!("../published/linear-9-p90.csv"),
        fitted: Fitted::None,
        notes: &[RUNS_OF_LINEAR],
    },
    Source {
        id: "linear-11",
        csv: include_str!("../published/linear-11.csv"),
        fitted: Fitted::None,
        notes: &[RUNS_OF_LINEAR],
    },
    Source {
        id: "linear-table-3",
        csv: include_str!("../published/linear-table-3.csv"),
        fitted: Fitted::None,
        notes: &[],
    },
    Source {
        id: "linear-table-4",
        csv: include_str!("../published/linear-table-4.csv"),
        fitted: Fitted::None,
        notes: &[],
    },
];

/// The names of the figures with published points.
pub fn ids() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|source| source.id)
}

/// Returns the published series of a figure, `6c`, or none if it has no published points.
pub fn series(id: &str) -> Vec<Series> {
    let Some(source) = source(id) else { return Vec::new() };
    // A test parses every file.
    let mut all = parse(source.csv).unwrap_or_default();
    for series in &mut all {
        let fitted = match source.fitted {
            Fitted::None => 0,
            Fitted::First(name) => usize::from(series.name == name),
            Fitted::All => series.points.len(),
        };
        series.points.iter_mut().take(fitted).for_each(|point| point.is_fitted = true);
    }
    all
}

/// Returns sentences on how the authors' run of a figure differs from the text of the paper.
pub fn notes(id: &str) -> &'static [&'static str] {
    source(id).map_or(&[], |source| source.notes)
}

/// Returns the axes of a published figure, x first.
pub fn axes(id: &str) -> Option<(Axis, Axis)> {
    use Scale::{Linear, Logarithmic};
    Some(match id {
        "1a" => (Axis::new("message", "bytes", Logarithmic), Axis::new("latency of a READ", "µs", Linear)),
        "1b" => (Axis::new("concurrent requests", "", Linear), Axis::new("operations", "million/s", Linear)),
        "1c" => (Axis::of_names("addresses", &["one", "independent"]), Axis::new("CAS", "million/s", Linear)),
        "4a" => (Axis::new("rows between a key's two rows", "", Logarithmic), Axis::new("share of keys", "", Linear)),
        "4b" => (Axis::new("locality factor f", "", Linear), Axis::new("maximum fill", "%", Linear)),
        "4c" => (Axis::new("span of a cuckoo path", "rows", Logarithmic), Axis::new("share of paths", "", Linear)),
        "5" => {
            let y = Axis::new("99th percentile of round trips of an insert", "", Linear);
            (Axis::new("rows per lock", "", Scale::Category), y)
        }
        "6a" | "6b" | "6c" => (Axis::new("clients", "", Logarithmic), Axis::new("throughput", "million/s", Linear)),
        "7a" => (Axis::new("fill", "%", Linear), Axis::new("throughput", "million/s", Linear)),
        "7b" => (Axis::new("fill", "%", Linear), Axis::new("median latency", "µs", Linear)),
        "7c" => (Axis::new("fill", "%", Linear), Axis::new("mean bytes of an operation", "bytes", Linear)),
        "7d" => (Axis::new("fill", "%", Linear), Axis::new("mean messages of an operation", "", Linear)),
        "8a" => (Axis::new("deaths of clients", "1/s", Linear), Axis::new("throughput", "million/s", Linear)),
        "8b" => {
            let y = Axis::new("99th percentile of round trips of an insert", "", Logarithmic);
            (Axis::new("locks per message", "", Logarithmic), y)
        }
        "8c" => {
            let sizes = ["8 bytes", "16 bytes", "32 bytes", "64 bytes"];
            (Axis::of_names("entry", &sizes), Axis::new("throughput", "million/s", Linear))
        }
        "linear-table-1" => (Axis::new("fill", "%", Linear), Axis::new("mean messages of a read", "", Logarithmic)),
        "linear-table-1-slots" => (Axis::new("fill", "%", Linear), Axis::new("slots of a READ", "", Logarithmic)),
        "linear-table-2" => (Axis::new("slots of a READ", "", Linear), Axis::new("throughput", "million/s", Linear)),
        "linear-7" => (Axis::new("fill", "%", Linear), Axis::new("throughput", "million/s", Linear)),
        "linear-9-p50" => (Axis::new("fill", "%", Linear), Axis::new("median latency of a read", "µs", Linear)),
        "linear-9-p90" => {
            (Axis::new("fill", "%", Linear), Axis::new("90th percentile of latency of a read", "µs", Linear))
        }
        "linear-11" => {
            let sizes = ["8 bytes", "16 bytes", "32 bytes", "64 bytes", "128 bytes"];
            (Axis::of_names("record", &sizes), Axis::new("throughput", "million/s", Linear))
        }
        "linear-table-3" => {
            let sizes = ["8 bytes", "32 bytes", "128 bytes", "in a heap"];
            (Axis::of_names("record", &sizes), Axis::new("slots of a READ", "", Linear))
        }
        "linear-table-4" => {
            let lookups = ["cuckoo, parallel", "fixed", "variable"];
            (Axis::of_names("lookup", &lookups), Axis::new("mean READs of a lookup", "", Linear))
        }
        "8d" => (Axis::new("value", "bytes", Logarithmic), Axis::new("throughput", "million/s", Linear)),
        _ => return None,
    })
}

fn source(id: &str) -> Option<&'static Source> {
    SOURCES.iter().find(|source| source.id == id)
}

/// Parses a file of points; `None` if it is malformed.
fn parse(csv: &str) -> Option<Vec<Series>> {
    let mut lines = csv.lines();
    let columns: Vec<(&str, &str)> = lines.next()?.split(',').skip(3).map(named).collect::<Option<_>>()?;
    let mut all: Vec<Series> = Vec::new();
    for line in lines {
        let mut cells = line.split(',');
        let name = cells.next()?;
        let numbers: Vec<f64> = cells.map(|cell| cell.parse().ok()).collect::<Option<_>>()?;
        let [x, y, more @ ..] = numbers.as_slice() else { return None };
        if more.len() != columns.len() {
            return None;
        }
        let more = columns.iter().zip(more);
        let more = more.map(|((name, unit), number)| ((*name).to_owned(), (*unit).to_owned(), *number)).collect();
        let point = Point { more, ..Point::new(*x, *y) };
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => all.push(Series {
                name: name.to_owned(),
                origin: Origin::Published,
                predicts: None,
                points: vec![point],
            }),
        }
    }
    Some(all)
}

/// Splits the head of a column, `payload [Gbit/s]`, into its name and unit.
fn named(head: &str) -> Option<(&str, &str)> {
    head.strip_suffix(']')?.split_once(" [")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_points_by_ascending_x() {
        for source in SOURCES {
            let all = parse(source.csv).expect(source.id);
            assert!(axes(source.id).is_some(), "{}", source.id);
            let points: usize = all.iter().map(|series| series.points.len()).sum();
            assert_eq!(points + 1, source.csv.lines().count(), "{}", source.id);
            for series in all {
                assert!(series.points.is_sorted_by(|one, next| one.x < next.x), "{} {}", source.id, series.name);
                assert_eq!(series.origin, Origin::Published);
            }
        }
    }

    #[test]
    fn the_points_are_those_of_the_figures() {
        let of = |id, name: &str| series(id).into_iter().find(|series| series.name == name).expect(name).points;
        let last = of("6c", "RCuckoo").pop().unwrap();
        assert_eq!((last.x, last.y, last.is_fitted), (320.0, 11.4432, false));
        assert!(
            of("6c", "RCuckoo")[0].is_fitted
                && !of("6c", "FUSEE")[0].is_fitted
                && of("1c", "device memory")[1].is_fitted
        );
        assert_eq!(of("6a", "Clover with in-network write steering").len(), 9);
        let write = of("1b", "WRITE").pop().unwrap();
        assert_eq!(write.more, [("payload".to_owned(), "Gbit/s".to_owned(), 6.63)]);
        assert_eq!(of("1c", "device memory")[1].y, 91.1164);
        assert_eq!(of("5", "16 locks per message")[2].y, 5.0);
        assert_eq!(of("7a", "W").iter().map(|point| point.x).collect::<Vec<_>>()[..2], [5.0, 15.0]);
        assert_eq!(of("8b", "independent and depth-first")[1].y, 2442.24);
        assert_eq!(series("9a"), []);
    }

    #[test]
    fn a_malformed_file_is_refused() {
        for csv in ["", "series,x,y\na,1", "series,x,y\na,1,b", "series,x,y,p\na,1,2,3", "series,x,y,p [s]\na,1,2"] {
            assert_eq!(parse(csv), None, "{csv}");
        }
    }
}
