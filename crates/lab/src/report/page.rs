//! The report as one HTML page, without scripts and external resources: readable offline, on a phone and in print.
//!
//! Invariants: every text is escaped, and the same charts and run give the same bytes.

use super::claims::{Claim, claims};
use super::csv::columns;
use super::distance::{Distance, Verdict, distances};
use super::style::{HUES, TEXT};
use super::svg::svg_without_heading;
use super::text::{escaped, number};
use super::{Chart, Origin, Point, Series};

/// The circumstances of a run, which a reader needs to repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The heading of the page.
    pub title: String,
    /// The command line that repeats the run.
    pub command: String,
    /// The version of the program.
    pub version: String,
    /// The commit of its sources, if it is known.
    pub commit: Option<String>,
    /// The seed of everything drawn at random.
    pub seed: u64,
    /// Seeds of each point, from that one on.
    pub seeds: u32,
    /// Whether it was a quick run.
    pub quick: bool,
}

/// Paragraphs on the method.
const METHOD: [&str; 4] = [
    "Clients run the code of the protocol on a model of the network in virtual time. The model has the message rates, \
     link rates, latencies and atomic units of a network card, and counts every header. A result depends on the seed \
     and the settings alone, not on the machine that computes it.",
    "The constants of the network come from figure 1 of the RCuckoo paper and from documented hardware, and those of \
     the authors' clients from the points with fewest clients of figure 6. What was fitted to judges nothing: such \
     points are left out of distances, and a series of nothing else is listed as calibration. All others are predicted.",
    "A distance compares a measured series with the published one that it predicts, at the published x, between \
     measured points linearly, and never beyond them. \"Agrees\" means a mean deviation of at most 15 % and none above \
     25 %, 3 points of a distribution, or 90 % of a grid's cells within a factor of 1.25 and none beyond 2; \"near\" \
     means 30 % and 60 %, 10 points, or 90 % of the cells within a factor of 2; anything else \"differs\". A statement \
     of the text agrees within a factor of 1.25, and is near within 1.6; bounds are exact.",
    "In the charts, measured series have full lines and marks. Published series have dashed lines and hollow marks, in \
     the colour of the series that predicts them. Dotted lines are limits of the hardware, named by letters.",
];

/// Rows of a table of points. Distributions have hundreds of points; the CSV file has them all.
const ROWS_MAX: usize = 40;

/// Returns the page.
#[must_use]
pub fn page(run: &Run, charts: &[Chart]) -> String {
    let title = escaped(&run.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n",
        css()
    );
    out += &facts(run);
    out += &summary(charts);
    for chart in charts {
        out += &section(chart);
    }
    out += "<section>\n<h2 id=\"method\">Method</h2>\n";
    for paragraph in METHOD {
        out += &format!("<p>{}</p>\n", escaped(paragraph));
    }
    out + "</section>\n</main>\n</body>\n</html>\n"
}

fn facts(run: &Run) -> String {
    let commit = run.commit.as_deref().unwrap_or("unknown");
    let extent = if run.quick { "quick: fewer points, smaller tables" } else { "full" };
    let rows = [
        ("Command", format!("<code>{}</code>", escaped(&run.command))),
        ("Version", escaped(&run.version)),
        ("Commit", escaped(commit)),
        ("Seeds", seeds_text(run)),
        ("Extent", extent.to_owned()),
    ];
    let rows = rows.map(|(name, text)| format!("<div><dt>{name}</dt><dd>{text}</dd></div>\n"));
    format!("<dl class=\"facts\">\n{}</dl>\n", rows.concat())
}

fn seeds_text(run: &Run) -> String {
    match run.seeds {
        0 | 1 => run.seed.to_string(),
        seeds => format!("{} and the next {}: values are medians, lines their spread", run.seed, seeds - 1),
    }
}

