use super::canvas::WIDTH;
use super::*;
use crate::published;
use crate::report::markup::{Element, elements};
use crate::report::{Axis, Origin, Scale, Series, samples};

/// Every coordinate of an element, and whether it is horizontal.
fn coordinates(element: &Element) -> Vec<(bool, f64)> {
    let mut found = Vec::new();
    let of = |name| element.number(name);
    for (position, size, is_horizontal) in
        [("x", "width", true), ("y", "height", false), ("cx", "r", true), ("cy", "r", false)]
    {
        if let Some(start) = of(position) {
            let size = of(size).unwrap_or(0.0);
            found.push((is_horizontal, start + size));
            found.push((is_horizontal, if position.starts_with('c') { start - size } else { start }));
        }
    }
    for (name, text) in &element.attributes {
        match name.as_str() {
            "points" => {
                let pairs = text.split(' ').filter_map(|pair| pair.split_once(','));
                found.extend(pairs.flat_map(|(x, y)| [(true, x.parse().unwrap()), (false, y.parse().unwrap())]));
            }
            "d" => found.extend(of_path(text)),
            _ => {}
        }
    }
    found
}

/// The absolute coordinates of a path.
fn of_path(text: &str) -> Vec<(bool, f64)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_alphabetic()) {
        let command = &rest[start..=start];
        let end = rest[start + 1..].find(|letter: char| letter.is_ascii_alphabetic());
        let end = end.map_or(rest.len(), |end| start + 1 + end);
        let numbers: Vec<f64> = rest[start + 1..end].split_whitespace().map(|number| number.parse().unwrap()).collect();
        match (command, numbers.as_slice()) {
            ("M" | "L", [x, y]) => found.extend([(true, *x), (false, *y)]),
            ("H", [x]) => found.push((true, *x)),
            ("V", [y]) => found.push((false, *y)),
            ("h", [_]) => {}
            _ => panic!("{text}"),
        }
        rest = &rest[end..];
    }
    found
}

fn assert_drawn_well(chart: &Chart) -> String {
    let text = svg(chart);
    let all = elements(&text);
    assert_eq!(all[0].name, "svg");
    let height = all[0].number("height").unwrap();
    for element in &all[1..] {
        for (is_horizontal, value) in coordinates(element) {
            let end = if is_horizontal { WIDTH } else { height };
            assert!((0.0..=end).contains(&value), "{value} of {:?} {:?}", element.name, element.attributes);
        }
    }
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    assert_eq!(text, svg(chart), "the same chart, the same bytes");
    text
}

#[test]
fn every_shape_is_well_formed_and_within_its_box() {
    for shape in samples::SHAPES {
        let chart = samples::of(shape);
        let text = assert_drawn_well(&chart);
        for series in chart.series.iter().filter(|_| shape != Shape::Grid) {
            let first = series.name.split(' ').next().unwrap();
            assert!(text.contains(&format!(">{first}")), "{shape:?}: {} is not in the legend", series.name);
        }
        assert!(text.contains("YCSB-A &lt;50/50&gt; &amp; &quot;more&quot;"), "{text}");
    }
}

#[test]
fn published_figures_are_drawn_as_they_are() {
    for id in published::ids() {
        let (x, y) = published::axes(id).unwrap();
        for shape in samples::SHAPES {
            let series = published::series(id);
            let chart = Chart { x: x.clone(), y: y.clone(), ..samples::chart(shape, x.clone(), series) };
            assert_drawn_well(&chart);
        }
    }
}

#[test]
fn odd_charts_are_drawn() {
    let x = || Axis::new("x", "", Scale::Logarithmic);
    let one = |points: &[(f64, f64)]| vec![samples::series("only", Origin::Measured, None, points)];
    let nan = f64::NAN;
    for points in
        [&[][..], &[(1.0, 0.0)], &[(0.0, 1.0), (-1.0, 2.0)], &[(1.0, nan), (2.0, 1.0)], &[(5.0, 1e9)], &[(1.0, 1e-9)]]
    {
        for shape in samples::SHAPES {
            assert_drawn_well(&samples::chart(shape, x(), one(points)));
            assert_drawn_well(&samples::chart(shape, Axis::new("x", "", Scale::Linear), one(points)));
        }
    }
    assert!(svg(&samples::chart(Shape::Lines, x(), Vec::new())).contains("no points"));
    let many: Vec<Series> = (0..16)
        .map(|index| samples::series(&format!("series {index}"), Origin::Measured, None, &[(1.0, f64::from(index))]))
        .collect();
    assert_drawn_well(&samples::chart(Shape::Bars, Axis::new("x", "", Scale::Category), many));
}

#[test]
fn the_legend_and_its_samples_are_below_the_plot() {
    let text = assert_drawn_well(&samples::of(Shape::Lines));
    let plot_bottom = elements(&text)
        .iter()
        .filter(|element| element.attributes.iter().any(|(_, value)| value == "grid"))
        .flat_map(coordinates)
        .filter(|(is_horizontal, _)| !is_horizontal)
        .fold(0.0, |bottom: f64, (_, y)| bottom.max(y));
    let name = text.find(">Guira</text>").unwrap();
    let start = text[..name].rfind("<text").unwrap();
    let legend = &elements(&format!("{}</text>", &text[start..name + 1]))[0];
    assert!(legend.number("y").unwrap() > plot_bottom + 30.0, "{:?}", legend.attributes);
}

#[test]
fn a_published_series_has_the_hue_of_the_one_that_predicts_it_and_is_dashed() {
    let chart = samples::of(Shape::Lines);
    let looks = palette::looks(&chart);
    assert_eq!(looks[0].open(), looks[2].open());
    assert_ne!(looks[0].open(), looks[1].open());
    assert_ne!(looks[3].open(), looks[0].open());
    assert!(!looks[0].line().contains("dasharray") && looks[2].line().contains("dasharray"));
    assert_ne!(looks[2].line(), looks[3].line());
    assert!(looks[2].mark((1.0, 1.0)).contains("hollow") && !looks[0].mark((1.0, 1.0)).contains("hollow"));
}

#[test]
fn a_ceiling_far_above_the_data_is_named_but_does_not_flatten_it() {
    let text = svg(&samples::of(Shape::Lines));
    assert!(text.contains(">A</text>") && text.contains(">B</text>") && !text.contains(">C</text>"));
    assert!(text.contains("C far above: 500, above the plot"), "{text}");
    assert!(text.contains(">15</text>") && !text.contains(">500</text>"));
}
