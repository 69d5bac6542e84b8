//! The memory that a new region can take: what the machine has, and what control groups allow.
//!
//! A process that takes more is killed without a warning, and so may others be. The kernel charges the pages of tmpfs and
//! of memory files to the control group of the process that first touches them, and to each of its ancestors.

use std::fmt;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// A bound of the memory that this process can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// Bytes that are left.
    pub(crate) bytes: u64,
    pub(crate) of: Limiter,
}

/// The origin of a [`MemoryLimit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Limiter {
    Machine,
    /// The control group with this directory.
    ControlGroup(PathBuf),
}

impl fmt::Display for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limiter::Machine => f.write_str("this machine"),
            Limiter::ControlGroup(path) => write!(f, "the control group {}", path.display()),
        }
    }
}

/// Whether memory may be moved to swap space to make room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swap {
    Used,
    NotUsed,
}

/// Returns the tightest limit, as far as the kernel reports any.
pub(crate) fn tightest(swap: Swap) -> Option<MemoryLimit> {
    let groups = control_groups(Path::new("/proc/self")).into_iter().filter_map(|group| {
        let bytes = group.available_bytes()?;
        Some(MemoryLimit { bytes, of: Limiter::ControlGroup(group.directory) })
    });
    let machine = machine_bytes(&read_to_string("/proc/meminfo").unwrap_or_default(), swap);
    groups.chain(machine.map(|bytes| MemoryLimit { bytes, of: Limiter::Machine })).min_by_key(|limit| limit.bytes)
}

/// Returns the memory that can be taken by the kernel's estimate in `meminfo`, which is /proc/meminfo.
fn machine_bytes(meminfo: &str, swap: Swap) -> Option<u64> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let swap_bytes = if swap == Swap::Used { field("SwapFree").unwrap_or(0) } else { 0 };
    Some(field("MemAvailable")?.saturating_add(swap_bytes))
}

