//! Guarantees, limits and bounds.
//!
//! # Guarantees
//!
//! - **Each key is linearizable.** Operations on one key take effect one after the other, each at one moment between
//!   its call and its return, whatever process, host or fabric they come from.
//! - **A change that was acknowledged stays**, whoever is killed afterwards. A change whose client was killed in the
//!   middle takes effect once or not at all, and that is decided before anybody else changes the key.
//! - **A lookup takes no lock** and never returns a torn value or a wrong miss. It goes on while a writer of the same
//!   row is stopped or dead.
//! - **An error says what it did.** [`Error::effect`](crate::Error::effect) is none, done or unknown; it is unknown
//!   only if a connection to a memory node broke while a change was under way.
//! - **A future that is dropped** takes effect wholly or not at all and leaves no lock behind.
//! - **Damage is detected.** Rows and values carry checksums with a secret key of the table; damaged bytes are an error
//!   ([`Blame::Corrupt`](crate::Blame::Corrupt)), never a value.
//! - **Every wait is bounded** by the operation's deadline ([`OpenOptions::deadline`](crate::OpenOptions::deadline), 10
//!   s by default), plus one pause between attempts and its round trips.
//!
//! # Not guaranteed
//!
//! - **No durability.** Shared memory does not survive a restart of the machine, and files are not flushed in any
//!   order.
//! - **No protection from writers.** A process that may write a table may damage it. Damage is detected and not
//!   prevented. Other users may not write, unless the table's mode says so.
//! - **No changes of several keys at once**, no order of keys, no range scans, no expiry, no notifications.
//! - **A scan is not a moment.** [`Store::scan`](crate::Store::scan) returns a key at least once if no insert moves it
//!   meanwhile; a key that is moved may be missed or returned twice. [`Store::snapshot`](crate::Store::snapshot)
//!   returns the table of one moment if others pause for long enough, and says whether it did. Source: R-SCAN-1.
//! - **A stopped process keeps its locks.** Lookups go on; changes of the same rows fail with
//!   [`Blame::Busy`](crate::Blame::Busy) at their deadline until it continues or is killed (`guira kick`). A process
//!   that is killed is recovered by the next client that needs its locks.
//! - **A table of fixed size becomes full.** Then inserts fail with [`Blame::Full`](crate::Blame::Full) and change
//!   nothing. One that grows ([`CreateOptions::default`](crate::CreateOptions::default)) is full when memory is; it
//!   never becomes smaller.
//!
//! # Bounds
//!
//! | what | bound |
//! |---|---|
//! | key | 0 bytes to 64 KiB |
//! | value | 0 bytes to 64 MiB, if the table has room for it |
//! | stored in the row | key and value of 64 bytes together (`bytes:64`); larger ones take an extent |
//! | keys | the capacity given at creation fills the table to 90 %; inserts succeed to about 95 % |
//! | growth | up to 2^27 parts of at most 1,024 rows: 6 x 10^11 keys of `fixed:8:8`; 4 TiB of large values by default |
//! | clients of a table | 1,024 by default, at most 32,767; readers are not counted |
//! | sessions of a memory node | 1,024 by default |
//! | platform | Linux on 64-bit processors; all processes of a table have one byte order |
//!
//! # Round trips
//!
//! | operation | round trips |
//! |---|---|
//! | lookup: value in the row, value in an extent, miss | 1, 2, at most 2 |
//! | `get_many` of up to 32 keys | 1, with extents 2 |
//! | put, update, remove, `increment` of a key in the row | 2 |
//! | the same for a value in an extent | 3 |
//! | insert into a table that is filling up | 2 in the median; more when entries have to move |
//!
//! In shared memory a round trip is a few memory accesses; over TCP or RDMA it is a message to the node and its
//! answer. Waiting for another client's lock adds more.
//!
//! # Processes that fork
//!
//! A child process that was forked does not share its parent's clients: each operation on an inherited store, client or
//! reader is refused with an error, without effect. The child opens the table itself.
