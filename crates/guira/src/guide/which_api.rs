//! Which function for which task.
//!
//! # Opening
//!
//! | you want to | use |
//! |---|---|
//! | share a table, whoever comes first | [`Store::open_or_create`] |
//! | use a table that must exist | [`Store::open`] |
//! | be the one that creates it | [`Store::create`], which fails if it exists |
//! | only read, with read permission only | [`Store::open_with`] and [`OpenOptions::read_only`] |
//! | serve a table to other hosts | [`Store::serve`], or `guira serve` |
//! | remove a table | [`Store::destroy`] |
//!
//! # Clients, readers and pools
//!
//! | you have | use |
//! |---|---|
//! | a thread that changes things | [`Client`], one for each thread ([`Store::client`]) |
//! | a thread that only looks up | [`Reader`] ([`Store::reader`]): no client slot, no limit on their number |
//! | more threads than client slots | [`Pool`] ([`Store::pool`]) |
//! | tasks of an executor | [`aio`]: the same types with `async` methods ([`Store::to_async`]) |
//! | tasks that need a function of [`Store`] only | [`aio::Store::run_blocking`](crate::aio::Store::run_blocking) |
//! | Rust types instead of bytes | [`Store::typed`] (serde) or [`Store::plain`] (byte for byte) |
//!
//! # Changing one key
//!
//! | you want to | use |
//! |---|---|
//! | write a value, whatever was there | [`put`](Client::put) |
//! | write only if the key is new | [`try_insert`](Client::try_insert) |
//! | write only if the key exists | [`update`](Client::update) |
//! | add to a number | [`increment`](Client::increment) |
//! | make a new value from the old one | [`update_with`](Client::update_with); to refuse, return the old one |
//! | write only if nobody changed it since you read it | [`get_versioned`], then [`compare_and_swap`] with the token |
//! | write only if it has a certain value | [`compare_and_swap`] with the value |
//! | compute a missing value | [`get_or_insert_with`](Client::get_or_insert_with) |
//! | the same by recursion, or with errors | [`get`](Client::get), then [`try_insert`](Client::try_insert) |
//! | remove | [`remove`](Client::remove), [`compare_and_remove`](Client::compare_and_remove) |
//!
//! # Reading
//!
//! | you want | use |
//! |---|---|
//! | one value | [`get`](Client::get); without an allocation [`get_into`](Client::get_into) |
//! | to look at a value, or a part of one, without keeping it | [`get_with`](Client::get_with) |
//! | many values | [`get_many`](Client::get_many) |
//! | many values, without an allocation for each | [`get_many_with`](Client::get_many_with) |
//! | to know whether a key exists | [`contains`](Client::contains) |
//! | all keys and values, while others work | [`Store::scan`] |
//! | all keys and values of one moment | [`Store::snapshot`] |
//! | how many keys there are, about | [`Store::len_estimate`] |
//!
//! # Looking after a table
//!
//! | you want to | in a program | in a shell |
//! |---|---|---|
//! | see how full it is and who uses it | [`Store::stat`] | `guira stat`, `guira top` |
//! | verify every row | [`Store::check`] | `guira check` |
//! | complete what killed clients left | [`Store::recover`] | `guira check --repair` |
//! | end a process that is stopped and holds a lock | [`Store::kill_client`] | `guira kick` |
//! | list the tables of this host | [`admin::list`] | `guira list` |
//!
//! [`Client`]: crate::Client
//! [`OpenOptions::read_only`]: crate::OpenOptions::read_only
//! [`Pool`]: crate::Pool
//! [`Reader`]: crate::Reader
//! [`Store`]: crate::Store
//! [`Store::check`]: crate::Store::check
//! [`Store::client`]: crate::Store::client
//! [`Store::create`]: crate::Store::create
//! [`Store::destroy`]: crate::Store::destroy
//! [`Store::kill_client`]: crate::Store::kill_client
//! [`Store::len_estimate`]: crate::Store::len_estimate
//! [`Store::open_or_create`]: crate::Store::open_or_create
//! [`Store::open_with`]: crate::Store::open_with
//! [`Store::open`]: crate::Store::open
//! [`Store::plain`]: crate::Store::plain
//! [`Store::pool`]: crate::Store::pool
//! [`Store::reader`]: crate::Store::reader
//! [`Store::recover`]: crate::Store::recover
//! [`Store::scan`]: crate::Store::scan
//! [`Store::serve`]: crate::Store::serve
//! [`Store::snapshot`]: crate::Store::snapshot
//! [`Store::stat`]: crate::Store::stat
//! [`Store::to_async`]: crate::Store::to_async
//! [`Store::typed`]: crate::Store::typed
//! [`admin::list`]: crate::admin::list
//! [`aio`]: crate::aio
//! [`compare_and_swap`]: Client::compare_and_swap
//! [`get_versioned`]: Client::get_versioned
//! [`record_bytes`]: crate::CreateOptions::record_bytes
//!
//! # Which format
//!
//! [`CreateOptions::format`](crate::CreateOptions::format) decides how keys and values are stored:
//!
//! | keys and values | format | cost |
//! |---|---|---|
//! | any lengths, mostly 64 bytes together or less | `bytes:64`, the default | 1 round trip for a hit |
//! | any lengths, mostly longer | the default, with [`record_bytes`] | 2 round trips for a hit |
//! | one length of all keys and one of all values, such as 8 bytes | `fixed:8:8` | fastest, and least memory |
#[cfg(doc)]
use crate::Client;