/// A control group that may limit memory.
#[derive(Debug, PartialEq, Eq)]
struct ControlGroup {
    directory: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl ControlGroup {
    /// Returns the bytes that the group may still take; `None` without a limit. Cached pages of files are given up
    /// before a group exceeds its limit. A little is left for page tables and for the rest of this process.
    fn available_bytes(&self) -> Option<u64> {
        let [limit, usage, cached] = match self.version {
            Version::V1 => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_"],
            Version::V2 => ["memory.max", "memory.current", ""],
        };
        let number = |name: &str| read_to_string(self.directory.join(name)).ok()?.trim().parse::<u64>().ok();
        let (limit_bytes, usage_bytes) = (number(limit)?, number(usage)?);
        let stat = read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let cached_bytes: u64 = stat
            .lines()
            .filter_map(|line| line.strip_prefix(cached)?.split_once(' '))
            .filter(|(name, _)| ["inactive_file", "active_file"].contains(name))
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum();
        let left = limit_bytes.saturating_sub(usage_bytes.saturating_sub(cached_bytes));
        Some(left.saturating_sub((left >> 8).saturating_add(1 << 20)))
    }
}

/// Returns the groups of the process whose directory in /proc is `process`, with their ancestors, as far as they are
/// mounted.
fn control_groups(process: &Path) -> Vec<ControlGroup> {
    let groups = read_to_string(process.join("cgroup")).unwrap_or_default();
    let mounts = read_to_string(process.join("mountinfo")).unwrap_or_default();
    let mut found = Vec::new();
    for (mount, root, version) in mounts.lines().filter_map(group_mount) {
        // The lines of /proc/PID/cgroup: hierarchy, controllers, path. Version 2 has hierarchy 0 and no controllers.
        let own = groups.lines().find_map(|line| {
            let (hierarchy, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_it = match version {
                Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
                Version::V2 => hierarchy == "0",
            };
            is_it.then(|| Path::new(path))
        });
        let Some(own) = own else { continue };
        // A path outside of the mounted part is that of the host, seen from a container: the mount is the container's.
        let directory = own.strip_prefix(root).map_or_else(|_| mount.to_owned(), |below| mount.join(below));
        let ancestors = directory.ancestors().take_while(|ancestor| ancestor.starts_with(mount));
        found.extend(ancestors.map(|ancestor| ControlGroup { directory: ancestor.to_owned(), version }));
    }
    found
}

/// Parses a line of /proc/PID/mountinfo: returns the mount point of a hierarchy that controls memory, the group that is
/// its root there, and its version.
fn group_mount(line: &str) -> Option<(&Path, &Path, Version)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (root, mount_point) = (fields.next()?, fields.next()?);
    let mut system = system.split(' ');
    let version = match (system.next()?, system.nth(1)?) {
        ("cgroup2", _) => Version::V2,
        ("cgroup", options) if options.split(',').any(|option| option == "memory") => Version::V1,
        _ => return None,
    };
    Some((Path::new(mount_point), Path::new(root), version))
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use guira_testing::ScratchFolder;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A file system with a process and its control groups.
    struct Fixture(ScratchFolder);

    impl Fixture {
        fn new(groups: &str, mounts: &[(&str, &str, &str)]) -> Fixture {
            let fixture = Fixture(ScratchFolder::new());
            let line = |(root, mount, system): &(&str, &str, &str)| {
                format!("36 35 0:30 {root} {}/{mount} rw,nosuid shared:9 - {system}\n", fixture.0.path().display())
            };
            write(fixture.0.path().join("cgroup"), groups).unwrap();
            write(fixture.0.path().join("mountinfo"), mounts.iter().map(line).collect::<String>()).unwrap();
            fixture
        }

        fn group(&self, directory: &str, files: &[(&str, String)]) {
            let directory = self.0.path().join(directory);
            create_dir_all(&directory).unwrap();
            files.iter().for_each(|(name, text)| write(directory.join(name), text).unwrap());
        }

        /// The bytes that each group leaves, with the end of its path.
        fn left(&self) -> Vec<(String, Option<u64>)> {
            let short = |path: &Path| path.strip_prefix(self.0.path()).unwrap().display().to_string();
            let groups = control_groups(self.0.path());
            groups.iter().map(|group| (short(&group.directory), group.available_bytes())).collect()
        }
    }

    fn rest(left: u64) -> Option<u64> {
        Some(left - left / 256 - MIB)
    }

    #[test]
    fn every_ancestor_of_a_group_of_version_2_limits_it() {
        let fixture = Fixture::new("0::/site/job\n", &[("/", "unified", "cgroup2 cgroup2 rw,nsdelegate")]);
        let usage = |bytes: u64| ("memory.current", format!("{bytes}\n"));
        fixture.group("unified", &[]);
        fixture.group("unified/site", &[("memory.max", format!("{}\n", 64 * MIB)), usage(60 * MIB)]);
        let stat = format!("anon 5\nactive_file {}\ninactive_file {MIB}\ninactive_anon 7\n", 2 * MIB);
        fixture.group("unified/site", &[("memory.stat", stat)]);
        fixture.group("unified/site/job", &[("memory.max", "max\n".to_owned()), usage(9)]);
        let wanted = [("unified/site/job", None), ("unified/site", rest(7 * MIB)), ("unified", None)];
        assert_eq!(fixture.left(), wanted.map(|(path, left)| (path.to_owned(), left)));
    }

    #[test]
    fn a_group_of_version_1_is_found_inside_a_container() {
        let mounts = [
            ("/docker/f00", "cpu", "cgroup cgroup rw,cpu,cpuacct"),
            ("/docker/f00", "memory", "cgroup cgroup rw,memory"),
            ("/", "unified", "cgroup2 cgroup2 rw"),
        ];
        for (own, below) in [("/docker/f00", ""), ("/docker/f00/job", "/job"), ("/elsewhere", "")] {
            let fixture = Fixture::new(&format!("4:cpu,cpuacct:{own}\n3:memory:{own}\n"), &mounts);
            let directory = format!("memory{below}");
            let files = [
                ("memory.limit_in_bytes", (32 * MIB).to_string()),
                ("memory.usage_in_bytes", (8 * MIB).to_string()),
                ("memory.stat", format!("inactive_file 5\ntotal_inactive_file {MIB}\ntotal_active_file 0\n")),
            ];
            fixture.group(&directory, &files);
            assert_eq!(fixture.left()[0], (directory, rest(25 * MIB)), "{own}");
        }
    }

    #[test]
    fn the_memory_of_the_machine_includes_swap_space_where_it_is_used() {
        let meminfo = "MemTotal: 99 kB\nMemAvailable:   50 kB\nSwapFree:  7 kB\n";
        assert_eq!(machine_bytes(meminfo, Swap::NotUsed), Some(50 << 10));
        assert_eq!(machine_bytes(meminfo, Swap::Used), Some(57 << 10));
        assert_eq!(machine_bytes("MemTotal: 99 kB\n", Swap::Used), None);
        assert!(tightest(Swap::NotUsed).is_none_or(|limit| limit.bytes > 0));
    }
}
