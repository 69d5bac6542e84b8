//! The lock file of a region that some users may read but not write. Locks on its bytes represent client slots.
//!
//! A process that may read a file may lock its bytes for reading, and so prevent others from locking them for writing.
//! A region whose mode lets a class of users read but not write therefore gets a second file next to it,
//! `NAME.<16 hexadecimal digits>.locks`, which only users who may write the region can open. Other regions have their
//! slots' bytes in their own file.
//!
//! ```text
//! byte   0  magic "GUIRALCK"
//!        8  version, u32 (1)      12  zero, u32
//!       16  identity              24  FNV-1a 64 of bytes 0 to 23
//! ```
//! On hugetlbfs, where a byte takes a huge page, the file is empty.
//!
//! # All clients lock the same file
//! A client that locked a different file than the others would find all of them dead, and recover living clients. So
//! the region's header identifies the file by a random identity, which is in the file's name and content, and by its
//! inode. A process that opens the region for writing must find that inode, on the region's own device, under that
//! name. Two files that exist at the same time never share device and inode, and a file exists as long as a process has
//! it open or mapped: so all processes that hold or probe slots at the same time use the same file. A lock file is
//! never recreated for an existing region.
//!
//! # Creation and removal
//! Before a lock file gets its name, its creator completes it and locks its byte [`CREATION_BYTE`]. It gets its name
//! before the region does, and the creator keeps that lock until the region has its name. Users who may only read the
//! region cannot block the lock, because they cannot open the file. Removing a region removes its name first, and then
//! that of its lock file.
//!
//! A creator or remover that is killed in between, or a user who removes a region's file by hand, leaves an unused lock
//! file. [`sweep`] removes such files of one region name; it is called by every creation and removal of a region under
//! that name. It takes the creation lock of a file first, and leaves the file alone if that is taken, if a client holds
//! a slot in it, or if the region that has the name now refers to it. So the sweep is safe:
//!
//! - *With its creator.* The sweep does not get the lock until the region has its name, and then finds that the region
//!   refers to the file. Or the creator has ended, and no region will ever refer to the file: no other header has its
//!   identity.
//! - *With other creators* of the name. Their files have other identities, and are checked separately.
//! - *With a remover.* Either of the two removes the name. It leads to the same file for both, because a creator never
//!   reuses a name (64 random bits), and never replaces a file.
//! - *With a process that opens the region.* That process has opened the region's file, but does not find the lock
//!   file. If the region's name does not lead to that file any more, the region was removed meanwhile, and the error
//!   says so. Processes that have the lock file open keep it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{FileKind, ShmError, Task};
use crate::file::create::Unpublished;
use crate::file::header::{Header, LockName, PAGE_BYTES, fnv1a, u64_at};
use crate::file::location::Location;
use crate::file::{FileSystem, identity, open_regular, read_start};
use crate::liveness::hold::{FIRST_SLOT_BYTE, REMOVAL_BYTE, SLOT_BYTES};
use crate::region::Access;
use crate::sys;

/// The byte that the creator keeps locked until the region has its name.
const CREATION_BYTE: i64 = REMOVAL_BYTE - 1;
/// The number of directory entries that [`sweep`] checks, which takes a millisecond or two. Later entries are left
/// alone.
const MAX_SWEPT_ENTRIES: usize = 10_000;

const MAGIC: [u8; 8] = *b"GUIRALCK";
const VERSION: u32 = 1;
/// Bytes covered by the checksum, which follows them.
const SUMMED_BYTES: usize = 24;
const CONTENT_BYTES: usize = SUMMED_BYTES + 8;

const SUFFIX: &str = ".locks";
/// The number of digits of an identity in a name.
const DIGITS: usize = 16;
/// Bytes by which a lock file's name is longer than its region's name.
const NAME_OVERHEAD: usize = 1 + DIGITS + SUFFIX.len();
/// The maximum length of a file name on every accepted file system.
const MAX_NAME_BYTES: usize = 255;

/// The shifts of the permission bits of the group and of all others in a mode.
const CLASSES: [u32; 2] = [3, 0];

