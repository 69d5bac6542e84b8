//! Iterators over the keys and values of a table.

use std::sync::{Mutex, PoisonError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyGenericAlias, PyType};

use crate::convert::{decode, exception, raised};
use crate::table::Table;

/// The parts of the entries that a scan returns.
#[derive(Clone, Copy)]
pub enum Part {
    Keys,
    Values,
    Items,
}

/// An iterator over a table, from Table.keys, values and items. One thread at a time may use it.
#[pyclass(frozen, module = "guira")]
pub struct Scan {
    table: Py<Table>,
    part: Part,
    /// `None` while a thread uses it. Locked for moments, while attached to the interpreter.
    scan: Mutex<Option<Box<guira::Scan>>>,
}

impl Scan {
    pub fn new(table: Py<Table>, part: Part, scan: guira::Scan) -> Scan {
        Scan { table, part, scan: Mutex::new(Some(Box::new(scan))) }
    }
}

#[pymethods]
impl Scan {
    /// Scan[bytes] is the type of an iterator over keys.
    #[classmethod]
    fn __class_getitem__<'py>(
        cls: &Bound<'py, PyType>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyGenericAlias>> {
        PyGenericAlias::new(cls.py(), cls, item)
    }

    /// The objects of the table's codec may refer to the iterator.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.table)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let table = self.table.get();
        table.store(py)?;
        let lock = || self.scan.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = lock().take();
        let mut scan = taken.ok_or_else(|| exception(py, "Misuse", "another thread is using this iterator", "none"))?;
        let (scan, item) = py.detach(move || {
            let item = scan.next();
            (scan, item)
        });
        *lock() = Some(scan);
        let Some(item) = item else { return Ok(None) };
        let (key, value) = item.map_err(|error| raised(py, &error))?;
        let key = PyBytes::new(py, &key);
        Ok(Some(match self.part {
            Part::Keys => key.into_any(),
            Part::Values => decode(table.codec(), PyBytes::new(py, &value))?,
            Part::Items => (key, decode(table.codec(), PyBytes::new(py, &value))?).into_pyobject(py)?.into_any(),
        }))
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        let scan = self.scan.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        _ = Python::try_attach(|py| self.table.get().discard(py, scan));
    }
}
