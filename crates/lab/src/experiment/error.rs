//! Errors of experiments, sorted by blame.

/// An error of an experiment, a plan or a figure. No result was produced.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// There is no figure of this name.
    #[error("unknown figure {name:?}{}; guira lab list shows all figures", suggestion(nearest.as_deref()))]
    UnknownFigure {
        /// The name as given.
        name: String,
        /// The most similar name.
        nearest: Option<String>,
    },
    /// There is no parameter of this name.
    #[error("unknown parameter {name:?}{}", suggestion(nearest.as_deref()))]
    UnknownParameter {
        /// The name as given.
        name: String,
        /// The most similar name.
        nearest: Option<String>,
    },
    /// The value of a parameter is not one that it may have.
    #[error("{parameter} is {value}, but must be {expected}")]
    Value {
        /// The parameter.
        parameter: String,
        /// The value as given.
        value: String,
        /// The values it may have.
        expected: String,
    },
    /// Two parameters do not go together.
    #[error("{0}")]
    Conflict(String),
    /// A plan file is not valid.
    #[error("{name}{}: {message}", line.map_or(String::new(), |line| format!(", line {line}")))]
    Plan {
        /// The name of the file.
        name: String,
        /// The line, if the error has one.
        line: Option<usize>,
        /// The reason.
        message: String,
    },
    /// The tables of an experiment do not fit in memory. Nothing was allocated.
    #[error(
        "it needs {} MiB of memory, but only {} MiB are free; \
         --quick, --jobs 1, fewer entries or smaller predictors need less",
        needed_bytes.div_ceil(1 << 20), free_bytes >> 20
    )]
    Memory {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// Inserts failed before the table was as full as an experiment wants it.
    #[error("a table of {entries} entries cannot be filled to {percent} %: {reason}")]
    Unfillable {
        /// The table's entries.
        entries: u64,
        /// The fill that was wanted, in percent.
        percent: u64,
        /// The insert that failed.
        reason: String,
    },
    /// The run was stopped by its observer.
    #[error("the run was stopped")]
    Stopped,
    /// An experiment failed: the protocol, the simulation or a check of its results found an error.
    #[error("{what} failed: {reason}")]
    Failed {
        /// The experiment.
        what: String,
        /// The reason.
        reason: String,
    },
}

impl LabError {
    /// Whether the arguments or the plan are at fault.
    pub fn is_misuse(&self) -> bool {
        match self {
            LabError::UnknownFigure { .. }
            | LabError::UnknownParameter { .. }
            | LabError::Value { .. }
            | LabError::Conflict(_)
            | LabError::Plan { .. }
            | LabError::Memory { .. }
            | LabError::Unfillable { .. } => true,
            LabError::Stopped | LabError::Failed { .. } => false,
        }
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |nearest| format!(" (similar: {nearest})"))
}