/// The reason why the lock file of a region cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum LockFileProblem {
    /// The lock file is not next to the region.
    Missing,
    /// Another file has its name: a copy, or something else.
    Another,
    /// Its content is not that of the region's lock file.
    Damaged,
    /// The user may not read and write the lock file.
    Forbidden {
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl fmt::Display for LockFileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockFileProblem::Missing => f.write_str(
                "is missing: put it back if it was moved, or copy the table to a new one; reading works as before",
            ),
            LockFileProblem::Another => f.write_str(
                "is not the file that the table was created with: put that file back if it was moved, or copy the \
                 table to a new one; reading works as before",
            ),
            LockFileProblem::Damaged => f.write_str("is damaged: copy the table to a new one; reading works as before"),
            LockFileProblem::Forbidden { source } => write!(
                f,
                "may not be opened by this user: {source}; users who may write the table must be able to read and \
                 write that file, too (chown, chgrp, chmod)"
            ),
        }
    }
}

/// An open lock file.
pub(crate) struct LockFile {
    pub(crate) path: PathBuf,
    pub(crate) file: OwnedFd,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
}

/// Whether a region with these permission bits has a lock file: whether the group or all others may read but not write.
/// The owner is not considered, as it can change the bits.
pub(crate) fn is_needed_for(mode: u32) -> bool {
    CLASSES.iter().any(|class| mode >> class & 0o6 == 0o4)
}

/// Returns the permission bits of the lock file of a region with `mode`: the owner may read and write it, and other
/// users who may write the region have the same permissions on it.
fn mode_of(mode: u32) -> u32 {
    let rights = |class: &u32| if mode >> class & 0o2 == 0 { 0 } else { mode & (0o6 << class) };
    0o600 | CLASSES.iter().map(rights).sum::<u32>()
}

/// Returns the path of the lock file of the region at `region`, which is not a link.
pub(crate) fn path_of(region: &Path, identity: NonZeroU64) -> PathBuf {
    region.with_file_name(name_of(region.file_name().unwrap_or_default(), identity))
}

fn name_of(region: &OsStr, identity: NonZeroU64) -> OsString {
    let mut name = region.as_bytes().to_vec();
    name.extend_from_slice(format!(".{identity:016x}{SUFFIX}").as_bytes());
    OsString::from_vec(name)
}

/// Returns the identity in `name`, if that is the name of a lock file of a region named `region`.
fn identity_in(name: &[u8], region: &[u8]) -> Option<NonZeroU64> {
    let digits = name.strip_prefix(region)?.strip_prefix(b".")?.strip_suffix(SUFFIX.as_bytes())?;
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_well_formed = digits.len() == DIGITS && digits.iter().all(is_digit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_well_formed)?;
    NonZeroU64::new(u64::from_str_radix(digits, 16).ok()?)
}

/// Whether `name` has the form of a lock file's name.
pub(crate) fn is_lock_file(name: &str) -> bool {
    let region_bytes = name.len().saturating_sub(NAME_OVERHEAD);
    let (name, region) = (name.as_bytes(), &name.as_bytes()[..region_bytes]);
    region_bytes > 0 && identity_in(name, region).is_some()
}

impl LockFile {
    /// Opens the lock file, called `name` in the region's header, of the region at `location`, whose open file is
    /// `region`.
    ///
    /// # Errors
    /// `LockFile`; `NotFound` if the region is not at `location` any more; `Io`.
    pub(crate) fn open(
        location: &Location,
        region: BorrowedFd<'_>,
        name: LockName,
        task: Task<'_>,
    ) -> Result<LockFile, ShmError> {
        let region_path = location.resolved(task)?;
        let region = identity(&fstat(region).map_err(task.failed("read its identity"))?);
        let opened = LockFile::open_beside(&region_path, region.0, name, task);
        if let Err(ShmError::LockFile { problem: LockFileProblem::Missing, .. }) = &opened {
            // A remover removes the region's name first.
            let named =
                statat(rustix::fs::CWD, &region_path, AtFlags::SYMLINK_NOFOLLOW).map_err(task.failed("find it"))?;
            if identity(&named) != region {
                return Err(task.failed("find it")(Errno::NOENT));
            }
        }
        opened
    }

