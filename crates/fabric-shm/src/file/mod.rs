//! Region files: their names, their header, their creation and removal. This module opens and checks them.

pub(crate) mod create;
pub(crate) mod found;
pub(crate) mod header;
pub(crate) mod location;
pub(crate) mod memory_limit;
pub(crate) mod name;
pub(crate) mod remove;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, fstatfs, openat, statat};
use rustix::io::Errno;

use crate::error::{FileKind, ShmError, Task};
use crate::file::header::{HEADER_BYTES, Header, PAGE_BYTES};
use crate::file::location::{Links, Location};
use crate::region::Access;

const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;
/// The magic number of ext4, and of ext2 and ext3.
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;

/// Names of common file systems that are refused.
const REFUSED: [(u64, &str); 14] = [
    (0x6969, "NFS"),
    (0x6573_5546, "FUSE or virtiofs"),
    (0x0102_1997, "9p"),
    (0x794c_7630, "overlayfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0x8584_58f6, "ramfs"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x00c3_6400, "Ceph"),
    (0x9fa0, "procfs"),
    (0x6265_6572, "sysfs"),
    (0x4d44, "FAT"),
];

/// A file system that gives the guarantees that a region needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Tmpfs,
    /// Huge pages; the length of a file is a multiple of this page size.
    Hugetlbfs {
        page_bytes: u64,
    },
    Disk,
}

impl FileSystem {
    /// Returns the file system of `file`, if it is a safe one.
    pub(crate) fn of(file: BorrowedFd<'_>, task: Task<'_>) -> Result<FileSystem, ShmError> {
        let answer = fstatfs(file).map_err(task.failed("determine its file system"))?;
        // The kernel's magic numbers have 32 bits; the field's width and sign differ between architectures.
        let magic = answer.f_type as u64 & 0xffff_ffff;
        FileSystem::of_magic(magic, answer.f_bsize as u64).map_err(|name| {
            let path = task.path.to_owned();
            ShmError::UnsupportedFileSystem { attempt: task.attempt, path, name, magic }
        })
    }

    /// Returns the file system with this magic number, or the name of one that is refused.
    fn of_magic(magic: u64, page_bytes: u64) -> Result<FileSystem, &'static str> {
        match magic {
            TMPFS => Ok(FileSystem::Tmpfs),
            HUGETLBFS => Ok(FileSystem::Hugetlbfs { page_bytes }),
            EXT4 | XFS => Ok(FileSystem::Disk),
            _ => Err(REFUSED.iter().find(|(refused, _)| *refused == magic).map_or("unknown", |(_, name)| name)),
        }
    }

    /// Returns the bytes of which file lengths are multiples.
    pub(crate) fn unit_bytes(self) -> u64 {
        match self {
            FileSystem::Hugetlbfs { page_bytes } => page_bytes,
            FileSystem::Tmpfs | FileSystem::Disk => PAGE_BYTES,
        }
    }
}

/// Opens the region file at `location` and reads its header. Reads nothing beyond the file's length.
pub(crate) fn open_region(
    location: &Location,
    access: Access,
    task: Task<'_>,
) -> Result<(OwnedFd, FileFacts, Header), ShmError> {
    let file = open_regular(location, access, task)?;
    let facts = FileFacts::of(file.as_fd(), FileSystem::of(file.as_fd(), task)?, task)?;
    let len = length(file.as_fd(), task)?;
    let first = read_start(file.as_fd(), task)?;
    let header = Header::decode(task, &first, len)?;
    Ok((file, facts, header))
}

/// Checks that `file` is not shorter than its header says.
pub(crate) fn verify_length(file: BorrowedFd<'_>, expected: u64, task: Task<'_>) -> Result<(), ShmError> {
    let actual = length(file, task)?;
    if actual < expected { Err(task.truncated(expected, actual)) } else { Ok(()) }
}

/// Returns the path under which this process can reopen `file`, even if it has no name.
pub(crate) fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

pub(crate) fn open_regular(location: &Location, access: Access, task: Task<'_>) -> Result<OwnedFd, ShmError> {
    let (stat_flags, open_flags) = match location.links() {
        Links::Follow => (AtFlags::empty(), OFlags::empty()),
        Links::Refuse => (AtFlags::SYMLINK_NOFOLLOW, OFlags::NOFOLLOW),
    };
    // Checks before opening, because opening a device can have effects. NONBLOCK in case it becomes a pipe in between.
    require_regular(&statat(CWD, location.path(), stat_flags).map_err(task.failed("find it"))?, task)?;
    let flags = rights_of(access) | open_flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(CWD, location.path(), flags, Mode::empty()).map_err(task.failed("open it"))?;
    require_regular(&fstat(&file).map_err(task.failed("read its type"))?, task)?;
    Ok(file)
}