/// The tables on top: every series that predicts published points and every chart without any, the statements of the
/// text, and the series that calibrate the model.
fn summary(charts: &[Chart]) -> String {
    let mut out = format!("<section>\n<h2>Distance from the paper</h2>\n<p>{}</p>\n", escaped(&overview(charts)));
    out += &distance_table(charts, false);
    let claims = claim_table(charts);
    if !claims.is_empty() {
        out += &format!("<h3>What the text says</h3>\n{claims}");
    }
    if charts.iter().flat_map(distances).any(|distance| distance.is_calibration) {
        out += &format!("<h3>Calibration</h3>\n{}", distance_table(charts, true));
    }
    out + "</section>\n"
}

/// The table of all statements of the text about these charts, or an empty text.
fn claim_table(charts: &[Chart]) -> String {
    let mut rows = String::new();
    for chart in charts {
        for Claim { text, quotient, claimed, measured, verdict, why } in claims(chart) {
            let [text, quotient, claimed, why] = [text, quotient, claimed.as_str(), why].map(escaped);
            let word = verdict.text();
            rows += &format!(
                "<tr><td><a href=\"#{}\">{}</a></td><td>{text} {why}</td><td>{quotient}</td><td>claimed {claimed}, \
                 measured {measured:.2}</td><td class=\"{word}\">{word}</td></tr>\n",
                anchor(chart),
                escaped(&chart.id),
            );
        }
    }
    let heads = ["Figure", "Statement", "Held against", "Factor", "Verdict"];
    if rows.is_empty() { rows } else { summary_table(heads, &rows) }
}

fn summary_table(heads: [&str; 5], rows: &str) -> String {
    let heads = heads.map(|head| format!("<th>{head}</th>")).concat();
    format!("<table class=\"summary\">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n")
}

/// The table of distances: those of calibration, or all others.
fn distance_table(charts: &[Chart], is_calibration: bool) -> String {
    let mut rows = String::new();
    for chart in charts {
        let link = format!("<a href=\"#{}\">{}</a>", anchor(chart), escaped(&chart.title));
        let found = distances(chart);
        let listed = found.iter().filter(|distance| distance.is_calibration == is_calibration);
        for (index, distance) in listed.enumerate() {
            // The figure has its name in its first row.
            let link = if index == 0 { link.as_str() } else { "" };
            let [measured, published] = [&distance.measured, &distance.published].map(|name| escaped(name));
            let (text, word) = (distance_text(chart, distance), distance.verdict().text());
            rows += &format!(
                "<tr><td>{link}</td><td>{measured}</td><td>{published}</td><td>{text}</td>\
                 <td class=\"{word}\">{word}</td></tr>\n"
            );
        }
        if found.is_empty() && !is_calibration {
            let has_published = chart.series.iter().any(|series| series.origin == Origin::Published);
            let reason = if has_published { "not compared: see its notes" } else { "no published points" };
            rows += &format!("<tr><td>{link}</td><td></td><td></td><td>{reason}</td><td></td></tr>\n");
        }
    }
    summary_table(["Figure", "Measured", "Published", "Distance", "Verdict"], &rows)
}

/// Sentences on all distances.
fn overview(charts: &[Chart]) -> String {
    let (fitted, predicted): (Vec<Distance>, Vec<Distance>) =
        charts.iter().flat_map(distances).partition(|distance| distance.is_calibration);
    if fitted.is_empty() && predicted.is_empty() {
        return "No series of this report has published points to compare with.".to_owned();
    }
    let count = |verdict: Verdict| predicted.iter().filter(|distance| distance.verdict() == verdict).count();
    let [agree, near, differ] = [Verdict::Agrees, Verdict::Near, Verdict::Differs].map(count);
    let calibration = match fitted.len() {
        0 => String::new(),
        count => format!(" The model was fitted to {count} others, which are listed as calibration."),
    };
    format!(
        "Predictions of published points: {agree} agree with them, {near} near, {differ} differ.{calibration} The section \
         on the method says what that means."
    )
}

