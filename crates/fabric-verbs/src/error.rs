//! Errors of setting up: each says what was attempted, why it failed and what helps. Nothing that a region contains was
//! changed by any of them.

use std::io;

use guira_fabric::FabricError;

/// An error of opening a device, registering memory or connecting. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs is not installed, or misses a function.
    #[error(
        "cannot load {library}: {reason}; nothing was changed; install it (Debian, Ubuntu: apt-get install libibverbs1 \
         ibverbs-providers; Fedora, RHEL: dnf install libibverbs)"
    )]
    Library {
        /// The library's file name.
        library: &'static str,
        /// The error of the dynamic linker.
        reason: String,
    },
    /// There is no RDMA device of this name.
    #[error("there is no RDMA device {name}; nothing was changed; this machine has {}", listed(.found))]
    NoSuchDevice {
        /// The name that was asked for.
        name: String,
        /// The devices that exist.
        found: Vec<String>,
    },
    /// The device has no port of this number.
    #[error("RDMA device {device} has no port {port}, but ports 1 to {ports}; nothing was changed")]
    NoSuchPort {
        /// The device's name.
        device: String,
        /// The number that was asked for.
        port: u8,
        /// The number of ports.
        ports: u8,
    },
    /// The port is not active.
    #[error(
        "port {port} of RDMA device {device} is {state}, not active; nothing was changed; check its cable and link"
    )]
    PortDown {
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The port's state.
        state: &'static str,
    },
    /// The port has no address at this index of its GID table.
    #[error(
        "port {port} of RDMA device {device} has no GID at index {index}; nothing was changed; it has GIDs at {}",
        indices(.found)
    )]
    NoSuchGid {
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The index that was asked for.
        index: u32,
        /// The indices that have GIDs.
        found: Vec<u32>,
    },
    /// The port has no address that can be used by default.
    #[error(
        "port {port} of RDMA device {device} has no RoCE v2 or InfiniBand GID; nothing was changed; give its network \
         interface an IP address"
    )]
    NoUsableGid {
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
    },
    /// The device cannot execute what the protocol needs.
    #[error("RDMA device {device} does not support {what}; nothing was changed")]
    Unsupported {
        /// The device's name.
        device: String,
        /// The missing capability.
        what: &'static str,
    },
    /// The limit of locked memory is too small for a registration.
    #[error(
        "cannot lock {needed_bytes} bytes of memory for RDMA: the limit of locked memory is {limit_bytes} bytes; \
         nothing was changed; raise it (ulimit -l, LimitMEMLOCK= of systemd, or memlock in /etc/security/limits.conf)"
    )]
    Memlock {
        /// The bytes to be locked by all registrations of the call.
        needed_bytes: u64,
        /// The process's limit, `RLIMIT_MEMLOCK`.
        limit_bytes: u64,
    },
    /// There is no memory to be registered, or it cannot be reserved.
    #[error("cannot reserve memory for RDMA: {0}; nothing was changed")]
    Memory(FabricError),
    /// The two sides cannot be connected.
    #[error("cannot connect a queue pair: {reason}; nothing was changed")]
    Mismatch {
        /// The disagreement.
        reason: String,
    },
    /// A call of libibverbs or of the operating system failed.
    #[error("{call} on RDMA device {device} failed: {error}; nothing was changed")]
    System {
        /// The call that failed.
        call: &'static str,
        /// The device's name; `-` if there is none.
        device: String,
        /// The operating system's error.
        error: io::Error,
    },
    /// The process was forked after the device was opened.
    #[error("this process was forked after the RDMA device was opened; nothing was changed; open the device again")]
    Forked,
}

impl VerbsError {
    /// Whether this host can use no RDMA device at all, whatever the name that was asked for.
    #[must_use]
    pub fn is_without_devices(&self) -> bool {
        match self {
            VerbsError::Library { .. } => true,
            VerbsError::NoSuchDevice { found, .. } => found.is_empty(),
            _ => false,
        }
    }

    /// Whether there is too little memory, or too little of it may be locked, so that less may do.
    pub(crate) fn is_lack_of_memory(&self) -> bool {
        match self {
            VerbsError::Memory(error) => matches!(error, FabricError::NoMemory { .. }),
            VerbsError::Memlock { .. } => true,
            VerbsError::System { error, .. } => error.raw_os_error() == Some(libc::ENOMEM),
            _ => false,
        }
    }
}

fn listed(found: &[String]) -> String {
    if found.is_empty() { "none (is the driver loaded?)".to_owned() } else { found.join(", ") }
}

fn indices(found: &[u32]) -> String {
    if found.is_empty() {
        return "no index".to_owned();
    }
    found.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every error says what was attempted, that nothing was changed, and what helps.
    #[test]
    fn every_error_says_that_nothing_was_changed() {
        let device = || "mlx5_0".to_owned();
        let system = io::Error::from_raw_os_error(libc::EIO);
        let errors = [
            VerbsError::Library { library: "libibverbs.so.1", reason: "not found".to_owned() },
            VerbsError::NoSuchDevice { name: device(), found: vec![] },
            VerbsError::NoSuchPort { device: device(), port: 3, ports: 1 },
            VerbsError::PortDown { device: device(), port: 1, state: "down" },
            VerbsError::NoSuchGid { device: device(), port: 1, index: 9, found: vec![0, 1] },
            VerbsError::NoUsableGid { device: device(), port: 1 },
            VerbsError::Unsupported { device: device(), what: "atomics" },
            VerbsError::Memlock { needed_bytes: 4096, limit_bytes: 64 },
            VerbsError::Memory(FabricError::NoMemory { wanted: 2, available: 1, limiter: "it".to_owned() }),
            VerbsError::Mismatch { reason: "the MTUs differ".to_owned() },
            VerbsError::System { call: "ibv_create_qp", device: device(), error: system },
            VerbsError::Forked,
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("nothing was changed"), "{text}");
        }
    }

    #[test]
    fn errors_name_what_exists_and_what_is_needed() {
        let text = VerbsError::NoSuchDevice { name: "x".to_owned(), found: vec!["rxe0".into(), "rxe1".into()] };
        assert!(text.to_string().ends_with("this machine has rxe0, rxe1"));
        let text = VerbsError::NoSuchGid { device: "d".to_owned(), port: 1, index: 9, found: vec![0, 1] };
        assert!(text.to_string().ends_with("GIDs at 0, 1"));
        let text = VerbsError::Memlock { needed_bytes: 8192, limit_bytes: 4096 }.to_string();
        assert!(text.contains("8192 bytes") && text.contains("4096 bytes") && text.contains("ulimit -l"));
        let text = VerbsError::Library { library: "libibverbs.so.1", reason: String::new() }.to_string();
        assert!(text.contains("libibverbs1") && text.contains("ibverbs-providers"));
    }
}
