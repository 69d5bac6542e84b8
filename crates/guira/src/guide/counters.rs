//! Numbers that many processes add to.
//!
//! [`Client::increment`] adds to an unsigned number of 64 bits and returns the sum. Additions of any number of
//! processes and hosts are exact, also when some of them are killed: each addition takes effect once or not at all.
//!
//! ```
//! use guira::{CreateOptions, Store};
//!
//! # fn main() -> guira::Result<()> {
//! # let name = format!("shm://{}", guira_testing::unique_name());
//! # let name = name.as_str();
//! let store = Store::open_or_create(name, &CreateOptions::new(10_000))?;
//! std::thread::scope(|scope| {
//!     let workers: Vec<_> = (0..4)
//!         .map(|_| {
//!             scope.spawn(|| {
//!                 let mut client = store.client()?;
//!                 for _ in 0..1_000 {
//!                     client.increment(b"requests", 1)?;
//!                 }
//!                 client.close()
//!             })
//!         })
//!         .collect();
//!     workers.into_iter().try_for_each(|worker| worker.join().expect("the worker does not panic"))
//! })?;
//!
//! // All counters.
//! for item in store.scan()? {
//!     let (name, value) = item?;
//!     let count = value.try_into().map(u64::from_le_bytes).expect("a counter has 8 bytes");
//!     assert_eq!((name.as_slice(), count), (&b"requests"[..], 4_000));
//! }
//! # Store::destroy(name)
//! # }
//! ```
//!
//! **Format.** The value is the number as 8 little-endian bytes ([`u64::to_le_bytes`]), over every fabric and in every
//! language. A missing key counts as 0 and is inserted. Additions wrap around at 2^64;
//! `client.increment(key, 1_u64.wrapping_neg())` subtracts 1. A value that does not have 8 bytes is an error
//! ([`OperationErrorKind::NotANumber`]) and stays as it is.
//!
//! **Cost.** One addition is one change: a lock, a row and a release, 2 round trips. A process that counts very often
//! adds up for itself and increments now and then by more than 1.
//!
//! **Other accumulators** (a maximum, an average, a set of flags): [`Client::update_with`] replaces the value by what a
//! closure makes of it, and repeats if another client was faster. It is no substitute for `increment` where many
//! clients change one key at once: 16 clients that each repeat until they succeed take some ten times as long.
//!
//! **An unknown effect.** If the connection to a memory node breaks while an addition is under way, the error's
//! [`effect`](crate::Error::effect) may be [`Effect::Unknown`]: then the number may or may not have been added. On
//! shared memory this does not happen.
//!
//! **In a shell:** `guira incr shm://NAME requests --by 10` adds to such a counter, and `--by 0` prints it. A counter
//! that the shell begins is decimal text, which `guira get` shows and `increment` refuses; with `--binary` the shell
//! begins one of this format.
//!
//! The example `word_count` of this crate counts words with many processes.
//!
//! [`Client::increment`]: crate::Client::increment
//! [`Client::update_with`]: crate::Client::update_with
//! [`Effect::Unknown`]: crate::Effect::Unknown
//! [`OperationErrorKind::NotANumber`]: crate::OperationErrorKind::NotANumber
