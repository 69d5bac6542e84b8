//! The counters of a node, and their encoding.
//!
//! Each loop has cells of its own, which only it writes; a reader adds up all loops. Invariants: counters only grow;
//! new ones are appended, so that a client can read those it knows from a newer node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::wire::WireError;

/// The number of buckets of [`NodeCounters::answered_in`].
pub const LATENCY_BUCKETS: usize = 40;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $counter:ident $field:ident,)+) => {
        /// A counter of [`NodeCounters`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[doc = $doc])+ $counter,)+
        }

        const COUNTERS: usize = [$(Counter::$counter),+].len();

        /// The counters of a node since it was started.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct NodeCounters {
            $($(#[doc = $doc])+ pub $field: u64,)+
            /// Frames by the time from the readiness of their socket until their replies were handed to the kernel:
            /// bucket b counts those of less than 2^b nanoseconds that no earlier bucket counts; the last counts all
            /// others.
            pub answered_in: Buckets,
        }

        impl NodeCounters {
            /// Returns every counter with its name, in the order of the wire.
            pub fn named(&self) -> [(&'static str, u64); COUNTERS] {
                [$((stringify!($field), self.$field)),+]
            }

            fn named_mut(&mut self) -> [&mut u64; COUNTERS] {
                [$(&mut self.$field),+]
            }
        }
    };
}

counters! {
    /// Connections that were accepted.
    ConnectionsAccepted connections_accepted,
    /// Connections that were closed at once, because the node was shutting down.
    ConnectionsRefused connections_refused,
    /// Failures to accept a connection, usually because of too many open files.
    AcceptErrors accept_errors,
    /// Clients that were refused because they did not send their Hello in time.
    GreetedLate greeted_late,
    /// Clients that were refused because their first frame was not a Hello.
    GreetedWrongly greeted_wrongly,
    /// Clients that were refused because they speak another version of the protocol.
    RefusedVersion refused_version,
    /// Clients that were refused because of their token.
    RefusedToken refused_token,
    /// Clients that were refused because there were as many sessions as the node allows.
    RefusedFull refused_full,
    /// Sessions that started.
    SessionsOpened sessions_opened,
    /// Sessions that ended, for any reason.
    SessionsEnded sessions_ended,
    /// Sessions that were dropped on request.
    SessionsFenced sessions_fenced,
    /// Sessions that were dropped because the client did not read its replies.
    SessionsTooSlow sessions_too_slow,
    /// Sessions that were dropped because the client's machine was silent.
    SessionsCutOff sessions_cut_off,
    /// Sessions that were dropped because of a protocol error of the client.
    SessionsMisunderstood sessions_misunderstood,
    /// Batches that were executed.
    Batches batches,
    /// READs that were executed.
    Reads reads,
    /// WRITEs that were executed.
    Writes writes,
    /// CAS and masked CAS that were executed.
    Swaps swaps,
    /// FETCH-ADDs that were executed.
    Adds adds,
    /// Requests that were refused; nothing of them was executed.
    RequestsRefused requests_refused,
    /// Bytes that were received.
    BytesIn bytes_in,
    /// Bytes that were sent.
    BytesOut bytes_out,
    /// Client slots whose liveness was granted to a session.
    HoldsGranted holds_granted,
    /// Holds that were not granted because a living owner had the slot.
    HoldsTaken holds_taken,
    /// Client slots whose liveness a session released, or lost when it ended.
    HoldsEnded holds_ended,
    /// Fences that dropped a session.
    FencesDropped fences_dropped,
    /// Fences of a slot that no session had.
    FencesNoSession fences_no_session,
    /// Nanoseconds from the readiness of the socket until the replies were handed to the kernel, for each frame that
    /// `answered_in` counts.
    AnsweringNs answering_ns,
    /// Clients that were refused because they do not speak TLS, which the node requires.
    RefusedPlain refused_plain,
    /// Clients that were refused because they speak TLS, and the node does not.
    RefusedTls refused_tls,
    /// Clients whose TLS handshake failed: because of their certificate or the node's, or without a version or cipher
    /// in common.
    RefusedHandshake refused_handshake,
    /// Connections without a session that were closed to make room for another: from the same address, which had as
    /// many as it may have, or because there were as many in all as there may be; or because the access control had been
    /// replaced.
    ConnectionsShed connections_shed,
    /// 1 if bytes of the region were lost: then the node has stopped, or is about to.
    MemoryLost memory_lost,
    /// Clients that were refused because their address had as many sessions as it may have.
    RefusedAddress refused_address,
    /// Clients that were refused because they asked for another fabric: `rdma://` of a node over TCP, or the reverse.
    RefusedFabric refused_fabric,
}

/// A histogram by powers of two of nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets(pub [u64; LATENCY_BUCKETS]);

