//! The extension module `guira._guira`: tables of Guira for Python. The package `guira` (python/guira) exports it, and
//! owns the exceptions; its stubs document the types.
//!
//! Invariants: the interpreter's lock is released around every call that can wait, and no lock of this module is held
//! then, nor while code of Python runs, which lets other threads run; so no other thread holds one when a thread that has
//! the interpreter's lock forks. The exceptions are the locks that operations of asyncio share (src/aio.rs): futures
//! take them while they are polled, and wakers on any thread. They, and locks of the library, can be held at a fork, so
//! a forked child does not touch what its parent opened, except to drop it without a lock.

mod aio;
mod buffer;
mod bulk;
mod convert;
mod options;
mod scan;
mod table;

use pyo3::prelude::*;

/// Tables in shared or remote memory; the package `guira` exports all of this.
#[pymodule(gil_used = false)]
mod _guira {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::aio::{AsyncStore, Operation};
    #[pymodule_export]
    use crate::options::{create, destroy, open, open_or_create};
    #[pymodule_export]
    use crate::scan::Scan;
    #[pymodule_export]
    use crate::table::{LenEstimate, Table, Token};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let hooks = pyo3::types::PyDict::new(module.py());
        hooks.set_item("after_in_child", wrap_pyfunction!(crate::table::forked, module)?)?;
        module.py().import("os")?.call_method("register_at_fork", (), Some(&hooks)).map(drop)
    }
}
