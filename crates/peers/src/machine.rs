//! The machine a comparison runs on, as the kernel describes it.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::error::PeersError;

/// Properties of the machine that the figures depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors this process may run on.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of memory available to a new program without swapping.
    pub available_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// The kernel's setting for huge pages in shared memory files.
    pub shared_huge_pages: String,
    /// The kernel's setting for huge pages in anonymous memory.
    pub huge_pages: String,
    /// Tunables of the C library's allocator, which the maps use.
    pub malloc: String,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// Reads the properties of this machine. A property that the kernel does not report is empty or zero.
    #[must_use]
    pub fn detect() -> Machine {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let meminfo = text("/proc/meminfo");
        let huge = "/sys/kernel/mm/transparent_hugepage";
        Machine {
            processor: field(&text("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: cores().map_or(1, |cores| cores.len()),
            memory_bytes: kilobytes(&meminfo, "MemTotal"),
            available_bytes: kilobytes(&meminfo, "MemAvailable"),
            page_bytes: rustix::param::page_size(),
            shared_huge_pages: chosen(&text(&format!("{huge}/shmem_enabled"))),
            huge_pages: chosen(&text(&format!("{huge}/enabled"))),
            malloc: std::env::var("GLIBC_TUNABLES").unwrap_or_default(),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// The value after `name` and a colon.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The value of a line of /proc/meminfo, in bytes.
fn kilobytes(text: &str, name: &str) -> u64 {
    let number = field(text, name).and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

/// The word in brackets, as in `always [madvise] never`.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(String::new(), |(word, _)| word.to_owned())
}

/// The processors this thread may run on.
///
/// # Errors
/// Errors of the operating system.
pub fn cores() -> Result<Vec<usize>, PeersError> {
    let set = sched_getaffinity(None).map_err(|errno| PeersError::host("read the set of processors")(errno.into()))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Restricts a thread, or the calling one, to these processors.
///
/// # Errors
/// Errors of the operating system.
pub fn pin_thread(thread: Option<rustix::thread::Pid>, cores: &[usize]) -> Result<(), PeersError> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    sched_setaffinity(thread, &set).map_err(|errno| PeersError::host("set the processors of a thread")(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_reports_are_parsed() {
        assert_eq!(kilobytes("MemTotal:       24000000 kB\n", "MemTotal"), 24_000_000 << 10);
        assert_eq!(kilobytes("", "MemTotal"), 0);
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(field("model name\t: A B\n", "model name").as_deref(), Some("A B"));
        let machine = Machine::detect();
        assert!(machine.cores > 0 && machine.memory_bytes >= machine.available_bytes && machine.page_bytes >= 4096);
    }

    #[test]
    fn a_pinned_thread_stays_on_its_core() {
        let all = cores().unwrap();
        std::thread::spawn(move || {
            pin_thread(None, &all[..1]).unwrap();
            assert_eq!(cores().unwrap(), all[..1]);
            pin_thread(None, &all).unwrap();
            assert_eq!(cores().unwrap(), all);
        })
        .join()
        .unwrap();
    }
}
