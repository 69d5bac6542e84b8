//! Experiments: the settings of a measurement, plans that vary them, and the answers.
//!
//! An [`Experiment`] is one point of a chart as plain data: a setting of the protocol, a network card, clients, a
//! workload, a table. A [`Plan`] is a chart as data: an experiment, the parameter along the x axis, and a series for
//! each variation. Users write plans as TOML files, and the built-in figures are such files too.
//!
//! Invariants: everything that is run was checked first, and the same plan, [`RunOptions::seed`] and
//! [`RunOptions::quick`] give the same charts, whatever [`RunOptions::jobs`] is.

mod answer;
mod built_in;
mod engine;
mod error;
mod figures;
mod growth;
mod measure;
mod parameters;
mod plan;
mod settings;

pub use answer::{Answer, KindAnswer};
pub use built_in::{BuiltInPlan, built_in_plans};
pub use engine::{Outcomes, ask, ask_growth, run_plan};
pub use error::LabError;
pub use figures::{FigureInfo, definition_of, figures, figures_named, run_figure, run_published_plan};
pub use growth::{Growth, GrowthAnswer, GrowthRatio, GrowthSide, SplitAnswer, Times};
pub use measure::{Kind, Measure, Quantity, Statistic};
pub use parameters::{Accepts, PARAMETERS, Parameter, Value, nearest};
pub use plan::{Cell, Plan, PlannedSeries};
pub use settings::{
    Card, Experiment, Guess, Hashing, InsertRow, Lookup, Mix, Queue, ReadCosts, RecordLayout, Search, Setting, Steered,
    UpdateReads,
};

/// The options of a run that are not part of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Whether fewer points and smaller tables are measured, for a first impression.
    pub quick: bool,
    /// The seed of everything drawn at random.
    pub seed: u64,
    /// Number of seeds with which each experiment of a chart is carried out: this one and the next ones.
    pub seeds: u32,
    /// Number of threads. It does not change a result.
    pub jobs: usize,
}

/// The observer of a run: it is told of progress, and can stop it.
pub trait Watch: Sync {
    /// Reports that `what` begins, a run of `cells` experiments.
    fn begin(&self, what: &str, cells: u64);

    /// Reports that an experiment of it is done.
    fn cell_done(&self);

    /// Returns whether the run is to end. A run that ends early returns [`LabError::Stopped`].
    fn is_stopped(&self) -> bool;
}
