//! A cache that the processes of one host share.
//!
//! Each worker looks a result up; if it is missing, the worker computes and inserts it, and every other process finds
//! it. No process has to be there first or to stay, and a worker that is killed takes nothing with it.
//!
//! ```
//! use guira::{Blame, Client, CreateOptions, Result, Store};
//!
//! /// Something that takes long.
//! fn render(page: &str) -> Vec<u8> {
//!     format!("<h1>{page}</h1>").into_bytes()
//! }
//!
//! /// The rendered page, from the cache if it is there.
//! fn page(cache: &mut Client, name: &str) -> Result<Vec<u8>> {
//!     match cache.get_or_insert_with(name.as_bytes(), || render(name)) {
//!         // The table has no room: the page is right all the same, and will be rendered again.
//!         Err(error) if error.blame() == Blame::Full => Ok(render(name)),
//!         found_or_rendered => found_or_rendered,
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! # let name = format!("shm://{}", guira_testing::unique_name());
//! # let name = name.as_str();
//! // 10,000 pages of about 4 KiB. Every worker runs this line; the first one creates the table.
//! let store = Store::open_or_create(name, &CreateOptions::new(10_000).record_bytes(4096))?;
//! let mut cache = store.client()?;
//! assert_eq!(page(&mut cache, "birds")?, b"<h1>birds</h1>");
//! assert_eq!(page(&mut cache, "birds")?, b"<h1>birds</h1>"); // from the cache
//! # drop(cache);
//! # Store::destroy(name)
//! # }
//! ```
//!
//! **Two workers may compute the same result.** [`Client::get_or_insert_with`] runs the closure at most once in its own
//! process; if two processes miss at the same moment, both compute, and both return the value that was inserted first.
//! If computing twice is too expensive, let one worker claim the key first, as in [a job table](super::job_table).
//!
//! **Size.** [`CreateOptions::new`] takes the number of keys. Records up to 64 bytes (key and value together) are
//! stored in the rows; larger ones need [`CreateOptions::record_bytes`], the size of a typical record.
//! [`CreateOptions::memory_bytes`] computes how much memory a table takes: all of it is reserved when the table is
//! created. For a number of pages that is unknown, [`CreateOptions::default`] makes a table that grows. A table does not
//! evict: when it is full, `put` fails with [`Blame::Full`] and changes nothing. Remove what is no longer needed, or
//! create a larger table and copy it (`guira copy`).
//!
//! **Who may read it.** By default only the user who created the table can open it. [`CreateOptions::mode`] sets the
//! permissions of its file; [`OpenOptions::owner`] says whose table a program trusts.
//!
//! **Looking at it.** `guira stat shm://NAME` shows how full the table is, who uses it and what they met; `guira check
//! shm://NAME` reads every row and verifies it.
//!
//! **Recursive and fallible computations.** The closure of [`Client::get_or_insert_with`] cannot use the client, and
//! returns no error. Such a computation looks its result up with [`Client::get`], computes, and stores it with
//! [`Client::try_insert`]. The example `memo_cache` of this crate remembers a recursive function in this way.
//!
//! The example `shared_cache` is a whole program of this kind. In both, a worker is killed.
//!
//! [`Blame::Full`]: crate::Blame::Full
//! [`Client::get`]: crate::Client::get
//! [`Client::get_or_insert_with`]: crate::Client::get_or_insert_with
//! [`Client::try_insert`]: crate::Client::try_insert
//! [`CreateOptions::memory_bytes`]: crate::CreateOptions::memory_bytes
//! [`CreateOptions::mode`]: crate::CreateOptions::mode
//! [`CreateOptions::default`]: crate::CreateOptions::default
//! [`CreateOptions::new`]: crate::CreateOptions::new
//! [`CreateOptions::record_bytes`]: crate::CreateOptions::record_bytes
//! [`OpenOptions::owner`]: crate::OpenOptions::owner
