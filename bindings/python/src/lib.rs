//! The extension module `guira._guira`: tables of Guira for Python. The package `guira` (python/guira) exports it, and
//! owns the exceptions; its stubs document the types.
//!
//! Invariants: the interpreter's lock is released around every call that can wait, and no lock of this module is held
//! then; so no other thread holds one when a thread that has the interpreter's lock forks.

mod buffer;
mod bulk;
mod convert;
mod options;
mod scan;
mod table;

use pyo3::prelude::*;

/// Tables in shared or remote memory; the package `guira` exports all of this.
#[pymodule]
mod _guira {
    #[pymodule_export]
    use crate::options::{create, destroy, open, open_or_create};
    #[pymodule_export]
    use crate::scan::Scan;
    #[pymodule_export]
    use crate::table::{LenEstimate, Table, Token};
}
