//! The lock file of a region that some users may read and not write: the locks on its bytes stand for client slots.
//!
//! A process that may read a file may lock its bytes, for reading, and so keep others from locking them for writing.
//! A region whose mode gives a class of users the right to read and not to write therefore gets a second file beside
//! it, `NAME.<16 hexadecimal digits>.locks`, which only those may open who may write the region. Other regions have
//! their slots' bytes in their own file.
//!
//! ```text
//! byte   0  magic "GUIRALCK"
//!        8  version, u32 (1)      12  zero, u32
//!       16  identity              24  FNV-1a 64 of bytes 0 to 23
//! ```
//! On hugetlbfs, where a byte takes a huge page, the file is empty.
//!
//! # Everybody locks the same file
//! A client that locked another file than the others would find all of them dead, and recover clients that live. So the
//! region's header names the file by a random identity, which is in its name and its content, and by its inode, and
//! whoever opens the region for writing has to find that inode, on the region's own device, under that name. Two files
//! that exist at the same time never share device and inode, and a file exists as long as anybody has it open or
//! mapped: all who hold or ask for slots at one time have the same file. A lock file is never made anew for a region
//! that exists.
//!
//! # Making and removing it
//! A lock file is complete and locked, on the byte [`CREATION_BYTE`], by its creator before it gets its name, and gets
//! its name before the region does; the creator keeps that lock until the region has its name. Mere readers cannot
//! stand in its way: they cannot open the file. Removing a region takes its name first, and then its lock file's.
//!
//! A creator or remover that is killed in between, or somebody who removes a region's file by hand, leaves a lock file
//! that nobody needs. [`sweep`] removes such files of one region name; whoever creates or destroys a region under that
//! name calls it. It takes the creation lock of a file first, and leaves the file alone if that is taken, if a client
//! has a slot in it, or if it is named by the region that has the name now. So:
//!
//! - *Beside its creator* it does not get the lock until the region has its name, and then finds the file named; or the
//!   creator is gone, and nobody will ever name the file: its identity is in no other header.
//! - *Beside other creators* of the name it looks at their files, each of which is another one by its identity.
//! - *Beside a remover* either of the two removes the name. It leads to the same file for both, because a creator never
//!   uses a name that was used (64 random bits), and never replaces a file.
//! - *Beside somebody who opens the region*: that one has opened the region's file, and does not find the lock file. If
//!   the region's name leads to that file no more, the region was removed meanwhile, which is what the error says then.
//!   Who has the lock file open keeps it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::create::Unpublished;
use crate::error::{FileKind, ShmError, Task};
use crate::file::{FileSystem, identity, open_regular, read_start};
use crate::header::{Header, LockName, PAGE_BYTES, fnv1a, u64_at};
use crate::hold::{FIRST_SLOT_BYTE, REMOVAL_BYTE, SLOT_BYTES};
use crate::location::Location;
use crate::region::Access;
use crate::sys;

/// The byte that a creator has locked until the region has its name.
const CREATION_BYTE: i64 = REMOVAL_BYTE - 1;
/// Entries of a directory that [`sweep`] looks at: a millisecond or two. What lies behind them is left to others.
const MAX_SWEPT_ENTRIES: usize = 10_000;

const MAGIC: [u8; 8] = *b"GUIRALCK";
const VERSION: u32 = 1;
/// Bytes under the checksum; it follows them.
const SUMMED_BYTES: usize = 24;
const CONTENT_BYTES: usize = SUMMED_BYTES + 8;

const SUFFIX: &str = ".locks";
/// Digits of an identity in a name.
const DIGITS: usize = 16;
/// Bytes that a lock file's name has more than its region's.
const NAME_OVERHEAD: usize = 1 + DIGITS + SUFFIX.len();
/// Bytes of a file name, at most, on every file system that is accepted.
const MAX_NAME_BYTES: usize = 255;

/// Where the permission bits of the group and of all others lie in a mode.
const CLASSES: [u32; 2] = [3, 0];

