//! Guides: a page for each common use, and pages that help to choose.
//!
//! These modules hold text only. Every example on their pages is run by the tests.
//!
//! Uses:
//! - [`shared_cache`]: processes on one host share expensive results;
//! - [`configuration`]: programs follow settings that change while they run;
//! - [`counters`]: many processes add to the same numbers, and none is lost;
//! - [`job_table`]: workers take jobs from a table, and a dead worker's jobs are taken over;
//! - [`remote_cache`]: services on other hosts share a cache over TCP.
//!
//! Choosing:
//! - [`which_api`]: which function for which task;
//! - [`limits`]: guarantees, limits and bounds;
//! - [`coming_from`]: the same things in Redis, LMDB, `HashMap` and Chronicle Map.

pub mod coming_from;
pub mod configuration;
pub mod counters;
pub mod job_table;
pub mod limits;
pub mod remote_cache;
pub mod shared_cache;
pub mod which_api;
