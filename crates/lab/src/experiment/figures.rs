//! The built-in figures: their names, and how each is measured.

use std::sync::OnceLock;

use super::built_in::built_in_plans;
use super::parameters::nearest;
use super::{LabError, Outcomes, Plan, RunOptions, Watch, run_plan};
use crate::figures::{fig1, fig4, fig5, linear};
use crate::published;
use crate::report::Chart;

/// The name and subject of a built-in figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FigureInfo {
    /// The name that selects it: `6c`, `sensitivity-factor`.
    pub id: &'static str,
    /// The heading.
    pub title: &'static str,
    /// Sentences on what is measured, or an empty text.
    pub about: &'static str,
}

impl FigureInfo {
    /// Whether it is a figure of RCuckoo, and neither of another store nor of an element in the network.
    pub fn is_of_rcuckoo(&self) -> bool {
        !["linear-", "clover-", "switch-"].iter().any(|other| self.id.starts_with(other))
    }
}

/// A figure with a module of its own, because it is no grid of experiments.
struct Programmed {
    info: FigureInfo,
    /// The text of its module, on which its charts depend.
    source: &'static str,
    measure: fn(&RunOptions, &dyn Watch) -> Result<Chart, LabError>,
}

/// The figures with modules of their own.
const PROGRAMMED: [Programmed; 14] = [
    Programmed {
        info: FigureInfo {
            id: "1a",
            title: "Figure 1(a): latency of a READ",
            about: "The latency of one READ by its bytes, in the model of the network.",
        },
        source: include_str!("../figures/fig1.rs"),
        measure: fig1::latencies,
    },
    Programmed {
        info: FigureInfo {
            id: "1b",
            title: "Figure 1(b): rate of verbs of 8 bytes",
            about: "WRITEs, READs and CAS by the requests in flight, in the model of the network, which it calibrates.",
        },
        source: include_str!("../figures/fig1.rs"),
        measure: fig1::rates,
    },
    Programmed {
        info: FigureInfo {
            id: "1c",
            title: "Figure 1(c): CAS on one and on independent addresses",
            about: "CAS in host and device memory, in the model of the network, which it calibrates.",
        },
        source: include_str!("../figures/fig1.rs"),
        measure: fig1::atomics,
    },
    Programmed {
        info: FigureInfo {
            id: "4a",
            title: "Figure 4(a): distance between a key's two rows",
            about: "The distribution by the locality factor f. No network is involved.",
        },
        source: include_str!("../figures/fig4.rs"),
        measure: fig4::distances,
    },
    Programmed {
        info: FigureInfo {
            id: "4b",
            title: "Figure 4(b): fill at the first failed insert",
            about: "The fill that a table reaches, by the locality factor f. No network is involved.",
        },
        source: include_str!("../figures/fig4.rs"),
        measure: fig4::fills,
    },
    Programmed {
        info: FigureInfo {
            id: "4c",
            title: "Figure 4(c): span of cuckoo paths",
            about: "The rows between the first and the last row of a path, for dependent and independent hashing.",
        },
        source: include_str!("../figures/fig4.rs"),
        measure: fig4::spans,
    },
    Programmed {
        info: FigureInfo {
            id: "5",
            title: "Figure 5: round trips of an insert by locks",
            about: "The 99th percentile of inserts of 8 clients that fill a table of 512 rows, by the rows that share \
                    a lock and the locks that a message takes, with the messages of the paper's authors.",
        },
        source: include_str!("../figures/fig5.rs"),
        measure: fig5::grid_of_locks,
    },
    Programmed {
        info: FigureInfo {
            id: "5-as-printed",
            title: "Figure 5 with the protocol as printed",
            about: "The same grid, with real clients of preset paper.",
        },
        source: include_str!("../figures/fig5.rs"),
        measure: fig5::grid_as_printed,
    },
    Programmed {
        info: FigureInfo {
            id: "5-guira",
            title: "Figure 5 with Guira's protocol",
            about: "The same grid, with the clients that users run and messages of 1, 2 or 4 locks.",
        },
        source: include_str!("../figures/fig5.rs"),
        measure: fig5::grid_of_guira,
    },
    Programmed {
        info: FigureInfo {
            id: "linear-table-1-slots",
            title: "Linear probing, table 1: slots of a READ",
            about: "The size of READs that the model computes, by the fill. No network is involved.",
        },
        source: include_str!("../figures/linear.rs"),
        measure: linear::read_sizes,
    },
    Programmed {
        info: FigureInfo {
            id: "linear-10-computed",
            title: "Linear probing, figure 10(b): computed cost",
            about: "The cost of a lookup that the model computes, by the size of READs. No network is involved.",
        },
        source: include_str!("../figures/linear.rs"),
        measure: linear::computed_costs,
    },
    Programmed {
        info: FigureInfo {
            id: "linear-table-3",
            title: "Linear probing, table 3: slots of a READ by the size of records",
            about: "The size of READs at 65 % fill, for records in the slots and in a heap. No network is involved.",
        },
        source: include_str!("../figures/linear.rs"),
        measure: linear::read_sizes_by_record,
    },
    Programmed {
        info: FigureInfo {
            id: "linear-table-4",
            title: "Linear probing, table 4: READs of a lookup with records in a heap",
            about: "READs of the table and of the heap at 65 % fill, of each stored key once. No network is involved.",
        },
        source: include_str!("../figures/linear.rs"),
        measure: linear::heap_reads,
    },
    Programmed {
        info: FigureInfo {
            id: "linear-13",
            title: "Linear probing, figure 13: slots of a READ near a cluster",
            about: "The size of READs by the distance from a cluster of 10 slots. No network is involved.",
        },
        source: include_str!("../figures/linear.rs"),
        measure: linear::read_sizes_near_cluster,
    },
];