/// The fault of the lock file of a region that was to be opened for writing.
#[derive(Debug)]
#[non_exhaustive]
pub enum LockFileProblem {
    /// It is not beside the region.
    Missing,
    /// Another file has its name: a copy, or something else.
    Another,
    /// Its content is not that of the region's lock file.
    Damaged,
    /// This user may not read and write it.
    Forbidden {
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl fmt::Display for LockFileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockFileProblem::Missing => {
                "is missing: put it back if it was moved, or copy the table to a new one; reading works as before"
            }
            LockFileProblem::Another => {
                "is another file than the table was created with: put that one back if it was moved, or copy the table \
                 to a new one; reading works as before"
            }
            LockFileProblem::Damaged => "is damaged: copy the table to a new one; reading works as before",
            LockFileProblem::Forbidden { .. } => {
                "may not be opened by this user: whoever may write the table needs the right to read and write that \
                 file, too (chown, chgrp, chmod)"
            }
        })
    }
}

/// A lock file that is open.
pub(crate) struct LockFile {
    pub(crate) path: PathBuf,
    pub(crate) file: OwnedFd,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
}

/// Whether a region with these permission bits has a lock file: a class of users, but the owner's, may read and not
/// write. The owner may change the bits.
pub(crate) fn is_needed_for(mode: u32) -> bool {
    CLASSES.iter().any(|class| mode >> class & 0o6 == 0o4)
}

/// The permission bits of the lock file of a region with `mode`: those who may write the region may read and write it,
/// and so may the owner.
fn mode_of(mode: u32) -> u32 {
    let rights = |class: &u32| if mode >> class & 0o2 == 0 { 0 } else { mode & (0o6 << class) };
    0o600 | CLASSES.iter().map(rights).sum::<u32>()
}

/// The path of the lock file of the region at `region`, which is no link.
pub(crate) fn path_of(region: &Path, identity: NonZeroU64) -> PathBuf {
    region.with_file_name(name_of(region.file_name().unwrap_or_default(), identity))
}

fn name_of(region: &OsStr, identity: NonZeroU64) -> OsString {
    let mut name = region.as_bytes().to_vec();
    name.extend_from_slice(format!(".{identity:016x}{SUFFIX}").as_bytes());
    OsString::from_vec(name)
}

/// The identity in `name`, if it is that of a lock file of a region named `region`.
fn identity_in(name: &[u8], region: &[u8]) -> Option<NonZeroU64> {
    let digits = name.strip_prefix(region)?.strip_prefix(b".")?.strip_suffix(SUFFIX.as_bytes())?;
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_well_formed = digits.len() == DIGITS && digits.iter().all(is_digit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_well_formed)?;
    NonZeroU64::new(u64::from_str_radix(digits, 16).ok()?)
}

/// Whether a file of this name is the lock file of some region, by its name.
pub(crate) fn is_lock_file(name: &str) -> bool {
    let region_bytes = name.len().saturating_sub(NAME_OVERHEAD);
    let (name, region) = (name.as_bytes(), &name.as_bytes()[..region_bytes]);
    region_bytes > 0 && identity_in(name, region).is_some()
}

impl LockFile {
    /// Opens the lock file of the region at `location`, whose header names it so and whose open file is `region`.
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
            // Whoever removes a region removes its name first.
            let named =
                statat(rustix::fs::CWD, &region_path, AtFlags::SYMLINK_NOFOLLOW).map_err(task.failed("find it"))?;
            if identity(&named) != region {
                return Err(task.failed("find it")(Errno::NOENT));
            }
        }
        opened
    }

    /// As [`LockFile::open`], for the region at `region`, which is no link, on `device`.
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

/// Whether `file` has what a lock file of this identity has in it.
fn has_content(file: BorrowedFd<'_>, identity: NonZeroU64, task: Task<'_>) -> bool {
    let expected = content_of(file, identity, task);
    let found = read_start(file, task);
    matches!((expected, found), (Ok(expected), Ok(found)) if found.starts_with(&expected))
}

/// The content of a lock file of this identity, on the file system of `file`.
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

/// Refuses a region's name that leaves no room for that of a lock file.
pub(crate) fn require_room_in(name: &OsStr) -> Result<(), ShmError> {
    if name.len() + NAME_OVERHEAD <= MAX_NAME_BYTES {
        return Ok(());
    }
    let reason = "it is longer than 232 bytes, and its mode asks for a lock file, whose name is 23 bytes longer";
    Err(ShmError::BadName { name: name.to_string_lossy().into_owned(), reason })
}

const _: () = assert!(NAME_OVERHEAD == 23 && MAX_NAME_BYTES - NAME_OVERHEAD == 232);

/// A lock file whose region has no name yet: it loses its own when this is dropped before [`PendingLockFile::commit`].
pub(crate) struct PendingLockFile {
    directory: OwnedFd,
    name: OsString,
    is_committed: bool,
}

