//! Charts for tests: one of each shape, with everything that a chart may have.

use super::{Axis, Ceiling, Chart, Origin, Point, Scale, Series, Shape};

/// A series of points without further figures.
pub(super) fn series(name: &str, origin: Origin, predicts: Option<&str>, points: &[(f64, f64)]) -> Series {
    Series {
        name: name.to_owned(),
        origin,
        predicts: predicts.map(str::to_owned),
        points: points.iter().map(|(x, y)| Point::new(*x, *y)).collect(),
    }
}

/// A chart of these series.
pub(super) fn chart(shape: Shape, x: Axis, series: Vec<Series>) -> Chart {
    Chart {
        id: format!("{shape:?}"),
        title: "YCSB-A <50/50> & \"more\" by clients, with a title that takes two lines".to_owned(),
        x,
        y: Axis::new("throughput", "million/s", Scale::Linear),
        shape,
        series,
        ceilings: vec![
            Ceiling { name: "100 Gbit/s, two READs a lookup".to_owned(), y: 15.0 },
            Ceiling { name: "the same, from far away".to_owned(), y: 14.9 },
            Ceiling { name: "far above".to_owned(), y: 500.0 },
        ],
        notes: vec!["A note with <angles>.".to_owned()],
    }
}

/// A chart of this shape with measured and published series.
pub(super) fn of(shape: Shape) -> Chart {
    let x = match shape {
        Shape::Bars => Axis::of_names("addresses", &["one", "independent", "a name that is long", "another one, too"]),
        Shape::Grid => Axis::new("rows per lock", "", Scale::Category),
        Shape::Lines | Shape::Curve => Axis::new("clients", "", Scale::Logarithmic),
    };
    let points = |factor: f64| {
        let x = |index: u32| if shape == Shape::Bars { index.into() } else { f64::from(8 << index) };
        (0..4).map(|index| (x(index), factor * f64::from(index + 1))).collect::<Vec<_>>()
    };
    let mut guira = series("Guira", Origin::Measured, Some("RCuckoo"), &points(3.0));
    for point in &mut guira.points {
        point.more = vec![("p99".to_owned(), "us".to_owned(), 12.5)];
        point.bound_by = "the link, from the server".to_owned();
        point.spread = Some((point.y - 0.5, point.y + 0.5));
        point.is_unsteady = point.x == 16.0;
    }
    let all = vec![
        guira,
        series("as printed", Origin::Measured, None, &points(2.0)),
        series("RCuckoo", Origin::Published, None, &points(2.5)),
        series("Clover with in-network write steering", Origin::Published, None, &points(1.0)),
    ];
    chart(shape, x, all)
}

/// The shapes.
pub(super) const SHAPES: [Shape; 4] = [Shape::Lines, Shape::Curve, Shape::Bars, Shape::Grid];