fn distance_text(chart: &Chart, distance: &Distance) -> String {
    let left_out = match distance.left_out {
        0 => String::new(),
        left_out => format!(" ({left_out} of {} points not compared)", left_out + distance.compared),
    };
    escaped(&(distance.text(&chart.x) + &left_out))
}

fn section(chart: &Chart) -> String {
    let mut out = format!("<section class=\"figure\">\n<h2 id=\"{}\">{}</h2>\n", anchor(chart), escaped(&chart.title));
    out += &format!("<figure>\n{}</figure>\n<div class=\"text\">\n", svg_without_heading(chart));
    for distance in distances(chart) {
        let verdict = match distance.verdict() {
            Verdict::Agrees => "agrees with",
            Verdict::Near => "is near",
            Verdict::Differs => "differs from",
        };
        let [measured, published] = [&distance.measured, &distance.published].map(|name| escaped(name));
        let text = distance_text(chart, &distance);
        out += &format!("<p><strong>{measured}</strong> {verdict} the published {published}: {text}.</p>\n");
    }
    for claim in claims(chart) {
        out += &format!(
            "<p>\u{201c}{}\u{201d}: {}.</p>\n",
            escaped(claim.text),
            escaped(claim.result().trim_end_matches('.'))
        );
    }
    let bounds = bounds(chart);
    if !bounds.is_empty() {
        let items: String = bounds.iter().map(|bound| format!("<li>{}</li>\n", escaped(bound))).collect();
        out += &format!("<p>Limited by:</p>\n<ul>\n{items}</ul>\n");
    }
    for note in &chart.notes {
        out += &format!("<p>{}</p>\n", escaped(note));
    }
    out + &points(chart) + "</div>\n</section>\n"
}

/// The resources that limit the measured series at their last points.
fn bounds(chart: &Chart) -> Vec<String> {
    let measured = chart.series.iter().filter(|series| series.origin == Origin::Measured);
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for (series, point) in measured.filter_map(|series| Some((series, series.points.last()?))) {
        let who = format!("{} at {}", series.name, x_text(chart, point));
        match found.iter_mut().find(|(bound, _)| *bound == point.bound_by) {
            Some((_, whose)) => whose.push(who),
            None if point.bound_by.is_empty() => {}
            None => found.push((&point.bound_by, vec![who])),
        }
    }
    found.into_iter().map(|(bound, whose)| format!("{bound} ({})", whose.join("; "))).collect()
}

/// The table of points, folded.
fn points(chart: &Chart) -> String {
    let count: usize = chart.series.iter().map(|series| series.points.len()).sum();
    let mut out = format!("<details>\n<summary>{count} points</summary>\n<div class=\"scroll\">\n");
    for series in chart.series.iter().filter(|series| !series.points.is_empty()) {
        out += &table(chart, series);
    }
    out + "</div>\n</details>\n"
}

pub(super) fn table(chart: &Chart, series: &Series) -> String {
    let more = columns(&series.points);
    let is_bound = series.points.iter().any(|point| !point.bound_by.is_empty());
    let mut heads = vec![chart.x.title(), chart.y.title()];
    heads.extend(
        more.iter().map(|(name, unit)| if unit.is_empty() { name.clone() } else { format!("{name} [{unit}]") }),
    );
    if is_bound {
        heads.push("limited by".to_owned());
    }
    let origin = if series.origin == Origin::Published { " (published)" } else { "" };
    let count = series.points.len();
    let part = if count > ROWS_MAX { format!(", some of {count} points") } else { String::new() };
    let heads: String = heads.iter().map(|head| format!("<th>{}</th>", escaped(head))).collect();
    let mut out = format!("<table>\n<caption>{}{origin}{part}</caption>\n", escaped(&series.name));
    out += &format!("<thead><tr>{heads}</tr></thead>\n<tbody>\n");
    let step = series.points.len().div_ceil(ROWS_MAX).max(1);
    for point in series.points.iter().step_by(step) {
        let mut cells = vec![x_text(chart, point), number(point.y)];
        cells.extend(more.iter().map(|(name, unit)| {
            let figure = point.more.iter().find(|more| more.0 == *name && more.1 == *unit);
            figure.map_or(String::new(), |more| number(more.2))
        }));
        let mut row: String = cells.iter().map(|cell| format!("<td class=\"number\">{}</td>", escaped(cell))).collect();
        if is_bound {
            row += &format!("<td>{}</td>", escaped(&point.bound_by));
        }
        out += &format!("<tr>{row}</tr>\n");
    }
    out + "</tbody>\n</table>\n"
}

