//! Memory that Python objects lend to an operation: the buffer protocol.
//!
//! It belongs to the stable ABI from Python 3.11 on; before, its two functions and its structure are the same, and every
//! interpreter exports them. So they are declared here.
//!
//! Invariants: a [`Buffer`] is obtained and released by a thread that is attached to the interpreter, which its token
//! proves; until then the object neither frees nor moves the memory. Other threads, of Python and of this module, may
//! read and write it at any time. So it is [`Memory`], which is copied by relaxed atomics, and no slice of bytes; the
//! exception is [`Buffer::in_place`].
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;

/// The structure `Py_buffer`.
#[repr(C)]
struct View {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

/// `PyBUF_ND | PyBUF_FORMAT`: contiguous items in the order of C, with their shape and their format.
const CONTIGUOUS: c_int = 0x8 | 0x4;
/// `PyBUF_WRITABLE`.
const WRITABLE: c_int = 1;

/// A contiguous buffer of an object.
pub struct Buffer<'py> {
    /// Not moved until it is released: its shape may point to the view itself.
    view: Box<View>,
    /// Keeps the buffer in the thread that is attached.
    _attached: Python<'py>,
}

impl<'py> Buffer<'py> {
    /// Returns the buffer of `object` for reading.
    ///
    /// # Errors
    /// The exception of the object: it has no buffer, or none that is contiguous. `TypeError` if it holds Python objects.
    pub fn readable(object: &Bound<'py, PyAny>) -> PyResult<Buffer<'py>> {
        Buffer::obtain(object, 0)
    }

    /// Returns the buffer of the argument `name` for writing.
    ///
    /// # Errors
    /// `TypeError` if it has no buffer that is contiguous and can be written, or holds Python objects.
    pub fn writable(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Buffer<'py>> {
        Buffer::obtain(object, WRITABLE).map_err(|error| {
            let py = object.py();
            let is_expected = error.is_instance_of::<PyBufferError>(py)
                || error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyValueError>(py);
            if !is_expected {
                return error;
            }
            let (kind, reason) = (object.get_type(), error.value(py));
            PyTypeError::new_err(format!("{name} must be a writable contiguous buffer, not {kind}: {reason}"))
        })
    }

    fn obtain(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Buffer<'py>> {
        let mut view = Box::new(MaybeUninit::uninit());
        // SAFETY: this thread is attached, as `object` proves; the function writes a whole view if it returns 0.
        let status = unsafe { PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), CONTIGUOUS | flags) };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: it returned 0.
        let buffer = Buffer { view: unsafe { view.assume_init() }, _attached: object.py() };
        if buffer.format().is_some_and(|format| holds_objects(format.to_bytes())) {
            return Err(objects_refused());
        }
        Ok(buffer)
    }

    /// The format of the items; `None` for bytes.
    fn format(&self) -> Option<&CStr> {
        // SAFETY: a format is a string that ends with a zero and lives as long as the view.
        (!self.view.format.is_null()).then(|| unsafe { CStr::from_ptr(self.view.format) })
    }

    /// Returns whether the buffer is a sequence of parts of `bytes` bytes: an item, or a row of items, has that length.
    /// Items of one byte can be any parts.
    pub fn has_parts_of(&self, bytes: usize) -> bool {
        let item = usize::try_from(self.view.itemsize).unwrap_or(0);
        let mut row = item;
        item == 1
            || row == bytes
            || self.shape().iter().skip(1).rev().any(|length| {
                row = row.saturating_mul(usize::try_from(*length).unwrap_or(0));
                row == bytes
            })
    }

    /// The bytes of one item, such as 8 in an array of numbers of 64 bits.
    pub fn item_bytes(&self) -> usize {
        usize::try_from(self.view.itemsize).unwrap_or(0)
    }

    fn shape(&self) -> &[Py_ssize_t] {
        match usize::try_from(self.view.ndim) {
            // SAFETY: a shape has a length for each dimension, and lives as long as the view.
            Ok(dimensions) if !self.view.shape.is_null() => unsafe {
                slice::from_raw_parts(self.view.shape, dimensions)
            },
            _ => &[],
        }
    }

    /// Whether the two have bytes in common.
    pub fn overlaps(&self, other: &Buffer<'_>) -> bool {
        let ((start, len), (other, other_len)) = (self.range(), other.range());
        let (start, other) = (start.addr().get(), other.addr().get());
        len > 0 && other_len > 0 && start < other + other_len && other < start + len
    }

    /// Whether the two are the same bytes.
    pub fn is_same(&self, other: &Buffer<'_>) -> bool {
        self.range() == other.range()
    }

    pub fn memory(&self) -> Memory<'_> {
        let (start, len) = self.range();
        // SAFETY: a CONTIGUOUS view is `len` bytes from `start`, which live as long as `self`. All accesses of this module
        // are atomic; others are made by code that is not Rust's. Atomic loads may be made of read-only memory, and
        // only the owner of a writable view stores.
        Memory(unsafe { slice::from_raw_parts(start.cast::<AtomicU8>().as_ptr(), len) })
    }

    /// The memory as plain bytes, for a value that is too large to be copied twice.
    ///
    /// # Safety
    /// No thread writes the memory meanwhile. Nothing keeps Python from that, so the caller must also see to it that the
    /// bytes are only copied, each at most once for an attempt, and decide nothing: then what such a write changes is the
    /// copy, which is a mixture of old and new bytes.
    pub unsafe fn in_place(&self) -> &[u8] {
        let (start, len) = self.range();
        // SAFETY: a CONTIGUOUS view is `len` bytes from `start`, which live as long as `self`; the rest is the caller's.
        unsafe { slice::from_raw_parts(start.as_ptr(), len) }
    }

    fn range(&self) -> (NonNull<u8>, usize) {
        // An empty buffer may have no address.
        let start = NonNull::new(self.view.buf.cast()).unwrap_or(NonNull::dangling());
        (start, usize::try_from(self.view.len).unwrap_or(0))
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: the view was obtained, is released once, and this thread is attached, as the token proves.
        unsafe { PyBuffer_Release(ptr::from_mut(&mut *self.view)) }
    }
}

