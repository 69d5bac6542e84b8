//! The shared-memory fabric: a region in a file that many processes of one host map and change directly.
//!
//! The file is `/dev/shm/<name>`, or any path on a file system that keeps the promises below ([`Location`]). There is
//! no server: every verb is executed by the process that posts it, on the mapped words, and the region outlives all of
//! them.
//!
//! # The file
//! ```text
//! offset 0              4096                    4096 + main_bytes, up to the next multiple of 4096
//! +---------------------+-----------------------+------------------------+---------+
//! | header (this crate) | Main space            | Device space           | padding |
//! +---------------------+-----------------------+------------------------+---------+
//! ```
//! The padding fills the last page: 4096 bytes, or a huge page on hugetlbfs. The header's fields never change once the
//! file has a name. A region that some users may read and not write has a lock file beside it,
//! `NAME.<16 hexadecimal digits>.locks`; without it, it can be read and not written.
//!
//! # What is promised
//! - *Creation is atomic.* A region is built in a file without a name, reserved to its last byte, formatted, and only
//!   then linked. Nobody ever opens a half-built region, an existing file is never replaced, and a failure leaves
//!   nothing. (Where the file system has no files without a name, a creator that is killed leaves a file
//!   `.guira-*.unpublished`, which anybody may remove. The creator of a region with a lock file may leave that one
//!   until the next creation or removal of the same name.)
//! - *Death is proved by the kernel.* [`ShmRegion::hold`](guira_fabric::Region::hold) locks one byte of the file, or of
//!   the region's lock file, far beyond its end, through an open file description of its own. The kernel drops that
//!   lock when the process is gone, however it died, or runs another program, and not while it is stopped, nor when all
//!   of its descriptors are closed.
//!   This is why only tmpfs, hugetlbfs, ext4 (with ext2 and ext3, which share its magic number) and xfs are accepted:
//!   on network, FUSE and overlay file systems the lock may be lost or belong to another file.
//! - *Forks are noticed.* In a forked child every region opened before the fork is stale: its lanes refuse to submit,
//!   it has no part in its parent's holds, and the parent's life does not depend on it. The child opens the store
//!   again.
//!
//! # What is not
//! - *Truncation.* Whoever may write the file may also truncate it, and touching a page beyond the end of a file kills
//!   the process (SIGBUS). The length is checked before and after mapping and whenever [`ShmRegion::verify_length`] is
//!   called, but files outside memfd cannot be sealed against it: give `mode` only to users you trust. A region without
//!   a name ([`ShmRegion::create_unnamed`]) is a memfd, and sealed. A process that is to go on all the same asks for it
//!   ([`ShmRegion::guard_against_truncation`]).
//! - *Foreign locks.* Whoever may read a file may lock its bytes for reading: then no slot can be taken, and nobody
//!   can be proved dead, until that lock ends. [`ShmRegion::foreign_lock`] finds it. A region whose mode lets some
//!   users read and not write is created with a lock file beside it, which these cannot open; a mode that is changed
//!   later, or an access list, gives it none.
//! - *Power loss.* tmpfs and hugetlbfs forget everything; on disk nothing is flushed in any order.
//! - *Raw clone.* A child made by a bare `clone` system call, past the C library, is not noticed.
//! - *DAX.* Files on ext4 or xfs mounted with `dax` work like any other. Device-DAX nodes (`/dev/dax0.0`) are devices,
//!   not files: they are refused.
//!
//! # Example
//! ```
//! use guira_fabric::{Addr, FabricError, Lane, Region, Submitted, Verb};
//! use guira_fabric_shm::{Access, CreateOptions, Location, ShmRegion};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let location = Location::shm(&format!("guira-doc-{}", std::process::id()))?;
//! let created = ShmRegion::create(&location, CreateOptions::new(1 << 16, 4096), |_| Ok::<(), FabricError>(()))?;
//! let opened = ShmRegion::open(&location, Access::ReadWrite)?;
//!
//! let mut batch = [Verb::Write { addr: Addr::main(64), words: &[7] }];
//! assert!(matches!(created.lane().submit(&mut batch), Submitted::Done(Ok(()))));
//! let mut seen = [0];
//! let mut batch = [Verb::Read { addr: Addr::main(64), into: &mut seen }];
//! assert!(matches!(opened.lane().submit(&mut batch), Submitted::Done(Ok(()))));
//! assert_eq!(seen, [7]);
//! ShmRegion::destroy(&location)?;
//! # Ok(())
//! # }
//! ```

// Under loom the kernel's words are models that cannot lie in a mapped file; the heap backend stands in there.
#![cfg(all(target_os = "linux", not(loom)))]
#![deny(unsafe_code)]

mod create;
mod error;
mod file;
mod fork;
mod found;
mod header;
mod hold;
mod lane;
mod location;
mod lock_description;
mod lock_file;
#[allow(unsafe_code)]
mod mapping;
mod process;
mod region;
mod remove;
#[allow(unsafe_code)]
mod sys;
#[allow(unsafe_code)]
mod truncation;

pub use create::CreateOptions;
pub use error::{Attempt, CreateError, FileKind, ShmError};
pub use found::{FoundKind, FoundRegion, found_regions};
pub use hold::ForeignLock;
pub use lane::{ShmLane, Waiting};
pub use location::Location;
pub use lock_file::LockFileProblem;
pub use process::{KillError, ProcessIdentity, ProcessState};
pub use region::{Access, Boot, RegionInfo, ShmRegion};

// Words are read with plain 64-bit loads, which alone are allowed on a read-only mapping, and offsets fit `usize`.
const _: () = assert!(usize::BITS == 64);
// The file holds native words; a header of the other byte order must not verify.
const _: () = assert!(cfg!(target_endian = "little"));
