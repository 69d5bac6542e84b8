//! The limit of locked memory, which bounds the bytes that a process without `CAP_IPC_LOCK` may register.

use crate::VerbsError;

/// Returns the process's limit of locked memory in bytes; `None` if there is none.
#[must_use]
pub fn memlock_limit_bytes() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (failed == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Returns the bytes that registrations of this process have locked; 0 if the kernel does not say.
pub(crate) fn locked_bytes() -> u64 {
    let pinned = |line: &str| line.strip_prefix("VmPin:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(pinned).unwrap_or(0).saturating_mul(1024)
}

/// Makes an error of registering `needed_bytes` say that the limit is too small, if the kernel's error says so.
pub(crate) fn explain(error: VerbsError, needed_bytes: u64) -> VerbsError {
    let is_refusal = matches!(&error, VerbsError::System { error, .. } if error.raw_os_error() == Some(libc::ENOMEM));
    match memlock_limit_bytes() {
        Some(limit_bytes) if is_refusal => VerbsError::Memlock { needed_bytes, limit_bytes },
        _ => error,
    }
}

/// Adds up the bytes that a call registers, so that the error of one registration says what all of them need.
pub(crate) fn of_all(error: VerbsError, all_bytes: u64) -> VerbsError {
    match error {
        VerbsError::Memlock { limit_bytes, .. } => VerbsError::Memlock { needed_bytes: all_bytes, limit_bytes },
        other => other,
    }
}
