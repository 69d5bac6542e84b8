//! Conversions between Python and Rust: bytes, values with a codec, errors.

use guira::{Blame, Effect, Error};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

use crate::buffer::{Buffer, holds_objects, objects_refused};

/// The bytes of a bytes-like argument: those of `bytes` themselves, a copy of others.
pub struct BytesLike(PyBackedBytes);

impl FromPyObject<'_, '_> for BytesLike {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Value::extract(object)?.settled(object.py())
    }
}

impl BytesLike {
    fn copied(py: Python<'_>, buffer: &Buffer<'_>) -> PyResult<BytesLike> {
        let memory = buffer.memory();
        let bytes = PyBytes::new_with(py, memory.len(), |into| {
            memory.read(into);
            Ok(())
        });
        Ok(BytesLike(bytes?.into()))
    }

    pub fn get(&self) -> &[u8] {
        &self.0
    }

    /// Returns the exception for a key that does not exist.
    pub fn missing(self) -> PyErr {
        PyKeyError::new_err((self.0,))
    }
}

/// The least bytes of a value that is used where it is. All such values are in extents, as [`Buffer::in_place`] needs.
pub const IN_PLACE_BYTES: usize = 4_096;

/// A bytes-like value: `bytes`, a copy of a small one, or the memory of a large one.
pub enum Value<'py> {
    Bytes(BytesLike),
    Lent(Buffer<'py>),
}

impl<'py> FromPyObject<'_, 'py> for Value<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Value::Bytes(BytesLike(bytes.to_owned().into())));
        }
        if let Ok(buffer) = Buffer::readable(&object) {
            return match buffer.memory().len() {
                IN_PLACE_BYTES.. => Ok(Value::Lent(buffer)),
                _ => BytesLike::copied(py, &buffer).map(Value::Bytes),
            };
        }
        // A memory view makes one piece of those that are not contiguous.
        let view = PyMemoryView::from(&object).map_err(|error| {
            let kind = object.get_type();
            let help = if kind.is(py.get_type::<PyString>()) { "; encode it, for example with .encode()" } else { "" };
            match error.is_instance_of::<PyTypeError>(py) {
                true => PyTypeError::new_err(format!("a bytes-like object is required, not {kind}{help}")),
                // A buffer that was released, or cannot be had.
                false => error,
            }
        })?;
        if holds_objects(view.getattr("format")?.extract::<String>()?.as_bytes()) {
            return Err(objects_refused());
        }
        Ok(Value::Bytes(BytesLike(view.call_method0("tobytes")?.cast_into::<PyBytes>()?.into())))
    }
}

impl Value<'_> {
    /// Returns the bytes, to be stored and for nothing else: see [`Value::settled`].
    #[allow(unsafe_code)]
    pub fn get(&self) -> &[u8] {
        match self {
            Value::Bytes(bytes) => bytes.get(),
            // SAFETY: the documentation of Table asks that nobody writes it. A value of IN_PLACE_BYTES is stored in an
            // extent or refused for its length: each attempt copies it once, and computes the checksum of the copy.
            Value::Lent(buffer) => unsafe { buffer.in_place() },
        }
    }

    /// Returns bytes that nobody can change.
    pub fn settled(self, py: Python<'_>) -> PyResult<BytesLike> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Lent(buffer) => BytesLike::copied(py, &buffer),
        }
    }
}

/// The two functions that turn values into bytes and back.
pub struct Codec {
    dumps: Py<PyAny>,
    loads: Py<PyAny>,
}

impl FromPyObject<'_, '_> for Codec {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let function = |name| object.getattr(name).ok().filter(|function| function.is_callable());
        match (function("dumps"), function("loads")) {
            (Some(dumps), Some(loads)) => Ok(Codec { dumps: dumps.unbind(), loads: loads.unbind() }),
            _ => Err(PyTypeError::new_err("a codec needs functions dumps(value) -> bytes and loads(bytes) -> value")),
        }
    }
}

impl Codec {
    /// Shows the garbage collector what this refers to.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.dumps)?;
        visit.call(&self.loads)
    }
}

/// Returns the bytes that stand for `value`.
pub fn encode<'py>(codec: Option<&Codec>, value: &Bound<'py, PyAny>) -> PyResult<Value<'py>> {
    let Some(codec) = codec else { return value.extract() };
    let bytes = codec.dumps.bind(value.py()).call1((value,))?;
    bytes.extract().map_err(|error: PyErr| {
        let reason = error.value(value.py());
        PyTypeError::new_err(format!("the codec's dumps returned no bytes: {reason}"))
    })
}

/// Returns the value for which `bytes` stand.
pub fn decode<'py>(codec: Option<&Codec>, bytes: Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyAny>> {
    match codec {
        Some(codec) => codec.loads.bind(bytes.py()).call1((bytes,)),
        None => Ok(bytes.into_any()),
    }
}

/// Returns the exception for `error`.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.blame() {
        _ if error.is_not_found() => "NotFound",
        _ if error.is_already_exists() => "AlreadyExists",
        _ if error.is_gone() => "Gone",
        Blame::Fabric => "Fabric",
        Blame::Corrupt => "Corrupt",
        Blame::Version => "Version",
        Blame::Full => "Full",
        Blame::Busy => "Busy",
        Blame::Fenced => "Fenced",
        Blame::Misuse => "Misuse",
        _ => "Bug",
    };
    let effect = match error.effect() {
        Effect::None => "none",
        Effect::Done => "done",
        Effect::Unknown => "unknown",
    };
    exception(py, class, &error.to_string(), effect)
}

/// Returns the exception `guira.CLASS`.
pub fn exception(py: Python<'_>, class: &str, message: &str, effect: &str) -> PyErr {
    let made = || py.import("guira")?.getattr(class)?.call1((message, effect));
    made().map_or_else(|error: PyErr| error, PyErr::from_value)
}
