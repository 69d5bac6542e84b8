//! Iterators over the keys and values of a table.

use std::mem;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
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
    /// Locked for moments, while attached to the interpreter.
    state: Mutex<State>,
}

enum State {
    Idle(Box<guira::Scan>),
    /// A thread uses it.
    Used,
    Ended,
}

impl Scan {
    pub fn new(table: Py<Table>, part: Part, scan: guira::Scan) -> Scan {
        Scan { table, part, state: Mutex::new(State::Idle(Box::new(scan))) }
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
        let set = |state| mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state);
        let mut scan = match set(State::Used) {
            State::Idle(scan) => scan,
            State::Used => return Err(exception(py, "Misuse", "another thread is using this iterator", "none")),
            State::Ended => {
                set(State::Ended);
                return Ok(None);
            }
        };
        let (scan, item) = py.detach(move || {
            let item = scan.next();
            (scan, item)
        });
        let made = item.map(|item| self.made(py, item.map_err(|error| raised(py, &error))?)).transpose();
        match made {
            Ok(Some(_)) => _ = set(State::Idle(scan)),
            _ => {
                set(State::Ended);
                table.discard(py, scan);
            }
        }
        made
    }
}

impl Scan {
    /// Makes the object that the iterator returns for an entry.
    fn made<'py>(&self, py: Python<'py>, (key, value): (Vec<u8>, Vec<u8>)) -> PyResult<Bound<'py, PyAny>> {
        let key = PyBytes::new(py, &key);
        let decoded = || {
            decode(self.table.get().codec(), PyBytes::new(py, &value)).map_err(|error| {
                if !error.is_instance_of::<PyStopIteration>(py) {
                    return error;
                }
                // It would end the iteration as if there were no more entries.
                let raised = PyRuntimeError::new_err("the codec's loads raised StopIteration");
                raised.set_cause(py, Some(error));
                raised
            })
        };
        Ok(match self.part {
            Part::Keys => key.into_any(),
            Part::Values => decoded()?,
            Part::Items => (key, decoded()?).into_pyobject(py)?.into_any(),
        })
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Idle(scan) = mem::replace(state, State::Ended) {
            _ = Python::try_attach(|py| self.table.get().discard(py, scan));
        }
    }
}
