//! Errors of a region's file. A failed call changes nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use guira_fabric::refusal::Limits;
use guira_fabric::{ByteCount, shell_word};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::file::create::UNNAMED;
use crate::file::memory_limit::Limiter;
use crate::liveness::lock_file::LockFileProblem;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// [`crate::ShmRegion::create`].
    Create,
    /// [`crate::ShmRegion::open`].
    Open,
    /// [`crate::ShmRegion::destroy`].
    Destroy,
    /// [`crate::ShmRegion::verify_length`] or [`crate::ShmRegion::info`].
    Inspect,
    /// [`crate::ShmRegion::claim_for_device`].
    Claim,
    /// [`guira_fabric::Lane::poll_reserve`].
    Grow,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Attempt::Create => "create",
            Attempt::Open => "open",
            Attempt::Destroy => "destroy",
            Attempt::Inspect => "inspect",
            Attempt::Grow => "reserve memory of",
            Attempt::Claim => "serve by a network card",
        })
    }
}

/// The type of a file that is not a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// A symbolic link, in a directory where every user may create one.
    Symlink,
    /// Another type.
    Unknown,
}

impl FileKind {
    /// Returns the type in the mode `raw_mode`; `None` for a regular file.
    pub(crate) fn irregular(raw_mode: u32) -> Option<FileKind> {
        Some(match FileType::from_raw_mode(raw_mode) {
            FileType::RegularFile => return None,
            FileType::Directory => FileKind::Directory,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => FileKind::Device,
            FileType::Symlink => FileKind::Symlink,
            FileType::Unknown => FileKind::Unknown,
        })
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Directory => "a directory",
            FileKind::Fifo => "a named pipe",
            FileKind::Socket => "a socket",
            FileKind::Device => "a device",
            FileKind::Symlink => "a symbolic link",
            FileKind::Unknown => "of an unknown kind",
        })
    }
}

/// Returns the kernel's error; if it is that memory was refused, with the limits that can cause it.
pub(crate) fn explained(errno: Errno) -> io::Error {
    match errno {
        Errno::NOMEM => io::Error::new(io::ErrorKind::OutOfMemory, format!("{errno}; {}", Limits::current())),
        _ => errno.into(),
    }
}

/// Says what does not exist after a "not found": for a creation that is the directory.
fn missing(attempt: Attempt) -> &'static str {
    match attempt {
        Attempt::Create => "its directory does not exist",
        Attempt::Open | Attempt::Destroy | Attempt::Inspect | Attempt::Claim | Attempt::Grow => "no such table",
    }
}

