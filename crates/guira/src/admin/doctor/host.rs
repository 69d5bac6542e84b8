//! Checks of the host: the limit of locked memory, and the space in `/dev/shm`.

use guira_fabric::{ByteCount, Waiting};
use guira_fabric_verbs::memlock_limit_bytes;

use super::DoctorCheck;
use crate::sessions::queue_options;

const SHM_DIRECTORY: &str = "/dev/shm";
/// The magic number of tmpfs.
const TMPFS: u64 = 0x0102_1994;
/// The number of the capability that frees a process from the limit of locked memory.
const CAP_IPC_LOCK: u32 = 14;
/// Registrations of a served region: one for each grant.
const REGISTRATIONS: u64 = 2;
/// Actions that raise the limit of locked memory.
const RAISE_LIMIT: &str = "as root: ulimit -l unlimited before the program starts; LimitMEMLOCK=infinity in a systemd \
                           unit; \"* - memlock unlimited\" in /etc/security/limits.conf for logins";

/// Facts about the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The limit of locked memory; `None` if there is none.
    pub(super) memlock_bytes: Option<u64>,
    /// Whether the process has the capability that the limit does not apply to.
    pub(super) is_exempt: bool,
    /// The file system of `/dev/shm`.
    pub(super) shm: Shm,
}

/// The file system of `/dev/shm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shm {
    /// Shared memory with these sizes in bytes; a size of 0 is unlimited.
    Mounted { free_bytes: u64, total_bytes: u64 },
    /// Shared memory that is mounted read-only.
    ReadOnly,
    /// Another file system.
    Foreign,
    /// It cannot be examined.
    Absent { reason: String },
}

impl Facts {
    pub(super) fn gather() -> Facts {
        Facts { memlock_bytes: memlock_limit_bytes(), is_exempt: is_exempt(), shm: Shm::gather() }
    }
}

impl Shm {
    fn gather() -> Shm {
        match (rustix::fs::statfs(SHM_DIRECTORY), rustix::fs::statvfs(SHM_DIRECTORY)) {
            // The kernel's magic numbers have 32 bits; the field's width and sign differ between architectures.
            (Ok(system), Ok(_)) if system.f_type as u64 & 0xffff_ffff != TMPFS => Shm::Foreign,
            (Ok(_), Ok(space)) if space.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) => Shm::ReadOnly,
            (Ok(_), Ok(space)) => Shm::Mounted {
                free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
                total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
            },
            (Err(errno), _) | (_, Err(errno)) => Shm::Absent { reason: std::io::Error::from(errno).to_string() },
        }
    }
}

/// Whether the process may lock memory beyond its limit: it has the capability, and is not in a user namespace, where
/// the capability does not count.
fn is_exempt() -> bool {
    let (status, map) = (std::fs::read_to_string("/proc/self/status"), std::fs::read_to_string("/proc/self/uid_map"));
    has_capability(&status.unwrap_or_default()) && is_initial_namespace(&map.unwrap_or_default())
}

fn has_capability(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|effective| effective >> CAP_IPC_LOCK & 1 == 1)
}

