//! Latencies of verbs: a model of one memory node's network card and of the network to it.
//!
//! A batch travels to the node, its verbs arrive one after the other, each occupies one direction of the node's link,
//! and when the last is done, the reply travels back. The link serves verbs of all clients in the order of their
//! arrival; atomics on one word are executed one after the other as well, which delays their replies.

use guira_fabric::{Profile, Space};

/// Latencies of a network and the capacity of the memory node's link. Times are nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The travel time from a client to the memory node.
    pub to_node_ns: u64,
    /// The travel time from the memory node to a client.
    pub to_client_ns: u64,
    /// Jitter, added to the travel time of each batch in each direction: a uniform draw below this.
    pub jitter_ns: u64,
    /// The longest time between the arrivals of two verbs of one batch: a uniform draw from 1 to this, so that verbs of
    /// other batches come in between.
    pub gap_ns: u64,
    /// Added to a reply that carries data, because the card waits for the node's memory.
    pub fetch_ns: u64,
    /// The shortest time for which a verb occupies its direction of the link.
    pub verb_ns: u64,
    /// The time for which an atomic occupies its word of the device space. Atomics on one word are executed one after
    /// the other.
    pub device_atomic_ns: u64,
    /// The time for which an atomic occupies its word of the main space.
    pub main_atomic_ns: u64,
    /// The time of one byte on the link, in picoseconds. A verb occupies its direction by its payload and
    /// [`HEADER_BYTES`].
    pub byte_ps: u64,
}

/// Bytes of a message besides its payload: between the 62 of a READ's reply and the 82 of a WRITE, as the paper's
/// authors account for them.
pub const HEADER_BYTES: u64 = 70;

impl Network {
    /// Returns the latencies of a real network.
    ///
    /// `Mlx5` is calibrated by figure 1(b) of the paper: 24 outstanding WRITEs give 11.0 million a second, so one takes
    /// 2.18 µs; READs and CAS give 8.9 million a second and take 2.7 µs; no verb of 8 bytes passes the card in less
    /// than 10 ns. By figure 1(c) one word sustains 8.97 million CAS a second in device memory and 2.93 million in main
    /// memory. The link is the paper's 100 Gbit/s. The other profiles are chosen orders of magnitude, not measurements:
    /// verbs on one host follow each other within tens of nanoseconds; soft-RoCE and a TCP node answer within tens of
    /// microseconds.
    pub const fn of(profile: Profile) -> Network {
        match profile {
            Profile::Shm => Network {
                to_node_ns: 5,
                to_client_ns: 0,
                jitter_ns: 100,
                gap_ns: 40,
                fetch_ns: 0,
                verb_ns: 0,
                device_atomic_ns: 20,
                main_atomic_ns: 20,
                byte_ps: 0,
            },
            Profile::Tcp => Network {
                to_node_ns: 10_000,
                to_client_ns: 10_000,
                jitter_ns: 4_000,
                gap_ns: 200,
                fetch_ns: 0,
                verb_ns: 100,
                device_atomic_ns: 50,
                main_atomic_ns: 50,
                byte_ps: 800,
            },
            Profile::Mlx5 => Network {
                to_node_ns: 1_000,
                to_client_ns: 1_000,
                jitter_ns: 160,
                gap_ns: 40,
                fetch_ns: 520,
                verb_ns: 10,
                device_atomic_ns: 111,
                main_atomic_ns: 341,
                byte_ps: 80,
            },
            Profile::Rxe => Network {
                to_node_ns: 12_000,
                to_client_ns: 12_000,
                jitter_ns: 6_000,
                gap_ns: 1_000,
                fetch_ns: 0,
                verb_ns: 500,
                device_atomic_ns: 500,
                main_atomic_ns: 500,
                byte_ps: 800,
            },
        }
    }

    /// Returns the time for which an atomic occupies its word.
    #[inline(always)]
    pub(crate) fn atomic_ns(&self, space: Space) -> u64 {
        if space == Space::Device { self.device_atomic_ns } else { self.main_atomic_ns }
    }

    /// Returns the time for which a verb with `words` words of payload occupies the link.
    #[inline(always)]
    pub(crate) fn occupied_ns(&self, words: u64) -> u64 {
        let bytes = words * guira_fabric::WORD_BYTES + HEADER_BYTES;
        self.verb_ns.max((bytes * self.byte_ps).div_ceil(1000))
    }
}