/// An error of creating, opening, inspecting or destroying a region's file. In every case nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The name is not allowed for a region.
    #[error("the name {name:?} is not allowed: {reason}; nothing was changed")]
    BadName {
        /// The name, or a path that does not end in a name.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// The mode has bits that are not permission bits.
    #[error("cannot create {}: mode {mode:#o} has bits outside 0o777; nothing was changed", path.display())]
    BadMode {
        /// The file.
        path: PathBuf,
        /// The mode that was asked for.
        mode: u32,
    },
    /// The file, or for a creation its directory, does not exist.
    #[error("cannot {attempt} {}: {}; nothing was changed", path.display(), missing(*attempt))]
    NotFound {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
    },
    /// The user does not have the permission.
    #[error("cannot {attempt} {}: could not {operation}: {source}; nothing was changed", path.display())]
    Permission {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The step that was refused.
        operation: &'static str,
        /// The kernel's answer.
        r#source: io::Error,
    },
    /// The file system is mounted read-only.
    #[error("cannot {attempt} {}: could not {operation}: its file system is mounted read-only; nothing was changed",
            path.display())]
    ReadOnlyFileSystem {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The step that was refused.
        operation: &'static str,
    },
    /// A file of this name exists; a creation never replaces a file.
    #[error("cannot create {}: it already exists; nothing was changed", path.display())]
    AlreadyExists {
        /// The file.
        path: PathBuf,
    },
    /// There is not enough space for the region: in the file system, of the machine's memory, or of the memory that a
    /// control group allows. Also for a region that is opened, if its file has holes.
    #[error("cannot {attempt} {}: it needs {}, and {limiter} has only {} free; nothing was changed",
            path.display(), ByteCount(*wanted), ByteCount(*available))]
    NoSpace {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The directory, machine or control group that has too little space.
        limiter: String,
        /// Bytes of the whole file.
        wanted: u64,
        /// Bytes of free space for this user.
        available: u64,
    },
    /// The sizes overflow, or exceed what a file or this process's address space can hold.
    #[error("cannot {attempt} {}: a main space of {main_bytes} bytes and a device space of {device_bytes} bytes are \
             too large to map; nothing was changed", path.display())]
    TooLarge {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// Bytes of the main space.
        main_bytes: u64,
        /// Bytes of the device space.
        device_bytes: u64,
    },
    /// The path does not lead to a regular file.
    #[error("cannot {attempt} {}: it is {kind}, not a file; nothing was changed", path.display())]
    NotAFile {
        /// The attempted operation.
        attempt: Attempt,
        /// The path.
        path: PathBuf,
        /// The type of the file.
        kind: FileKind,
    },
    /// The file system is not known to give the guarantees that a region needs (locks that end with their process, and
    /// one copy of each page).
    #[error("cannot {attempt} {}: its file system is {name} (magic number {magic:#x}), which is not safe; use tmpfs, \
             hugetlbfs, ext4 or xfs; nothing was changed", path.display())]
    UnsupportedFileSystem {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The file system's name, or "unknown".
        name: &'static str,
        /// Its magic number.
        magic: u64,
    },
    /// The file is not a region.
    #[error("cannot {attempt} {}: it is not a Guira table; nothing was changed", path.display())]
    Foreign {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
    },
    /// The region's header has another version.
    #[error("cannot {attempt} {}: it was made by another version of Guira: its header has version {found}, but this \
             program supports version {supported}; to carry its records over, dump it with the program that made it \
             (guira dump), and load that into a new table with this one (guira load); nothing was changed",
            path.display())]
    Version {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The version that this program supports.
        supported: u32,
    },
    /// The file starts like a region, but its header does not verify.
    #[error("cannot {attempt} {}: its header is corrupt; nothing was changed", path.display())]
    HeaderCorrupt {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than its header says.
    #[error("cannot {attempt} {}: it was truncated to {actual} of {expected} bytes; nothing was changed",
            path.display())]
    Truncated {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// Bytes that the file must have.
        expected: u64,
        /// Bytes that it has.
        actual: u64,
    },
    /// The lock file of the region cannot be used, so that the region can only be read: a client that locked a
    /// different file than the others would consider them dead.
    #[error("cannot {attempt} {} for writing: its lock file {} {problem}; nothing was changed",
            path.display(), lock_path.display())]
    LockFile {
        /// The attempted operation.
        attempt: Attempt,
        /// The region's file.
        path: PathBuf,
        /// The path that the lock file must have.
        lock_path: PathBuf,
        /// The problem of the lock file.
        problem: LockFileProblem,
    },
    /// The region is claimed for a device, whose atomics must not be mixed with those of processors.
    #[error("cannot {attempt} {}: it is being served over RDMA, and a network card's atomics must not be mixed with \
             the processor's; open it by the rdma:// URL that its server prints, or stop that server; nothing was \
             changed", path.display())]
    ServedByDevice {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
    },
    /// The region cannot be claimed for a device, because it is also mapped by another process, or opened a second time
    /// in this one.
    #[error("cannot serve {path} over RDMA: it is open elsewhere, and a network card's atomics must not be mixed with \
             the processor's; end the processes that have it open (fuser {} lists them); nothing was changed",
            shell_word(&path.to_string_lossy()), path = path.display())]
    MappedElsewhere {
        /// The file.
        path: PathBuf,
    },
    /// The region cannot be claimed for a device, because this process has lanes that may change it.
    #[error("cannot serve {} over RDMA: this process has clients of it, and a network card's atomics must not be mixed \
             with the processor's; drop them first; nothing was changed", path.display())]
    LanesOpen {
        /// The file.
        path: PathBuf,
    },
    /// This handle of the region cannot claim it for a device.
    #[error("cannot serve {} over RDMA: {reason}; open it again, for writing; nothing was changed", path.display())]
    NotClaimable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// The caller's progress function stopped a creation.
    #[error("cannot create {}: stopped on request; nothing was changed", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// The kernel refused a step for another reason.
    #[error("cannot {attempt} {}: could not {operation}: {source}; nothing was changed", path.display())]
    Io {
        /// The attempted operation.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The step that failed.
        operation: &'static str,
        /// The kernel's answer.
        r#source: io::Error,
    },
}

