//! How many files this process may have open, and how many sessions that allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of a session: its socket, and what holds its client slots.
const FILES_OF_SESSION: u64 = 2;
/// Open files beside those of sessions: 256 connections without a session and 128 of the metrics, listeners, polls, the
/// table, and room for what the system opens in between.
const OTHER_FILES: u64 = 256 + 128 + 128;

/// Raises the limit on open files as far as `sessions` sessions need it and this process may; how many sessions that
/// allows, and the limit.
pub fn raise_limit(sessions: u32) -> (u32, Option<u64>) {
    let needed = u64::from(sessions) * FILES_OF_SESSION + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No limit is one that is high enough.
    let Some(before) = current.filter(|current| *current < needed) else { return (sessions, current) };
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed)).max(before);
    let limit = Rlimit { current: Some(raised), maximum };
    let allowed = if setrlimit(Resource::Nofile, limit).is_ok() { raised } else { before };
    (sessions_of(allowed).min(sessions), Some(allowed))
}

/// Sessions that fit in so many open files: one at least, because a node without any is none.
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
