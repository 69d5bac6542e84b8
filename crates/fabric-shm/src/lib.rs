//! The shared-memory fabric: a region in a file that many processes of one host map and change directly.
//!
//! The file is `/dev/shm/<name>`, or any path on a file system that is safe for it ([`Location`]). There is no server:
//! every verb is executed by the process that posts it, on the mapped words, and the region outlives all processes.
//!
//! # The file
//! ```text
//! offset 0              4096                    4096 + main_bytes, up to the next multiple of 4096
//! +---------------------+-----------------------+------------------------+---------+
//! | header (this crate) | Main space            | Device space           | padding |
//! +---------------------+-----------------------+------------------------+---------+
//! ```
//! The padding fills the last page: 4096 bytes, or a huge page on hugetlbfs. The header's fields never change once the
//! file has a name. A region that some users may read but not write has a lock file next to it,
//! `NAME.<16 hexadecimal digits>.locks`; if that is missing, the region can only be read.
//!
//! # Guarantees
//! - *Creation is atomic.* A region is built in a file without a name, reserved to its last byte, formatted, and only
//!   then linked. No process ever opens a partially built region, an existing file is never replaced, and a failure
//!   leaves nothing behind. (Where the file system does not support files without a name, a creator that is killed
//!   leaves a file `.guira-*.unpublished`, which is safe to remove. A killed creator of a region with a lock file may
//!   leave the lock file, until the next creation or removal of the same name.)
//! - *Death is proved by the kernel.* [`ShmRegion::hold`](guira_fabric::Region::hold) locks one byte of the file, or of
//!   the region's lock file, far beyond its end, through a separate open file description. The kernel releases that
//!   lock when the process has ended, however it died, or runs another program. It does not release it while the
//!   process is stopped, or when all of its descriptors are closed.
//!   This is why only tmpfs, hugetlbfs, ext4 (with ext2 and ext3, which share its magic number) and xfs are accepted:
//!   on network, FUSE and overlay file systems the lock may be lost or belong to another file.
//! - *One atomic domain.* A region that is claimed for a device, such as a network card, is open nowhere else, and
//!   cannot be opened: [`ShmRegion::claim_for_device`].
//! - *Forks are detected.* In a forked child every region opened before the fork is stale: its lanes refuse to submit,
//!   the child does not share its parent's holds, and it cannot keep its parent alive. The child opens the store again.
//!
//! # Limits
//! - *Truncation.* A user who may write the file may also truncate it, and touching a page beyond the end of a file
//!   kills the process (SIGBUS). The length is checked before and after mapping and whenever
//!   [`ShmRegion::verify_length`] is called, but only memfd files can be sealed against truncation: give write
//!   permission only to users you trust. A region without a name ([`ShmRegion::create_unnamed`]) is a sealed memfd. A
//!   process that must survive truncation calls [`ShmRegion::guard_against_truncation`].
//! - *Foreign locks.* A user who may read a file may lock its bytes for reading: then no client slot can be taken, and
//!   no client can be proved dead, until that lock ends. [`ShmRegion::foreign_lock`] finds it. A region whose mode lets
//!   some users read but not write is created with a lock file next to it, which these users cannot open; a mode that
//!   is changed later, or an access control list, adds no lock file.
//! - *Power loss.* tmpfs and hugetlbfs lose everything; on disk, pages are written back in no defined order.
//! - *Raw clone.* Fork handlers do not run in a child made by a bare `clone` system call, past the C library. Such a
//!   child is detected by a page that the kernel zeroes in it, where there is one ([`guira_fabric::process`]).
//! - *DAX.* Files on ext4 or xfs mounted with `dax` work like any other. Device-DAX nodes (`/dev/dax0.0`) are devices,
//!   not files: they are refused.
//!
//! # Example
//! ```
//! use guira_fabric::{Addr, FabricError, Lane, Region, Submitted, Verb};
//! use guira_fabric_shm::{Access, CreateOptions, Location, ShmRegion};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let location = Location::shm(&guira_testing::unique_name())?;
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
#![allow(unsafe_code, reason = "it maps memory that other processes change")]
// Under loom the word-copy kernel works on model atomics, which cannot lie in a mapped file; the heap backend is used
// instead.
#![cfg(all(target_os = "linux", not(loom)))]
#![deny(unsafe_code)]

mod domain;
mod error;
mod file;
mod lane;
mod liveness;
#[allow(unsafe_code)]
mod mapping;
mod region;
#[allow(unsafe_code)]
mod sys;
#[allow(unsafe_code)]
mod truncation;

pub use domain::DeviceClaim;
pub use error::{Attempt, CreateError, FileKind, ShmError};
pub use file::create::{CreateOptions, check_directory};
pub use file::found::{FoundKind, FoundRegion, found_regions};
pub use file::location::Location;
pub use file::name::{NameLoss, RegionName};
pub use lane::ShmLane;
pub use liveness::hold::ForeignLock;
pub use liveness::lock_file::LockFileProblem;
pub use liveness::process::{KillError, ProcessIdentity, ProcessState};
pub use region::{Access, Boot, RegionInfo, ShmRegion};

// Words are read with plain 64-bit loads, the only access allowed on a read-only mapping, and offsets fit `usize`.
const _: () = assert!(usize::BITS == 64);
// The file contains native words; a header in the other byte order must not verify.
const _: () = assert!(cfg!(target_endian = "little"));
