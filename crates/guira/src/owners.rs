//! Trust in the owners of files: tables that data is put into, tokens, private keys.
//!
//! Invariant: the owner is that of the opened file, never of a path, which may lead elsewhere by now.

use guira_fabric_shm::ShmRegion;

use crate::options::Access;
use crate::{Error, OpenError, Url};

/// The user id of root, who owns what the system was installed with.
const ROOT: u32 = 0;
/// The id of users that a user namespace does not map, unless the kernel is configured otherwise.
const OVERFLOW: u32 = 65_534;

/// The users whose tables may be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owners {
    /// This user and root for writing; any user for reading.
    #[default]
    SelfOrRoot,
    /// One user, for writing and for reading.
    Named(u32),
    /// Any user.
    Any,
}

impl Owners {
    /// Fails with `Owner` if the table at `url`, opened as `region`, belongs to a user that is not trusted.
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

/// Whether `uid` is this process's user, or root, who can read and change all files anyway.
pub(crate) fn is_own_or_of_root(uid: u32) -> bool {
    uid == ROOT || (uid == rustix::process::geteuid().as_raw() && is_known(uid))
}

/// Whether `uid` identifies a single user. In a user namespace that does not map all users, the others share one id,
/// which may also be that of this process's user.
pub(crate) fn is_known(uid: u32) -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let stands_for_others = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(OVERFLOW) == uid;
    !stands_for_others || read("/proc/self/uid_map").split_ascii_whitespace().eq(["0", "0", "4294967295"])
}