fn is_initial_namespace(uid_map: &str) -> bool {
    uid_map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Checks the limit of locked memory, for a client and for a server of `serve_bytes`.
pub(super) fn locked_memory(facts: &Facts, serve_bytes: Option<u64>) -> [DoctorCheck; 2] {
    const NAMES: [&str; 2] = ["locked memory of a client", "locked memory of a server"];
    let limit = match facts {
        Facts { memlock_bytes: None, .. } => Limit::None("there is no limit"),
        Facts { is_exempt: true, .. } => Limit::None("CAP_IPC_LOCK lifts the limit"),
        Facts { memlock_bytes: Some(bytes), .. } => Limit::Bytes(*bytes),
    };
    let needs = |name, needed: u64, of: String| {
        let needed_text = format!("{of} needs {}", ByteCount(needed));
        match limit {
            Limit::None(why) => DoctorCheck::fine(name, format!("{needed_text}, and {why}")),
            Limit::Bytes(limit) if limit >= needed => {
                DoctorCheck::fine(name, format!("{needed_text}, and the limit is {}", ByteCount(limit)))
            }
            Limit::Bytes(limit) => {
                let detail = format!("{needed_text}, but the limit is {}", ByteCount(limit));
                DoctorCheck::missing(name, detail).with_help(RAISE_LIMIT)
            }
        }
    };
    // A store has a session, and a blocking client another.
    let client_bytes = 2 * queue_options(Waiting::InPlace).locked_bytes();
    let client = needs(NAMES[0], client_bytes, "a store with a client".to_owned());
    let server = match (serve_bytes, limit) {
        (Some(bytes), _) => {
            needs(NAMES[1], bytes.saturating_mul(REGISTRATIONS), format!("a region of {}", ByteCount(bytes)))
        }
        (None, Limit::None(why)) => DoctorCheck::not_needed(NAMES[1], format!("twice the region; {why}")),
        (None, Limit::Bytes(bytes)) => {
            let most = ByteCount(bytes / REGISTRATIONS);
            let detail = format!("twice the region, so the limit is enough for a region of {most}");
            DoctorCheck::not_needed(NAMES[1], detail)
        }
    };
    [client, server]
}

/// The limit of locked memory that applies.
#[derive(Clone, Copy)]
enum Limit {
    Bytes(u64),
    /// None, for this reason.
    None(&'static str),
}

/// Checks `/dev/shm`, for a region of `serve_bytes`.
pub(super) fn shared_memory(facts: &Facts, serve_bytes: Option<u64>) -> DoctorCheck {
    const NAME: &str = "shared memory";
    let mount = "as root: mount -t tmpfs -o mode=1777 tmpfs /dev/shm";
    match &facts.shm {
        Shm::Mounted { total_bytes: 0, .. } => {
            DoctorCheck::fine(NAME, "/dev/shm has no limit but this machine's memory")
        }
        Shm::Mounted { free_bytes, total_bytes } => {
            let space = format!("/dev/shm has {} free of {}", ByteCount(*free_bytes), ByteCount(*total_bytes));
            match serve_bytes.filter(|bytes| bytes > free_bytes) {
                None => DoctorCheck::fine(NAME, space),
                Some(bytes) => DoctorCheck::missing(NAME, format!("{space}, but {} are needed", ByteCount(bytes)))
                    .with_help("as root: mount -o remount,size=SIZE /dev/shm; for a container: --shm-size SIZE"),
            }
        }
        Shm::ReadOnly => DoctorCheck::failed(NAME, "/dev/shm is mounted read-only")
            .with_help("as root: mount -o remount,rw /dev/shm"),
        Shm::Foreign => DoctorCheck::failed(NAME, "/dev/shm is not a tmpfs").with_help(mount),
        Shm::Absent { reason } => {
            DoctorCheck::missing(NAME, format!("/dev/shm cannot be examined: {reason}")).with_help(mount)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::CheckState;

    const MIB: u64 = 1 << 20;

    fn facts(memlock_bytes: Option<u64>, is_exempt: bool) -> Facts {
        Facts { memlock_bytes, is_exempt, shm: Shm::Mounted { free_bytes: 10 * MIB, total_bytes: 64 * MIB } }
    }

    #[test]
    fn a_store_and_a_client_need_four_and_three_quarter_mebibytes() {
        let [client, server] = locked_memory(&facts(Some(8 * MIB), false), None);
        assert_eq!(
            client,
            DoctorCheck::fine(client.name, "a store with a client needs 4.8 MiB, and the limit is 8.0 MiB")
        );
        assert_eq!(server.state, CheckState::NotNeeded);
        assert!(server.detail.ends_with("enough for a region of 4.0 MiB"), "{}", server.detail);
        assert_eq!(locked_memory(&facts(Some(5 * MIB - MIB / 4), false), None)[0].state, CheckState::Fine);
        let [client, _] = locked_memory(&facts(Some(5 * MIB - MIB / 4 - 1), false), None);
        assert_eq!(client.state, CheckState::Missing);
        assert!(client.help.unwrap().contains("LimitMEMLOCK"));
    }

    #[test]
    fn a_server_needs_twice_its_region() {
        let state = |limit, exempt, bytes| locked_memory(&facts(limit, exempt), Some(bytes))[1].state;
        assert_eq!(state(Some(8 * MIB), false, 4 * MIB), CheckState::Fine);
        assert_eq!(state(Some(8 * MIB), false, 4 * MIB + 1), CheckState::Missing);
        assert_eq!(state(Some(8 * MIB), true, 4 * MIB + 1), CheckState::Fine);
        assert_eq!(state(None, false, u64::MAX), CheckState::Fine);
        let unlimited = locked_memory(&facts(None, false), None);
        assert!(unlimited.iter().all(|check| check.detail.contains("no limit")), "{unlimited:?}");
        let exempt = locked_memory(&facts(Some(0), true), None);
        assert!(exempt.iter().all(|check| check.detail.contains("CAP_IPC_LOCK")), "{exempt:?}");
    }

    #[test]
    fn capabilities_count_outside_user_namespaces_only() {
        assert!(has_capability("Name:\tx\nCapEff:\t0000000000004000\n"));
        assert!(!has_capability("CapPrm:\tffffffffffffffff\nCapEff:\tffffffffffffbfff\n") && !has_capability(""));
        assert!(is_initial_namespace("         0          0 4294967295\n"));
        assert!(!is_initial_namespace("0 1000 1\n") && !is_initial_namespace(""));
    }

    #[test]
    fn shared_memory_is_fine_if_it_has_room() {
        let check = |shm, bytes| shared_memory(&Facts { shm, ..facts(None, false) }, bytes);
        let mounted = Shm::Mounted { free_bytes: 10 * MIB, total_bytes: 64 * MIB };
        let fine = DoctorCheck::fine("shared memory", "/dev/shm has 10.0 MiB free of 64.0 MiB");
        assert_eq!((check(mounted.clone(), None), check(mounted.clone(), Some(10 * MIB))), (fine.clone(), fine));
        let small = check(mounted, Some(10 * MIB + 1));
        assert!(small.state == CheckState::Missing && small.help.unwrap().contains("--shm-size"));
        let unlimited = Shm::Mounted { free_bytes: 0, total_bytes: 0 };
        assert_eq!(check(unlimited, Some(MIB)).state, CheckState::Fine);
        assert_eq!(check(Shm::Foreign, None).state, CheckState::Failed);
        let read_only = check(Shm::ReadOnly, None);
        assert!(read_only.state == CheckState::Failed && read_only.detail.contains("read-only"), "{read_only:?}");
        let absent = check(Shm::Absent { reason: "No such file".to_owned() }, None);
        assert!(absent.state == CheckState::Missing && absent.detail.contains("No such file") && absent.help.is_some());
    }
}
