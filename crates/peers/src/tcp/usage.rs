//! Processor time and context switches of a process, as counted by the kernel.

use std::fs;
use std::path::Path;

use crate::error::PeersError;

/// Resources that all threads of a process have used since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Nanoseconds of processor time.
    pub(super) cpu_ns: u64,
    /// Processor time in user mode, in clock ticks.
    pub(super) user_ticks: u64,
    /// Processor time in the kernel, in clock ticks.
    pub(super) kernel_ticks: u64,
    /// Number of times that a thread gave up its processor for want of work.
    pub(super) sleeps: u64,
}

impl Usage {
    /// Reads the usage of process `pid`. A running thread may lack the time since the last tick, so the process should
    /// be idle.
    ///
    /// # Errors
    /// There is no such process, or the kernel keeps no such statistics.
    pub(super) fn of(pid: u32) -> Result<Usage, PeersError> {
        let wrong = |what: &str| PeersError::peer(format!("read the usage of process {pid}"), format!("no {what}"));
        let process = Path::new("/proc").join(pid.to_string());
        let read = |path: &Path| fs::read_to_string(path).map_err(PeersError::host(format!("read {}", path.display())));
        let mut usage = Usage::default();
        let tasks = process.join("task");
        for task in fs::read_dir(&tasks).map_err(PeersError::host(format!("read {}", tasks.display())))? {
            let task = task.map_err(PeersError::host(format!("read {}", tasks.display())))?.path();
            let times = read(&task.join("schedstat"))?;
            let ran = times.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
            usage.cpu_ns += ran.ok_or_else(|| wrong("schedstat"))?;
            let status = read(&task.join("status"))?;
            let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            usage.sleeps +=
                sleeps.and_then(|count| count.trim().parse::<u64>().ok()).ok_or_else(|| wrong("switches"))?;
        }
        let stat = read(&process.join("stat"))?;
        (usage.user_ticks, usage.kernel_ticks) = ticks(&stat).ok_or_else(|| wrong("ticks"))?;
        Ok(usage)
    }

    /// The difference from `earlier`.
    pub(super) fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            user_ticks: self.user_ticks.saturating_sub(earlier.user_ticks),
            kernel_ticks: self.kernel_ticks.saturating_sub(earlier.kernel_ticks),
            sleeps: self.sleeps.saturating_sub(earlier.sleeps),
        }
    }
}

/// The ticks of user and of kernel time in a line of /proc/PID/stat, whose second field may contain any text.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    /// Fields between the program's name and its user time.
    const BEFORE: usize = 11;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(BEFORE).map(str::parse);
    Some((times.next()?.ok()?, times.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_is_counted_and_idling_is_not() {
        // The child works, reports it, and then idles. This process would not do: threads of other tests come and go.
        let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; read line; read line";
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let started = Usage::of(child.id()).unwrap();
        let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        assert_eq!(BufReader::new(output).lines().next().unwrap().unwrap(), "done");
        let mut worked = Usage::of(child.id()).unwrap().since(&started);
        // Ends when the child waits for its input.
        while worked.sleeps == 0 {
            std::thread::yield_now();
            worked = Usage::of(child.id()).unwrap().since(&started);
        }
        assert!(worked.cpu_ns > 5_000_000, "{worked:?}");
        input.write_all(b"\n").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let idled = Usage::of(child.id()).unwrap().since(&started);
        assert!(idled.cpu_ns - worked.cpu_ns < worked.cpu_ns / 2, "{worked:?} {idled:?}");
        drop(input);
        child.wait().unwrap();
        assert!(Usage::of(u32::MAX).is_err());
    }

    #[test]
    fn a_program_name_may_contain_any_text() {
        let line = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 77 88 0 0";
        assert_eq!(ticks(line), Some((77, 88)));
        assert_eq!(ticks("12 (a) S 1"), None);
    }
}