fn x_text(chart: &Chart, point: &Point) -> String {
    chart.x.name_of(point.x).map_or_else(|| number(point.x), str::to_owned)
}

/// The name of a chart in links.
fn anchor(chart: &Chart) -> String {
    let id = chart.id.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' });
    "figure-".chars().chain(id).collect()
}

/// The style sheet: the plain part, and the colours of each series on a dark page.
fn css() -> String {
    let mut dark = String::new();
    for (index, (_, colour)) in HUES.iter().enumerate() {
        dark += &format!("  svg .s{index} {{ stroke: {colour}; fill: {colour}; }}\n");
    }
    CSS.replace("/* series */\n", &dark).replace("/* text */", TEXT)
}

const CSS: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::super::markup::elements;
    use super::super::{Shape, samples};
    use super::*;

    fn run() -> Run {
        Run {
            title: "Figures <all>".to_owned(),
            command: "guira lab all --out 'a & b'".to_owned(),
            version: "0.1.0".to_owned(),
            commit: None,
            seed: 7,
            seeds: 3,
            quick: true,
        }
    }

    #[test]
    fn the_page_is_well_formed_self_contained_and_always_the_same() {
        let charts: Vec<Chart> = samples::SHAPES.into_iter().map(samples::of).collect();
        let text = page(&run(), &charts);
        let all = elements(&text);
        for element in &all {
            assert_ne!(element.name, "script");
            let is_resource = |name: &str| ["src", "srcset", "data", "xlink"].contains(&name);
            assert!(element.attributes.iter().all(|(name, _)| !is_resource(name)), "{}", element.name);
        }
        let links = all.iter().flat_map(|element| &element.attributes).filter(|(name, _)| name == "href");
        for (_, target) in links {
            assert!(text.contains(&format!("id=\"{}\"", target.strip_prefix('#').unwrap())), "{target}");
        }
        assert!(!text.contains("url(") && !text.contains("@import"));
        assert!(text.contains("a &amp; b") && text.contains("Figures &lt;all&gt;") && text.contains("&lt;angles&gt;"));
        assert_eq!(text, page(&run(), &charts));
    }

    #[test]
    fn the_summary_names_the_distance_and_the_bound() {
        let text = page(&run(), &[samples::of(Shape::Lines)]);
        assert!(
            text.contains("<td>Guira</td><td>RCuckoo</td><td>mean 20.0\u{a0}%, worst +20.0\u{a0}% (clients: 8)</td>")
        );
        assert!(text.contains("<td class=\"near\">near</td>"), "{text}");
        assert!(text.contains("<strong>Guira</strong> is near the published RCuckoo"));
        assert!(text.contains("the link, from the server (Guira at 64)"));
        assert!(text.contains("0 agree with them, 1 near, 0 differ"));
        let alone = Chart { series: Vec::new(), ..samples::of(Shape::Lines) };
        assert!(page(&run(), &[alone]).contains("no published points"));
    }

    #[test]
    fn long_tables_are_thinned() {
        let mut chart = samples::of(Shape::Lines);
        chart.series.truncate(1);
        chart.series[0].points = (0..200).map(|index| Point::new(f64::from(index + 1), 1.0)).collect();
        let text = page(&run(), &[chart]);
        assert!(text.contains("Guira, some of 200 points"));
        assert!(text.matches("<tr>").count() <= ROWS_MAX + 4, "{}", text.matches("<tr>").count());
    }
}
