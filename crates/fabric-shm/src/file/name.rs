//! The name of an open region: whether its path still leads to its file.
//!
//! A file can lose its name while it is mapped: a program for temporary files or the end of a login session removes it,
//! or a copy takes its place. Its memory stays usable, but no process that opens the path from then on finds it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::stat;
use rustix::io::Errno;

use crate::file::create::UNNAMED;
use crate::file::identity;

/// The way in which a region lost its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameLoss {
    /// No file has the name.
    Missing,
    /// Another file has the name.
    Replaced,
}

impl NameLoss {
    /// Returns the loss as a clause.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            NameLoss::Missing => "its file was removed or moved",
            NameLoss::Replaced => "its file was replaced by another one",
        }
    }
}

impl fmt::Display for NameLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of a region, shared by its handles and lanes. It keeps neither the file nor its mapping open.
#[derive(Debug)]
pub struct RegionName {
    /// The absolute path; `None` for a region without a name.
    path: Option<PathBuf>,
    /// Device and inode of the file.
    file: (u64, u64),
    /// Device and inode of this process's root directory at that time. Under another root the path means nothing.
    root: Option<(u64, u64)>,
    loss: OnceLock<NameLoss>,
}

impl RegionName {
    /// Creates the name of the file with the identity `file`, which was opened at `path`.
    pub(crate) fn new(path: &Path, file: (u64, u64)) -> RegionName {
        let path = if path == Path::new(UNNAMED) { None } else { std::path::absolute(path).ok() };
        RegionName { path, file, root: root(), loss: OnceLock::new() }
    }

    /// Looks whether the path leads to another file, or to none. `None` if it leads to the region, if the region never
    /// had a name, or if that cannot be told: without the permission to look, or under another root directory. One
    /// system call, or two.
    #[must_use]
    pub fn look(&self) -> Option<NameLoss> {
        let found = match stat(self.path.as_ref()?) {
            Ok(found) if identity(&found) == self.file => return None,
            Ok(_) => NameLoss::Replaced,
            Err(Errno::NOENT | Errno::NOTDIR) => NameLoss::Missing,
            Err(_) => return None,
        };
        (self.root.is_some() && root() == self.root).then_some(found)
    }

    /// Records that the name is lost, for good. Then [`RegionName::loss`] of every handle and lane of the region in
    /// this process returns the first recorded loss, and [`guira_fabric::Region::verify_bytes`] fails.
    pub fn record(&self, loss: NameLoss) {
        let _ = self.loss.set(loss);
    }

    /// Returns the loss that was recorded, if any.
    #[inline(always)]
    #[must_use]
    pub fn loss(&self) -> Option<NameLoss> {
        self.loss.get().copied()
    }
}

fn root() -> Option<(u64, u64)> {
    stat("/").ok().map(|found| identity(&found))
}
