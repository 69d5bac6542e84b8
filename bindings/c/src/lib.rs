//! The C interface of Guira: each function of `guira.h`, whose text is made of the comments of this crate
//! (cbindgen.toml, `tests/header.rs`).
//!
//! Invariants: no panic leaves a function ([`call::run`]); a handle refuses a call that finds it in use
//! ([`handle::Handle`]); nothing behind a caller's pointer is read or written before the pointer and the length that
//! belongs to it were checked ([`memory`]). The rules that callers have to keep, on which `unsafe` depends, are in the
//! head of `guira.h`.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the head of guira.h has the rules for all functions")]

mod handle;
mod memory;

// In the order of the header.
mod options;

mod call;

mod store;

mod client;

mod reader;

mod batch;

mod scan;

pub use batch::{GetItem, PutItem, guira_get_many, guira_put_many, guira_reader_get_many};
pub use call::{
    Error, GUIRA_ALREADY_EXISTS, GUIRA_BUG, GUIRA_BUSY, GUIRA_CORRUPT, GUIRA_EFFECT_DONE, GUIRA_EFFECT_NONE,
    GUIRA_EFFECT_UNKNOWN, GUIRA_FABRIC, GUIRA_FENCED, GUIRA_FULL, GUIRA_GONE, GUIRA_MESSAGE_BYTES, GUIRA_MISUSE,
    GUIRA_NOT_FOUND, GUIRA_TOO_SMALL, GUIRA_VERSION, guira_code_name, guira_version,
};
pub use client::*;
pub use options::{CreateOptions, GUIRA_ACCEPT_MISMATCH, GUIRA_NO_WAIT, GUIRA_READ_ONLY, OpenOptions};
pub use reader::*;
pub use scan::*;
pub use store::*;