/// Returns every built-in figure, in the order of reports.
pub fn figures() -> &'static [FigureInfo] {
    static FIGURES: OnceLock<Vec<FigureInfo>> = OnceLock::new();
    FIGURES.get_or_init(|| {
        let planned = built_in_plans().iter();
        let planned = planned.map(|built_in| FigureInfo {
            id: built_in.id,
            title: &built_in.plan.title,
            about: &built_in.plan.about,
        });
        PROGRAMMED.iter().map(|programmed| programmed.info).chain(planned).collect()
    })
}

/// Returns the figures of a name as users write it: `fig6c`, `6c`, or `6` and `sensitivity` for all of theirs.
///
/// # Errors
/// [`LabError::UnknownFigure`].
pub fn figures_named(name: &str) -> Result<Vec<&'static FigureInfo>, LabError> {
    let lower = name.to_ascii_lowercase();
    let id = ["figure", "fig"].into_iter().find_map(|prefix| lower.strip_prefix(prefix)).unwrap_or(&lower);
    let id = id.trim_start_matches(['-', '.', ' ']);
    let exact: Vec<_> = figures().iter().filter(|figure| figure.id == id).collect();
    if !exact.is_empty() {
        return Ok(exact);
    }
    let is_part = |rest: &str| rest.starts_with('-') || (rest.len() == 1 && rest.as_bytes()[0].is_ascii_lowercase());
    let group = figures().iter().filter(|figure| figure.id.strip_prefix(id).is_some_and(is_part));
    let group: Vec<_> = group.filter(|_| !id.is_empty()).collect();
    if !group.is_empty() {
        return Ok(group);
    }
    let nearest = nearest(id, figures().iter().map(|figure| figure.id));
    Err(LabError::UnknownFigure { name: name.to_owned(), nearest })
}

/// Measures a figure, and adds its published points. Experiments among `outcomes` are not carried out again.
///
/// # Errors
/// [`LabError::UnknownFigure`], or an error of a run.
pub fn run_figure(
    id: &str,
    options: &RunOptions,
    outcomes: &mut Outcomes,
    watch: &dyn Watch,
) -> Result<Vec<Chart>, LabError> {
    if let Some(programmed) = PROGRAMMED.iter().find(|programmed| programmed.info.id == id) {
        return Ok(vec![(programmed.measure)(options, watch)?]);
    }
    let built_in = built_in_plans().iter().find(|built_in| built_in.id == id);
    let unknown = || LabError::UnknownFigure { name: id.to_owned(), nearest: None };
    run_published_plan(id, &built_in.ok_or_else(unknown)?.plan, options, outcomes, watch)
}

/// Carries out a plan, and adds the published points that it names.
///
/// # Errors
/// An error of a run.
pub fn run_published_plan(
    id: &str,
    plan: &Plan,
    options: &RunOptions,
    outcomes: &mut Outcomes,
    watch: &dyn Watch,
) -> Result<Vec<Chart>, LabError> {
    let mut chart = run_plan(id, plan, options, outcomes, watch)?;
    // An experiment without operations of the measured kind has no point.
    for series in &mut chart.series {
        series.points.retain(|point| point.y.is_finite());
    }
    if let Some(published) = &plan.published {
        chart.series.extend(published::series(published));
        chart.notes.extend(published::notes(published).iter().map(|note| (*note).to_owned()));
    }
    Ok(vec![chart])
}

/// Returns everything that the charts of a figure depend on, besides the options of the run: the text of its plan
/// or module.
pub fn definition_of(id: &str) -> &'static str {
    if let Some(programmed) = PROGRAMMED.iter().find(|programmed| programmed.info.id == id) {
        return programmed.source;
    }
    built_in_plans().iter().find(|built_in| built_in.id == id).map_or("", |built_in| &built_in.plan.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_every_way_to_write_its_name() {
        let ids = |name: &str| figures_named(name).unwrap().iter().map(|figure| figure.id).collect::<Vec<_>>();
        for name in ["6c", "fig6c", "Fig6C", "figure-6c", "fig.6c"] {
            assert_eq!(ids(name), ["6c"], "{name}");
        }
        assert_eq!(ids("fig6"), ["6a", "6b", "6c"]);
        assert_eq!(ids("switch").len(), 4);
        assert!(figures_named("switch").unwrap().iter().all(|figure| !figure.is_of_rcuckoo()), "all has them not");
        assert!(ids("sensitivity").len() > 10 && ids("sensitivity").iter().all(|id| id.starts_with("sensitivity-")));
    }

    #[test]
    fn an_unknown_figure_is_refused_with_a_similar_name() {
        let message = |name: &str| figures_named(name).unwrap_err().to_string();
        assert!(message("sensitivity-facter").contains("similar: sensitivity-factor"));
        assert!(message("fig99").starts_with("unknown figure \"fig99\"; guira lab list"), "{}", message("fig99"));
        assert!(message("").starts_with("unknown figure"));
    }
}