impl Default for Buckets {
    fn default() -> Buckets {
        Buckets([0; LATENCY_BUCKETS])
    }
}

impl NodeCounters {
    /// Returns the number of open sessions.
    pub fn sessions_open(&self) -> u64 {
        self.sessions_opened.saturating_sub(self.sessions_ended)
    }

    /// Encodes the body of [`crate::wire::Kind::Counted`]: the number of counters (low half) and buckets (high half),
    /// the counters in the order of [`NodeCounters::named`], the buckets.
    pub fn encode(&self) -> Vec<u64> {
        let mut words = vec![COUNTERS as u64 | (LATENCY_BUCKETS as u64) << 32];
        words.extend(self.named().map(|(_, count)| count));
        words.extend(self.answered_in.0);
        words
    }

    /// Decodes a body; unknown counters are ignored, and missing ones are 0.
    ///
    /// # Errors
    /// `Body` if it is invalid.
    pub fn decode(body: &[u64]) -> Result<NodeCounters, WireError> {
        let wrong = WireError::Body { what: "a node's counters", words: body.len() };
        let (&lengths, rest) = body.split_first().ok_or(wrong)?;
        let (counters, buckets) = (lengths as u32 as usize, (lengths >> 32) as usize);
        let (counts, times) = rest.split_at_checked(counters).ok_or(wrong)?;
        if times.len() != buckets {
            return Err(wrong);
        }
        let mut decoded = NodeCounters::default();
        for (to, from) in decoded.named_mut().into_iter().zip(counts) {
            *to = *from;
        }
        for (to, from) in decoded.answered_in.0.iter_mut().zip(times) {
            *to = *from;
        }
        Ok(decoded)
    }
}

/// The counters of one loop, on cache lines of their own.
#[repr(align(128))]
pub(super) struct LoopCounters {
    cells: [AtomicU64; COUNTERS],
    buckets: [AtomicU64; LATENCY_BUCKETS],
}

impl LoopCounters {
    pub(super) fn new() -> LoopCounters {
        let zero = |_| AtomicU64::new(0);
        LoopCounters { cells: std::array::from_fn(zero), buckets: std::array::from_fn(zero) }
    }

    /// Adds to a counter. Only the loop may call it, which is why a load and a store suffice.
    #[inline]
    pub(super) fn add(&self, counter: Counter, count: u64) {
        add(&self.cells[counter as usize], count);
    }

    /// Notes that `frames` frames were answered after `time`. Only the loop may call it.
    #[inline]
    pub(super) fn answered(&self, frames: u64, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - ns.leading_zeros()) as usize;
        add(&self.buckets[bucket.min(LATENCY_BUCKETS - 1)], frames);
        self.add(Counter::AnsweringNs, frames.saturating_mul(ns));
    }

    pub(super) fn sum<'l>(loops: impl IntoIterator<Item = &'l LoopCounters>) -> NodeCounters {
        let mut sum = NodeCounters::default();
        for one in loops {
            for (to, from) in sum.named_mut().into_iter().zip(&one.cells) {
                *to += from.load(Ordering::Relaxed);
            }
            for (to, from) in sum.answered_in.0.iter_mut().zip(&one.buckets) {
                *to += from.load(Ordering::Relaxed);
            }
        }
        sum
    }
}

#[inline]
fn add(cell: &AtomicU64, count: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_round_trip_and_unknown_ones_are_ignored() {
        let cells = LoopCounters::new();
        cells.add(Counter::Reads, 3);
        cells.add(Counter::FencesNoSession, 1);
        for (ns, frames) in [(0, 1), (1, 2), (1023, 4), (1024, 8), (u64::MAX, 16)] {
            cells.answered(frames, Duration::from_nanos(ns));
        }
        let counters = LoopCounters::sum([&cells, &cells]);
        assert_eq!((counters.reads, counters.fences_no_session, counters.adds), (6, 2, 0));
        assert_eq!(counters.answering_ns, 2 * 12_285);
        let buckets = &counters.answered_in.0;
        assert_eq!((buckets[0], buckets[1], buckets[10], buckets[11], buckets[39]), (2, 4, 8, 16, 32));
        let words = counters.encode();
        assert_eq!(NodeCounters::decode(&words), Ok(counters.clone()));
        let mut newer = words.clone();
        newer.insert(1 + COUNTERS, 77);
        newer.push(88);
        newer[0] += 1 | 1 << 32;
        assert_eq!(NodeCounters::decode(&newer), Ok(counters));
        assert!(NodeCounters::decode(&words[1..]).is_err() && NodeCounters::decode(&[]).is_err());
        assert!(NodeCounters::decode(&words[..words.len() - 1]).is_err());
    }
}