    /// Same as [`LockFile::open`], for the region at the path `region`, which is not a link, on `device`.
    pub(crate) fn open_beside(
        region: &Path,
        device: u64,
        name: LockName,
        task: Task<'_>,
    ) -> Result<LockFile, ShmError> {
        let path = path_of(region, name.identity);
        let refused = |problem| ShmError::LockFile {
            attempt: task.attempt,
            path: task.path.to_owned(),
            lock_path: path.clone(),
            problem,
        };
        let opened = open_regular(&Location::itself(path.clone()), Access::ReadWrite, Task { path: &path, ..task });
        let file = opened.map_err(|error| match error {
            ShmError::NotFound { .. } => refused(LockFileProblem::Missing),
            ShmError::NotAFile { .. } => refused(LockFileProblem::Another),
            ShmError::Permission { source, .. } => refused(LockFileProblem::Forbidden { source }),
            error => error,
        })?;
        let found = identity(&fstat(&file).map_err(task.failed("read the identity of its lock file"))?);
        if found != (device, name.inode.get()) {
            return Err(refused(LockFileProblem::Another));
        }
        if !has_content(file.as_fd(), name.identity, task) {
            return Err(refused(LockFileProblem::Damaged));
        }
        Ok(LockFile { path, file, identity: found })
    }
}

/// Whether `file` has the content of a lock file with this identity.
fn has_content(file: BorrowedFd<'_>, identity: NonZeroU64, task: Task<'_>) -> bool {
    let expected = content_of(file, identity, task);
    let found = read_start(file, task);
    matches!((expected, found), (Ok(expected), Ok(found)) if found.starts_with(&expected))
}

/// Returns the content of a lock file with this identity, on the file system of `file`.
fn content_of(file: BorrowedFd<'_>, identity: NonZeroU64, task: Task<'_>) -> Result<Vec<u8>, ShmError> {
    if let FileSystem::Hugetlbfs { .. } = FileSystem::of(file, task)? {
        return Ok(Vec::new());
    }
    let mut content = Vec::with_capacity(CONTENT_BYTES);
    content.extend_from_slice(&MAGIC);
    content.extend_from_slice(&u64::from(VERSION).to_le_bytes());
    content.extend_from_slice(&identity.get().to_le_bytes());
    content.extend_from_slice(&fnv1a(&content).to_le_bytes());
    assert!(content.len() == CONTENT_BYTES && u64_at(&content, SUMMED_BYTES - 8) == identity.get());
    Ok(content)
}

/// Refuses a region's name if the name of its lock file would be too long.
pub(crate) fn require_room_in(name: &OsStr) -> Result<(), ShmError> {
    if name.len() + NAME_OVERHEAD <= MAX_NAME_BYTES {
        return Ok(());
    }
    let reason = "it is longer than 232 bytes, and its mode requires a lock file, whose name is 23 bytes longer";
    Err(ShmError::BadName { name: name.to_string_lossy().into_owned(), reason })
}

const _: () = assert!(NAME_OVERHEAD == 23 && MAX_NAME_BYTES - NAME_OVERHEAD == 232);

/// A lock file whose region has no name yet. Its own name is removed on drop, unless [`PendingLockFile::commit`] was
/// called.
pub(crate) struct PendingLockFile {
    directory: OwnedFd,
    name: OsString,
    is_committed: bool,
}

/// Creates the lock file of the region that will be `region` in `directory`, with `mode`. The caller commits the result
/// when the region has its name.
///
/// # Errors
/// `NoSpace`, `Permission`, `Io`. Nothing is left behind.
pub(crate) fn create(
    directory: BorrowedFd<'_>,
    region: &Path,
    mode: u32,
    task: Task<'_>,
) -> Result<(LockFile, LockName, PendingLockFile), ShmError> {
    let drawn = draw_identity().map_err(task.failed("draw a random number"))?;
    let name = name_of(region.file_name().unwrap_or_default(), drawn);
    let duplicate = || rustix::io::fcntl_dupfd_cloexec(directory, 0).map_err(task.failed("open its directory"));
    let (file, unpublished) = Unpublished::new(duplicate()?, task)?;
    write_content(file.as_fd(), &content_of(file.as_fd(), drawn, task)?, task)?;
    let lock_mode = Mode::from_raw_mode(mode_of(mode));
    rustix::fs::fchmod(&file, lock_mode).map_err(task.failed("set the permissions of its lock file"))?;
    sys::try_lock_byte(file.as_fd(), CREATION_BYTE).map_err(task.failed("lock its lock file"))?;
    let found = identity(&fstat(&file).map_err(task.failed("read the identity of its lock file"))?);
    let inode = NonZeroU64::new(found.1).ok_or(Errno::NOSYS).map_err(task.failed("identify its lock file"))?;
    let pending_directory = duplicate()?;
    unpublished.publish(file.as_fd(), &name).map_err(task.failed("give its lock file a name"))?;
    let pending = PendingLockFile { directory: pending_directory, name, is_committed: false };
    let lock_file = LockFile { path: path_of(region, drawn), file, identity: found };
    Ok((lock_file, LockName { identity: drawn, inode }, pending))
}