/// Makes the lock file of the region that will be `region` in `directory`, with `mode`. The caller tells the result
/// when the region has its name.
///
/// # Errors
/// `NoSpace`, `Permission`, `Io`. Nothing is left.
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
    // Zero is as good as any other number, but means that there is none.
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
                return Err(ShmError::NoSpace { path: task.path.to_owned(), wanted: PAGE_BYTES, available: 0 });
            }
            Err(errno) => return Err(task.failed("write its lock file")(errno)),
        };
    }
    Ok(())
}

impl PendingLockFile {
    /// The region has its name: `lock_file` stays, and its creator's lock ends.
    pub(crate) fn commit(mut self, lock_file: &LockFile) {
        self.is_committed = true;
        // Should it stay, in a program that closes descriptors, sweepers leave the file alone; nobody else asks.
        let _ = sys::unlock_byte(lock_file.file.as_fd(), CREATION_BYTE);
    }
}

impl Drop for PendingLockFile {
    fn drop(&mut self) {
        if !self.is_committed {
            // A refusal leaves it to the next sweep.
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Removes the name of the lock file of a region that was `region` in `directory`, on `device`, and has lost its name.
/// Should that not be permitted, or the file be another one, it stays.
pub(crate) fn remove(directory: BorrowedFd<'_>, region: &OsStr, device: u64, name: LockName) {
    let file_name = name_of(region, name.identity);
    let found = statat(directory, &file_name, AtFlags::SYMLINK_NOFOLLOW);
    if found.is_ok_and(|found| identity(&found) == (device, name.inode.get())) {
        let _ = unlinkat(directory, &file_name, AtFlags::empty());
    }
}

/// Removes lock files of regions named `region` in `directory` that nobody needs, among the first
/// [`MAX_SWEPT_ENTRIES`] entries of the directory. What cannot be looked at, or may be needed, stays.
pub(crate) fn sweep(directory: BorrowedFd<'_>, region: &OsStr, task: Task<'_>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(entries) = openat(directory, ".", flags, Mode::empty()).and_then(Dir::new) else { return };
    for entry in entries.take(MAX_SWEPT_ENTRIES) {
        // The end of what can be read.
        let Ok(entry) = entry else { return };
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if let Some(identity) = identity_in(name.as_bytes(), region.as_bytes()) {
            // An error leaves it where it is.
            let _ = sweep_one(directory, region, name, identity, task);
        }
    }
}

/// Removes the lock file called `name`, if nobody needs it.
fn sweep_one(
    directory: BorrowedFd<'_>,
    region: &OsStr,
    name: &OsStr,
    drawn: NonZeroU64,
    task: Task<'_>,
) -> Result<(), Errno> {
    // To open a device can have effects, and no lock file is one.
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
    // From here on its creator is gone, or has given the region its name; and nobody else sweeps it.
    sys::try_lock_byte(file.as_fd(), CREATION_BYTE)?;
    let is_in_use = sys::any_lock(file.as_fd(), FIRST_SLOT_BYTE, SLOT_BYTES)?.is_some();
    if is_in_use || may_be_named(directory, region, drawn, task) {
        return Ok(());
    }
    let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if identity(&named) == identity(&opened) { unlinkat(directory, name, AtFlags::empty()) } else { Ok(()) }
}

/// Whether the file called `region` names the lock file of this identity in its header, as far as can be known.
fn may_be_named(directory: BorrowedFd<'_>, region: &OsStr, drawn: NonZeroU64, task: Task<'_>) -> bool {
    match statat(directory, region, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return false,
        Err(_) => return true,
        Ok(stat) if FileKind::irregular(stat.st_mode).is_some() => return true,
        Ok(_) => {}
    }
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let header = match openat(directory, region, flags | OFlags::RDONLY, Mode::empty()) {
        // Removed meanwhile.
        Err(Errno::NOENT) => return false,
        Err(_) => return true,
        Ok(file) => read_start(file.as_fd(), task).and_then(|start| Header::decode(task, &start, u64::MAX)),
    };
    header.map_or(true, |header| header.lock_name.is_some_and(|name| name.identity == drawn))
}

#[cfg(test)]
mod tests {
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

    /// A process that has opened a region learns that it was removed, and not that its lock file is lost, if both went
    /// before it found that file.
    #[test]
    fn a_region_removed_during_open_is_not_found() {
        let location = Location::shm(&format!("guira-test-{}-meanwhile", std::process::id())).unwrap();
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
