//! Jobs that workers take, finish, and take over from workers that died.
//!
//! A job is a key; its value says who works on it. A worker claims a job with [`Client::compare_and_swap`]: of all that
//! try, one succeeds. The value holds the time of the claim, so that a job whose worker has died can be claimed again.
//!
//! ```
//! use std::time::{Duration, SystemTime, UNIX_EPOCH};
//!
//! use guira::typed::{Postcard, TypedClient};
//! use guira::{CreateOptions, Result, Store};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
//! enum Job {
//!     Waiting,
//!     Claimed { worker: u32, at: Duration },
//!     Done { result: String },
//! }
//!
//! type Jobs = TypedClient<str, Job, Postcard>;
//!
//! /// A claim that is older than this is taken over.
//! const LEASE: Duration = Duration::from_secs(60);
//!
//! /// Claims a job for `worker`. `None` if it is done, missing, or claimed by another worker.
//! fn claim(jobs: &mut Jobs, name: &str, worker: u32, now: Duration) -> Result<Option<Job>> {
//!     let Some(found) = jobs.get(name)? else { return Ok(None) };
//!     let is_free = match &found {
//!         Job::Waiting => true,
//!         Job::Claimed { at, .. } => now.saturating_sub(*at) > LEASE,
//!         Job::Done { .. } => false,
//!     };
//!     if !is_free {
//!         return Ok(None);
//!     }
//!     let claimed = Job::Claimed { worker, at: now };
//!     let swap = jobs.compare_and_swap(name, &found, &claimed)?;
//!     Ok(swap.is_done().then_some(claimed))
//! }
//!
//! /// Records the result. `false` if the claim was taken over meanwhile: then the other worker's result counts.
//! fn finish(jobs: &mut Jobs, name: &str, claimed: &Job, result: &str) -> Result<bool> {
//!     let done = Job::Done { result: result.to_owned() };
//!     Ok(jobs.compare_and_swap(name, claimed, &done)?.is_done())
//! }
//!
//! # fn main() -> Result<()> {
//! # let name = format!("shm://{}", guira_testing::unique_name());
//! # let name = name.as_str();
//! let store = Store::open_or_create(name, &CreateOptions::new(10_000))?;
//! let table = store.typed::<str, Job>();
//! let mut jobs = table.client()?;
//! jobs.try_insert("thumbnail-1", &Job::Waiting)?; // changes nothing if the job exists
//!
//! let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
//! let claimed = claim(&mut jobs, "thumbnail-1", 1, now)?.expect("the job waits");
//! assert_eq!(claim(&mut jobs, "thumbnail-1", 2, now)?, None); // worker 1 has it
//! assert!(finish(&mut jobs, "thumbnail-1", &claimed, "ok")?);
//!
//! // Which jobs wait? A scan reads the whole table, while others work.
//! for item in table.scan_as::<String>()? {
//!     let (name, job) = item?;
//!     assert_eq!((name.as_str(), job), ("thumbnail-1", Job::Done { result: "ok".to_owned() }));
//! }
//! # drop(jobs);
//! # Store::destroy(name)
//! # }
//! ```
//!
//! **A lease is an agreement between your workers**, and the table does not watch it. A worker that was only slow finds
//! out in `finish`, because its claim is no longer there. Work that cannot be undone must therefore be safe to do
//! twice. The clocks of different hosts differ: choose a lease that is long compared with that.
//!
//! **Same value, changed in between.** A swap that compares values succeeds if the value went away and came back. The
//! claims above cannot: each has a time of its own. Where values can return, use [`Client::get_versioned`] and the
//! token it returns.
//!
//! **A table is not a queue.** A scan visits all keys in no particular order. For many thousands of jobs keep a list of
//! the waiting ones elsewhere, or number the jobs and let each worker start at another number.
//!
//! [`Client::compare_and_swap`]: crate::Client::compare_and_swap
//! [`Client::get_versioned`]: crate::Client::get_versioned