fn draw_identity() -> Result<NonZeroU64, Errno> {
    let mut bytes = [0; 8];
    let drawn = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
    if drawn < bytes.len() {
        return Err(Errno::IO);
    }
    // Zero means that there is no lock file, so it is replaced by one.
    Ok(NonZeroU64::new(u64::from_le_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
}

fn write_content(file: BorrowedFd<'_>, content: &[u8], task: Task<'_>) -> Result<(), ShmError> {
    let mut written = 0;
    while written < content.len() {
        let step = retry_on_intr(|| rustix::io::pwrite(file, &content[written..], written as u64));
        written += match step {
            Ok(0) => return Err(task.failed("write its lock file")(Errno::IO)),
            Ok(bytes) => bytes,
            Err(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) => {
                return Err(task.no_space(PAGE_BYTES, 0));
            }
            Err(errno) => return Err(task.failed("write its lock file")(errno)),
        };
    }
    Ok(())
}

impl PendingLockFile {
    /// Keeps the lock file, now that its region has a name, and releases the creator's lock.
    pub(crate) fn commit(mut self, lock_file: &LockFile) {
        self.is_committed = true;
        // If the lock stays, in a program that closes descriptors, sweeps leave the file alone; nothing else checks it.
        let _ = sys::unlock_byte(lock_file.file.as_fd(), CREATION_BYTE);
    }
}

impl Drop for PendingLockFile {
    fn drop(&mut self) {
        if !self.is_committed {
            // If this fails, the next sweep removes the name.
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Removes the name of a lock file, after the name of its region was removed: the region was called `region` in
/// `directory`, on `device`. The name stays if it leads to another file, or if this user may not remove it.
pub(crate) fn remove(directory: BorrowedFd<'_>, region: &OsStr, device: u64, name: LockName) {
    let file_name = name_of(region, name.identity);
    let found = statat(directory, &file_name, AtFlags::SYMLINK_NOFOLLOW);
    if found.is_ok_and(|found| identity(&found) == (device, name.inode.get())) {
        let _ = unlinkat(directory, &file_name, AtFlags::empty());
    }
}

/// Removes unused lock files of regions named `region` among the first [`MAX_SWEPT_ENTRIES`] entries of `directory`.
/// Files that cannot be checked, or may be needed, stay.
pub(crate) fn sweep(directory: BorrowedFd<'_>, region: &OsStr, task: Task<'_>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(entries) = openat(directory, ".", flags, Mode::empty()).and_then(Dir::new) else { return };
    for entry in entries.take(MAX_SWEPT_ENTRIES) {
        // Nothing more can be read.
        let Ok(entry) = entry else { return };
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if let Some(identity) = identity_in(name.as_bytes(), region.as_bytes()) {
            // On an error the file stays.
            let _ = sweep_one(directory, region, name, identity, task);
        }
    }
}

/// Removes the lock file called `name`, if it is unused.
fn sweep_one(
    directory: BorrowedFd<'_>,
    region: &OsStr,
    name: &OsStr,
    drawn: NonZeroU64,
    task: Task<'_>,
) -> Result<(), Errno> {
    // Opening a device can have effects, and a lock file is a regular file.
    let is_regular = |mode| FileKind::irregular(mode).is_none();
    if !is_regular(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode) {
        return Ok(());
    }
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(directory, name, flags | OFlags::RDWR, Mode::empty())?;
    let opened = fstat(&file)?;
    if !is_regular(opened.st_mode) || !has_content(file.as_fd(), drawn, task) {
        return Ok(());
    }
    // From here on, its creator has ended or has given the region its name, and no other sweep checks the file.
    sys::try_lock_byte(file.as_fd(), CREATION_BYTE)?;
    let is_in_use = sys::any_lock(file.as_fd(), FIRST_SLOT_BYTE, SLOT_BYTES)?.is_some();
    if is_in_use || may_be_named(directory, region, drawn, task) {
        return Ok(());
    }
    let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if identity(&named) == identity(&opened) { unlinkat(directory, name, AtFlags::empty()) } else { Ok(()) }
}

/// Whether the header of the file called `region` may refer to the lock file with this identity.
fn may_be_named(directory: BorrowedFd<'_>, region: &OsStr, drawn: NonZeroU64, task: Task<'_>) -> bool {
    match statat(directory, region, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return false,
        Err(_) => return true,
        Ok(stat) if FileKind::irregular(stat.st_mode).is_some() => return true,
        Ok(_) => {}
    }
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let header = match openat(directory, region, flags | OFlags::RDONLY, Mode::empty()) {
        // The region was removed meanwhile.
        Err(Errno::NOENT) => return false,
        Err(_) => return true,
        Ok(file) => read_start(file.as_fd(), task).and_then(|start| Header::decode(task, &start, u64::MAX)),
    };
    header.map_or(true, |header| header.lock_name.is_some_and(|name| name.identity == drawn))
}

#[cfg(test)]
mod tests {
    use guira_testing::unique_name;

    use super::*;
    use crate::error::Attempt;
    use crate::{CreateOptions, ShmRegion};

    #[test]
    fn lock_file_names_are_recognised() {
        let identity = NonZeroU64::new(0x0123_4567_89ab_cdef).unwrap();
        let name = name_of(OsStr::new("a.b"), identity);
        assert_eq!(name, "a.b.0123456789abcdef.locks");
        assert_eq!(identity_in(name.as_bytes(), b"a.b"), Some(identity));
        assert_eq!(identity_in(name.as_bytes(), b"a"), None);
        assert!(is_lock_file("a.b.0123456789abcdef.locks"));
        for other in [
            "a.0123456789abcdef.lock",
            "a.0123456789ABCDEF.locks",
            "a.0123456789abcde.locks",
            "a.+123456789abcdef.locks",
            "a.0000000000000000.locks",
            ".0123456789abcdef.locks",
            ".locks",
            "",
            "für",
        ] {
            assert!(!is_lock_file(other), "{other}");
        }
    }

    /// A process that opens a region learns that the region was removed, and not that its lock file is missing, if both
    /// were removed before it opened the lock file.
    #[test]
    fn a_region_removed_during_open_is_not_found() {
        let location = Location::shm(&unique_name()).unwrap();
        let create = || {
            let options = CreateOptions::new(8192, 64).with_mode(0o644);
            ShmRegion::create(&location, options, |_| Ok::<(), ()>(())).unwrap()
        };
        let task = Task::new(Attempt::Open, location.path());
        let opened = || {
            let file = open_regular(&location, Access::ReadWrite, task).unwrap();
            let header = Header::decode(task, &read_start(file.as_fd(), task).unwrap(), u64::MAX).unwrap();
            (file, header.lock_name.unwrap())
        };
        let find = |(file, name): &(OwnedFd, LockName)| LockFile::open(&location, file.as_fd(), *name, task).map(drop);

        let lock_path = create().slot_path().to_owned();
        let first = opened();
        find(&first).unwrap();
        let aside = location.path().with_extension("aside");
        std::fs::rename(&lock_path, &aside).unwrap();
        let lost = find(&first);
        std::fs::rename(&aside, &lock_path).unwrap();
        assert!(matches!(lost, Err(ShmError::LockFile { problem: LockFileProblem::Missing, .. })), "{lost:?}");
        ShmRegion::destroy(&location).unwrap();
        let removed = find(&first);
        create();
        let succeeded = find(&first);
        find(&opened()).unwrap();
        ShmRegion::destroy(&location).unwrap();
        for gone in [removed, succeeded] {
            assert!(matches!(gone, Err(ShmError::NotFound { .. })), "{gone:?}");
        }
    }
}