/// Returns the device and inode of a file: no other file has them while this one is open.
pub(crate) fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Properties of an open file that its locks and anchors depend on.
#[derive(Clone, Copy)]
pub(crate) struct FileFacts {
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    pub(crate) system: FileSystem,
    /// Bytes that the file system has stored for it, or reserved.
    pub(crate) stored_bytes: u64,
}

impl FileFacts {
    pub(crate) fn of(file: BorrowedFd<'_>, system: FileSystem, task: Task<'_>) -> Result<FileFacts, ShmError> {
        let stat = fstat(file).map_err(task.failed("read its identity"))?;
        Ok(FileFacts { identity: identity(&stat), system, stored_bytes: stored_bytes(&stat) })
    }
}

/// Returns the bytes that a file system has stored for a file, or reserved.
pub(crate) fn stored_bytes(stat: &Stat) -> u64 {
    // The kernel counts in units of 512 bytes, whatever the size of a block.
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// A file that this process has open, and opens again for locks of their own.
#[derive(Clone, Copy)]
pub(crate) struct OpenFile<'r> {
    pub(crate) file: BorrowedFd<'r>,
    pub(crate) path: &'r Path,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
}

impl OpenFile<'_> {
    /// Whether `file` is this file.
    pub(crate) fn is(&self, file: BorrowedFd<'_>) -> bool {
        fstat(file).is_ok_and(|stat| identity(&stat) == self.identity)
    }

    /// Opens a new open file description of the file, which may have lost its name. `proc_path` leads to it, unless its
    /// descriptor was closed.
    pub(crate) fn reopen(&self, proc_path: &str, access: Access) -> Result<OwnedFd, Errno> {
        let flags = rights_of(access) | OFlags::CLOEXEC;
        if self.is(self.file) {
            match rustix::fs::open(proc_path, flags, Mode::empty()) {
                Ok(file) if self.is(file.as_fd()) => return Ok(file),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        // Without /proc, or without the descriptor, use the path, if it still leads to the file.
        let file = rustix::fs::open(self.path, flags | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
        if self.is(file.as_fd()) { Ok(file) } else { Err(Errno::STALE) }
    }
}

fn rights_of(access: Access) -> OFlags {
    match access {
        Access::ReadWrite => OFlags::RDWR,
        Access::ReadOnly => OFlags::RDONLY,
    }
}

fn require_regular(stat: &Stat, task: Task<'_>) -> Result<(), ShmError> {
    match FileKind::irregular(stat.st_mode) {
        None => Ok(()),
        Some(kind) => Err(ShmError::NotAFile { attempt: task.attempt, path: task.path.to_owned(), kind }),
    }
}

fn length(file: BorrowedFd<'_>, task: Task<'_>) -> Result<u64, ShmError> {
    let stat = fstat(file).map_err(task.failed("read its length"))?;
    Ok(u64::try_from(stat.st_size).expect("a regular file's length is not negative"))
}

/// Reads the first bytes of the file, as many as there are, up to the header's size.
pub(crate) fn read_start(file: BorrowedFd<'_>, task: Task<'_>) -> Result<Vec<u8>, ShmError> {
    let mut bytes = vec![0; HEADER_BYTES as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut bytes[filled..], filled as u64))
            .map_err(task.failed("read its header"))?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// File systems that cannot be mounted in a test are refused by their numbers in linux/magic.h, and unknown ones
    /// too.
    #[test]
    fn file_systems_that_lose_locks_are_refused_by_number() {
        for (magic, name) in [
            (libc::NFS_SUPER_MAGIC, "NFS"),
            (libc::FUSE_SUPER_MAGIC, "FUSE or virtiofs"),
            (0x0102_1997, "9p"),
            (libc::OVERLAYFS_SUPER_MAGIC, "overlayfs"),
            (libc::BTRFS_SUPER_MAGIC, "btrfs"),
            (0x0bad_f00d, "unknown"),
        ] {
            assert_eq!(FileSystem::of_magic(magic as u64, 4096), Err(name), "{magic:#x}");
        }
        for (magic, file_system) in [
            (libc::TMPFS_MAGIC, FileSystem::Tmpfs),
            (libc::EXT4_SUPER_MAGIC, FileSystem::Disk),
            (libc::XFS_SUPER_MAGIC, FileSystem::Disk),
            (libc::HUGETLBFS_MAGIC, FileSystem::Hugetlbfs { page_bytes: 1 << 21 }),
        ] {
            assert_eq!(FileSystem::of_magic(magic as u64, 1 << 21), Ok(file_system), "{magic:#x}");
        }
    }
}
