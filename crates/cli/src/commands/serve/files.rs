//! The limit on open files, and the number of sessions it allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of a session: its socket, and the file that locks its client slots.
const FILES_OF_SESSION: u64 = 2;
/// Open files beside those of sessions: 256 connections without a session and 128 of the metrics, listeners, polls, the
/// table, and room for what the system opens in between.
const OTHER_FILES: u64 = 256 + 128 + 128;

/// Raises the limit on open files for `sessions` sessions, as far as this process may. Returns how many sessions the
/// limit allows, and the limit.
pub fn raise_limit(sessions: u32) -> (u32, Option<u64>) {
    let needed = u64::from(sessions) * FILES_OF_SESSION + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Without a limit, or with one that is high enough, there is nothing to do.
    let Some(before) = current.filter(|current| *current < needed) else { return (sessions, current) };
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed)).max(before);
    let limit = Rlimit { current: Some(raised), maximum };
    let allowed = if setrlimit(Resource::Nofile, limit).is_ok() { raised } else { before };
    (sessions_of(allowed).min(sessions), Some(allowed))
}

/// Returns how many sessions fit in `files` open files; at least one, because a node needs a session to be of use.
fn sessions_of(files: u64) -> u32 {
    u32::try_from(files.saturating_sub(OTHER_FILES) / FILES_OF_SESSION).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_allow_few_sessions() {
        assert_eq!([0, OTHER_FILES, OTHER_FILES + 20, u64::MAX].map(sessions_of), [1, 1, 10, u32::MAX]);
        let (sessions, limit) = raise_limit(1);
        assert!(sessions == 1 && limit.is_none_or(|limit| limit > 0));
    }
}
