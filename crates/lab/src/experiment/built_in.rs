//! The built-in plans: figures 6 to 8, the sensitivity to each parameter, and figures of other stores.

use std::sync::OnceLock;

use super::Plan;

/// A built-in plan.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltInPlan {
    /// The name that selects it: `6c`, `sensitivity-factor`.
    pub id: &'static str,
    /// The plan.
    pub plan: Plan,
}

/// Names and files.
const FILES: [(&str, &str); 42] = [
    ("6a", include_str!("../../figures/6a.toml")),
    ("6b", include_str!("../../figures/6b.toml")),
    ("6c", include_str!("../../figures/6c.toml")),
    ("7a", include_str!("../../figures/7a.toml")),
    ("7b", include_str!("../../figures/7b.toml")),
    ("7c", include_str!("../../figures/7c.toml")),
    ("7d", include_str!("../../figures/7d.toml")),
    ("8a", include_str!("../../figures/8a.toml")),
    ("8b", include_str!("../../figures/8b.toml")),
    ("8c", include_str!("../../figures/8c.toml")),
    ("8d", include_str!("../../figures/8d.toml")),
    ("sensitivity-clients", include_str!("../../figures/sensitivity-clients.toml")),
    ("sensitivity-covering", include_str!("../../figures/sensitivity-covering.toml")),
    ("sensitivity-entries-per-row", include_str!("../../figures/sensitivity-entries-per-row.toml")),
    ("sensitivity-entry-size", include_str!("../../figures/sensitivity-entry-size.toml")),
    ("sensitivity-factor", include_str!("../../figures/sensitivity-factor.toml")),
    ("sensitivity-fairness", include_str!("../../figures/sensitivity-fairness.toml")),
    ("sensitivity-fill", include_str!("../../figures/sensitivity-fill.toml")),
    ("sensitivity-lock-bits", include_str!("../../figures/sensitivity-lock-bits.toml")),
    ("sensitivity-nic", include_str!("../../figures/sensitivity-nic.toml")),
    ("sensitivity-rows-per-lock", include_str!("../../figures/sensitivity-rows-per-lock.toml")),
    ("sensitivity-search", include_str!("../../figures/sensitivity-search.toml")),
    ("sensitivity-theta", include_str!("../../figures/sensitivity-theta.toml")),
    ("sensitivity-timeout", include_str!("../../figures/sensitivity-timeout.toml")),
    ("linear-table-1", include_str!("../../figures/linear-table-1.toml")),
    ("linear-table-2", include_str!("../../figures/linear-table-2.toml")),
    ("linear-6", include_str!("../../figures/linear-6.toml")),
    ("linear-7", include_str!("../../figures/linear-7.toml")),
    ("linear-9-p50", include_str!("../../figures/linear-9-p50.toml")),
    ("linear-9-p90", include_str!("../../figures/linear-9-p90.toml")),
    ("linear-10", include_str!("../../figures/linear-10.toml")),
    ("linear-11", include_str!("../../figures/linear-11.toml")),
    ("linear-12", include_str!("../../figures/linear-12.toml")),
    ("linear-rcuckoo", include_str!("../../figures/linear-rcuckoo.toml")),
    ("clover-2", include_str!("../../figures/clover-2.toml")),
    ("clover-3", include_str!("../../figures/clover-3.toml")),
    ("clover-4", include_str!("../../figures/clover-4.toml")),
    ("clover-mix", include_str!("../../figures/clover-mix.toml")),
    ("switch-locks", include_str!("../../figures/switch-locks.toml")),
    ("switch-locks-tail", include_str!("../../figures/switch-locks-tail.toml")),
    ("switch-locks-fairness", include_str!("../../figures/switch-locks-fairness.toml")),
    ("switch-locks-bytes", include_str!("../../figures/switch-locks-bytes.toml")),
];

/// Returns every built-in plan, in the order of reports.
pub fn built_in_plans() -> &'static [BuiltInPlan] {
    static PLANS: OnceLock<Vec<BuiltInPlan>> = OnceLock::new();
    // A test parses every file.
    let parse = |(id, text)| Some(BuiltInPlan { id, plan: Plan::parse(id, text).ok()? });
    PLANS.get_or_init(|| FILES.into_iter().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;
    use crate::report::Origin;

    #[test]
    fn every_file_is_a_plan_and_a_quick_run_has_no_more_cells() {
        for (id, text) in FILES {
            let plan = Plan::parse(id, text).unwrap_or_else(|error| panic!("{error}"));
            let cells = |quick| plan.series(quick).iter().map(|series| series.cells.len()).sum::<usize>();
            assert!(cells(true) <= cells(false) && cells(false) <= 100, "{id}: {} cells", cells(false));
            for series in plan.series(true) {
                assert!(series.cells.iter().all(|cell| cell.experiment.entries <= 10_000_000), "{id}");
            }
        }
        assert_eq!(built_in_plans().len(), FILES.len());
    }

    #[test]
    fn every_predicted_series_is_published() {
        for BuiltInPlan { id, plan } in built_in_plans() {
            let published = plan.published.as_deref().map(published::series).unwrap_or_default();
            for predicted in plan.series(false).iter().filter_map(|series| series.predicts.as_ref()) {
                let found = published.iter().find(|series| series.name == *predicted);
                assert_eq!(found.expect(id).origin, Origin::Published);
            }
        }
    }

    #[test]
    fn what_is_measured_covers_what_is_published() {
        for BuiltInPlan { id, plan } in built_in_plans().iter().filter(|built_in| built_in.plan.published.is_some()) {
            for series in plan.series(false).iter().filter(|series| series.predicts.is_some()) {
                let published = published::series(id);
                let predicted = published.iter().find(|other| Some(&other.name) == series.predicts.as_ref()).expect(id);
                let measured: Vec<f64> = series.cells.iter().map(|cell| cell.x).collect();
                // Figures 7 and 8(a) have many published points on curves without corners, between measured ones.
                let between = |x: f64| measured.iter().any(|end| *end <= x) && measured.iter().any(|end| *end >= x);
                let is_curve = ["fill", "deaths of clients"].contains(&plan.x(false).label.as_str());
                let covers = |x: f64| if is_curve { between(x) } else { measured.contains(&x) };
                assert!(predicted.points.iter().all(|point| covers(point.x)), "{id} {}", series.name);
            }
        }
    }
}
