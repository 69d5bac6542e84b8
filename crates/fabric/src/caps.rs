//! Capabilities of a region. Protocols branch on these values and never on the name of a backend.

use std::fmt;

/// The way in which masked compare-and-swap is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskedCas {
    /// By the network card (mlx5).
    Native,
    /// By the CPU that executes the verb (shared memory, TCP node).
    Software,
    /// Not supported: the caller uses plain [`crate::Verb::Cas`] and posts again with the word that it found.
    CasLoop,
}

/// The way in which a client that is presumed dead is fenced, so that none of its verbs takes effect any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The kernel has released the open-file-description lock on the owner's byte: the process has ended.
    OpenFileLock,
    /// The memory node has dropped the session.
    Session,
    /// An agent on the memory node has moved the queue pair to the error state.
    Agent,
    /// The test or the fault plan of the simulation decides.
    Model,
}

/// The guarantees and limits of a region, given by its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Whether verbs execute in place, in nanoseconds, so that reading one row at a time beats batching.
    pub local: bool,
    /// Bytes of one WRITE that the death of its client cannot tear; [`Caps::WHOLE_WRITE`] if no WRITE is ever torn.
    pub atomic_write_unit: u64,
    /// The way in which masked CAS is executed.
    pub masked_cas: MaskedCas,
    /// Whether READs of one batch sample memory in batch order. If they do, all verbs of a batch take effect in batch
    /// order; otherwise they are ordered as on one queue pair: [`crate::PairOrder`].
    pub ordered_read_sampling: bool,
    /// Bytes of device space that the backend can offer to a lock table.
    pub device_bytes: u64,
    /// The maximum number of verbs in one batch.
    pub max_batch: usize,
    /// The maximum number of words in one READ or WRITE.
    pub max_verb_words: usize,
    /// The way in which a dead client is fenced.
    pub fence: Fence,
}

impl Caps {
    /// The [`Caps::atomic_write_unit`] of a fabric that executes each WRITE completely or not at all.
    pub const WHOLE_WRITE: u64 = u64::MAX;
}

/// Named sets of [`Caps`]: those of each real fabric, which the heap and the simulator can imitate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Shared memory on one host.
    Shm,
    /// A software memory node over TCP.
    Tcp,
    /// An mlx5 network card: masked CAS and device memory.
    Mlx5,
    /// Soft-RoCE: no masked CAS, no device memory of its own.
    Rxe,
}

impl Profile {
    /// All profiles, local first.
    pub const ALL: [Profile; 4] = [Profile::Shm, Profile::Tcp, Profile::Mlx5, Profile::Rxe];
    /// The profiles whose verbs cross a network.
    pub const REMOTE: [Profile; 3] = [Profile::Tcp, Profile::Mlx5, Profile::Rxe];

    /// Returns the capabilities of this profile.
    pub const fn caps(self) -> Caps {
        match self {
            Profile::Shm => Caps {
                local: true,
                atomic_write_unit: 8,
                masked_cas: MaskedCas::Software,
                ordered_read_sampling: true,
                device_bytes: u64::MAX,
                max_batch: 4096,
                max_verb_words: usize::MAX,
                fence: Fence::OpenFileLock,
            },
            Profile::Tcp => Caps {
                local: false,
                atomic_write_unit: Caps::WHOLE_WRITE,
                masked_cas: MaskedCas::Software,
                ordered_read_sampling: true,
                device_bytes: u64::MAX,
                max_batch: 256,
                max_verb_words: 1 << 17,
                fence: Fence::Session,
            },
            // One path MTU of 4 KiB cannot be torn; device memory of a ConnectX-5 is 256 KiB (paper, section 2.2).
            Profile::Mlx5 => Caps {
                local: false,
                atomic_write_unit: 4096,
                masked_cas: MaskedCas::Native,
                ordered_read_sampling: false,
                device_bytes: 256 << 10,
                max_batch: 256,
                max_verb_words: 1 << 17,
                fence: Fence::Agent,
            },
            Profile::Rxe => Caps {
                local: false,
                atomic_write_unit: 1024,
                masked_cas: MaskedCas::CasLoop,
                ordered_read_sampling: false,
                device_bytes: u64::MAX,
                max_batch: 128,
                max_verb_words: 1 << 17,
                fence: Fence::Agent,
            },
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Profile::Shm => "shm",
            Profile::Tcp => "tcp",
            Profile::Mlx5 => "mlx5",
            Profile::Rxe => "rxe",
        })
    }
}
