//! Whose files are trusted: tables that data is put into, tokens, private keys.
//!
//! Invariant: a file's owner is asked of what was opened, never of a path that may lead elsewhere by now.

use guira_fabric_shm::ShmRegion;

use crate::options::Access;
use crate::{Error, OpenError, Url};

/// The user who owns everything that a system was installed with.
const ROOT: u32 = 0;
/// The user that stands for all who are not known, unless the kernel says another one.
const OVERFLOW: u32 = 65_534;

/// The users whose tables are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owners {
    /// For changing, this user and root; for reading, anybody.
    #[default]
    SelfOrRoot,
    /// This one, for changing and for reading.
    Named(u32),
    /// Anybody.
    Any,
}

impl Owners {
    /// Refuses the table at `url`, which was opened as `region`, if it belongs to somebody else.
    pub(crate) fn admit(self, url: &Url, region: &ShmRegion, access: Access) -> Result<(), Error> {
        if self == Owners::Any {
            return Ok(());
        }
        let owner_uid = region.info()?.owner_uid;
        let (is_admitted, wanted_uid) = match self {
            Owners::SelfOrRoot => (access == Access::ReadOnly || is_own_or_of_root(owner_uid), None),
            Owners::Named(uid) => (owner_uid == uid && is_known(uid), Some(uid)),
            Owners::Any => (true, None),
        };
        if is_admitted {
            Ok(())
        } else {
            Err(Error::Open(OpenError::Owner { url: url.clone(), owner_uid, wanted_uid }))
        }
    }
}

/// Whether a file of the user `uid` is one of this process's user, or of root, who can read and change all files
/// anyway.
pub(crate) fn is_own_or_of_root(uid: u32) -> bool {
    uid == ROOT || (uid == rustix::process::geteuid().as_raw() && is_known(uid))
}

/// Whether a file of the user `uid` belongs to one user only. In a user namespace that does not know all users, the
/// others look like one of them, who may be this process's user, too.
fn is_known(uid: u32) -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let stands_for_others = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(OVERFLOW) == uid;
    !stands_for_others || read("/proc/self/uid_map").split_ascii_whitespace().eq(["0", "0", "4294967295"])
}