/// Returns whether a format has Python objects (`O`), also in structures. Names of fields stand between colons.
pub fn holds_objects(format: &[u8]) -> bool {
    format.split(|byte| *byte == b':').step_by(2).any(|types| types.contains(&b'O'))
}

/// Returns the exception for a buffer of Python objects: their addresses mean nothing to others.
pub fn objects_refused() -> PyErr {
    PyTypeError::new_err("it holds Python objects, not bytes")
}

/// Bytes that other threads may read and write at any time, of which each can be torn from its neighbours.
#[derive(Clone, Copy)]
pub struct Memory<'b>(&'b [AtomicU8]);

impl<'b> Memory<'b> {
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Returns a part of the memory; the range must be in it.
    pub fn part(self, range: Range<usize>) -> Memory<'b> {
        Memory(&self.0[range])
    }

    /// Copies the memory to `into`, which has the same length.
    pub fn read(self, into: &mut [u8]) {
        assert_eq!(self.len(), into.len());
        let (head, words, tail) = self.words();
        let (head_into, rest) = into.split_at_mut(head.len());
        let (words_into, tail_into) = rest.as_chunks_mut::<8>();
        let bytes = |from: &[AtomicU8], into: &mut [u8]| {
            from.iter().zip(into).for_each(|(from, into)| *into = from.load(Relaxed));
        };
        bytes(head, head_into);
        words.iter().zip(words_into).for_each(|(from, into)| *into = from.load(Relaxed).to_ne_bytes());
        bytes(tail, tail_into);
    }

    /// Copies `from`, which has the same length, to the memory, which must be that of a writable buffer.
    pub fn write(self, from: &[u8]) {
        assert_eq!(self.len(), from.len());
        let (head, words, tail) = self.words();
        let (head_from, rest) = from.split_at(head.len());
        let (words_from, tail_from) = rest.as_chunks::<8>();
        let bytes = |into: &[AtomicU8], from: &[u8]| {
            into.iter().zip(from).for_each(|(into, from)| into.store(*from, Relaxed));
        };
        bytes(head, head_from);
        words.iter().zip(words_from).for_each(|(into, from)| into.store(u64::from_ne_bytes(*from), Relaxed));
        bytes(tail, tail_from);
    }

    /// Splits the memory into its aligned words, and the bytes before and after them.
    fn words(self) -> (&'b [AtomicU8], &'b [AtomicU64], &'b [AtomicU8]) {
        // SAFETY: eight atomic bytes have the size of an atomic word and no invalid value, and the words are aligned.
        let (head, words, tail) = unsafe { self.0.align_to::<AtomicU64>() };
        // Then the chunks of the other side are as many as the words.
        assert!(tail.len() < 8);
        (head, words, tail)
    }
}