impl ShmError {
    /// Returns the same error, reported for another attempt, of which the failed one was a part.
    #[must_use]
    pub fn with_attempt(mut self, of: Attempt) -> ShmError {
        match &mut self {
            ShmError::NotFound { attempt, .. }
            | ShmError::Permission { attempt, .. }
            | ShmError::NoSpace { attempt, .. }
            | ShmError::ReadOnlyFileSystem { attempt, .. }
            | ShmError::TooLarge { attempt, .. }
            | ShmError::NotAFile { attempt, .. }
            | ShmError::UnsupportedFileSystem { attempt, .. }
            | ShmError::Foreign { attempt, .. }
            | ShmError::Version { attempt, .. }
            | ShmError::HeaderCorrupt { attempt, .. }
            | ShmError::Truncated { attempt, .. }
            | ShmError::LockFile { attempt, .. }
            | ShmError::ServedByDevice { attempt, .. }
            | ShmError::Io { attempt, .. } => *attempt = of,
            ShmError::BadName { .. }
            | ShmError::BadMode { .. }
            | ShmError::AlreadyExists { .. }
            | ShmError::MappedElsewhere { .. }
            | ShmError::LanesOpen { .. }
            | ShmError::NotClaimable { .. }
            | ShmError::Stopped { .. } => {}
        }
        self
    }
}

/// An error of creating a region. Nothing is left of the region.
#[derive(Debug, thiserror::Error)]
pub enum CreateError<E> {
    /// Its file could not be created.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// Its file was created, but the caller could not format it; the file was removed.
    #[error("cannot create {}: formatting it failed: {source}; nothing was left behind", path.display())]
    Init {
        /// The file.
        path: PathBuf,
        /// The caller's error.
        r#source: E,
    },
}

/// An attempt and its path, which every error names.
#[derive(Clone, Copy)]
pub(crate) struct Task<'p> {
    pub(crate) attempt: Attempt,
    pub(crate) path: &'p Path,
}

impl<'p> Task<'p> {
    pub(crate) fn new(attempt: Attempt, path: &'p Path) -> Task<'p> {
        Task { attempt, path }
    }

    /// Returns a function that converts the kernel's error in the step `operation` into a [`ShmError`].
    pub(crate) fn failed(self, operation: &'static str) -> impl Fn(Errno) -> ShmError + use<'p> {
        move |errno| {
            let Task { attempt, path } = self;
            let path = path.to_owned();
            match errno {
                Errno::NOENT => ShmError::NotFound { attempt, path },
                Errno::EXIST => ShmError::AlreadyExists { path },
                Errno::ACCESS | Errno::PERM => ShmError::Permission { attempt, path, operation, source: errno.into() },
                Errno::ROFS => ShmError::ReadOnlyFileSystem { attempt, path, operation },
                Errno::LOOP => ShmError::NotAFile { attempt, path, kind: FileKind::Symlink },
                Errno::ISDIR => ShmError::NotAFile { attempt, path, kind: FileKind::Directory },
                _ => ShmError::Io { attempt, path, operation, source: explained(errno) },
            }
        }
    }

    /// Converts the kernel's error in mapping a region of these sizes.
    pub(crate) fn unmapped(self, errno: Errno, main_bytes: u64, device_bytes: u64) -> ShmError {
        match errno {
            Errno::NOMEM if Limits::current().address_space_bytes.is_some() => self.failed("map it")(errno),
            Errno::NOMEM | Errno::OVERFLOW => self.too_large(main_bytes, device_bytes),
            _ => self.failed("map it")(errno),
        }
    }

    pub(crate) fn stopped(self) -> ShmError {
        ShmError::Stopped { path: self.path.to_owned() }
    }

    /// Returns the error that `wanted` bytes do not fit into the `available` ones of the file's directory, or of the
    /// machine if the file has no name.
    pub(crate) fn no_space(self, wanted: u64, available: u64) -> ShmError {
        let Task { attempt, path } = self;
        let limiter = match path.parent() {
            Some(directory) if path != Path::new(UNNAMED) => directory.display().to_string(),
            _ => Limiter::Machine.to_string(),
        };
        ShmError::NoSpace { attempt, path: path.to_owned(), limiter, wanted, available }
    }

    pub(crate) fn foreign(self) -> ShmError {
        ShmError::Foreign { attempt: self.attempt, path: self.path.to_owned() }
    }

    pub(crate) fn corrupt(self) -> ShmError {
        ShmError::HeaderCorrupt { attempt: self.attempt, path: self.path.to_owned() }
    }

    pub(crate) fn served_by_device(self) -> ShmError {
        ShmError::ServedByDevice { attempt: self.attempt, path: self.path.to_owned() }
    }

    pub(crate) fn truncated(self, expected: u64, actual: u64) -> ShmError {
        ShmError::Truncated { attempt: self.attempt, path: self.path.to_owned(), expected, actual }
    }

    pub(crate) fn too_large(self, main_bytes: u64, device_bytes: u64) -> ShmError {
        ShmError::TooLarge { attempt: self.attempt, path: self.path.to_owned(), main_bytes, device_bytes }
    }
}
