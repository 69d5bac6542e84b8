//! Options of a connection.

use guira_fabric::{WORD_BYTES, Waiting};

use crate::VerbsError;

/// Options of a connection. The defaults lock 5.25 MiB of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// Work requests that the send queue holds, from 1 to 16,384, as far as the device allows. A batch has at most as
    /// many. Default: 256.
    pub queue_depth: u32,
    /// Lanes for which memory is locked at once, and by which it grows when there are more, up to 1,024 times: from
    /// 1 to 1,024. Default: 64.
    pub lanes: u16,
    /// Bytes of each lane's own buffer, from 8 to 1 MiB, rounded up to whole words. Default: 16 KiB.
    pub lane_bytes: u32,
    /// Buffers for batches that do not fit a lane's own, from 1 to 64. Default: 2.
    pub large_buffers: u16,
    /// Bytes of each of these, from `lane_bytes` to 64 MiB: the data of one batch at most. Default: 2 MiB + 128 KiB,
    /// one READ or WRITE of the longest length and room for its neighbours.
    pub large_bytes: u32,
    /// Bytes of a WRITE that are sent with the work request at most, instead of being fetched from the buffer, as far
    /// as the device allows. Default: 128.
    pub inline_bytes: u32,
    /// The way in which lanes wait unless they choose another. Default: [`Waiting::InPlace`], which has the shortest
    /// latency and uses a processor for about a round trip of a network card. After that, and from the start on a
    /// device in software, the thread that polls rests until the batch completes, if it is the only one in flight and
    /// the connection has no thread. With [`Waiting::Cooperative`] a thread of the connection sleeps on its completion
    /// channel and wakes the tasks.
    pub waiting: Waiting,
}

impl Default for ConnectionOptions {
    fn default() -> ConnectionOptions {
        ConnectionOptions {
            queue_depth: 256,
            lanes: 64,
            lane_bytes: 16 << 10,
            large_buffers: 2,
            large_bytes: (2 << 20) + (128 << 10),
            inline_bytes: 128,
            waiting: Waiting::default(),
        }
    }
}

impl ConnectionOptions {
    /// Returns the bytes of memory that a connection with these options locks.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        let rounded = |bytes: u32| u64::from(bytes).next_multiple_of(WORD_BYTES);
        u64::from(self.lanes) * rounded(self.lane_bytes) + u64::from(self.large_buffers) * rounded(self.large_bytes)
    }

    /// Checks that every option is within its bounds.
    ///
    /// # Errors
    /// `Mismatch`, with the first option that is not.
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        let bounds = [
            ("queue_depth", self.queue_depth, 1, 16_384),
            ("lanes", self.lanes.into(), 1, 1_024),
            ("lane_bytes", self.lane_bytes, 8, 1 << 20),
            ("large_buffers", self.large_buffers.into(), 1, 64),
            ("large_bytes", self.large_bytes, self.lane_bytes, 64 << 20),
        ];
        match bounds.iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            None => Ok(()),
            Some((name, value, least, most)) => {
                Err(VerbsError::Mismatch { reason: format!("{name} is {value}, not from {least} to {most}") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_bounds() {
        let options = ConnectionOptions::default();
        options.check().unwrap();
        assert_eq!(options.locked_bytes(), (5 << 20) + (256 << 10), "5.25 MiB, as the documentation says");
        assert_eq!(
            ConnectionOptions { lanes: 1, lane_bytes: 9, large_buffers: 1, large_bytes: 24, ..options }.locked_bytes(),
            40
        );
        let refused = |options: ConnectionOptions| options.check().unwrap_err().to_string();
        assert!(refused(ConnectionOptions { lanes: 0, ..options }).contains("lanes is 0, not from 1 to 1024"));
        assert!(refused(ConnectionOptions { queue_depth: 1 << 20, ..options }).contains("queue_depth"));
        assert!(refused(ConnectionOptions { large_bytes: 8, ..options }).contains("large_bytes"));
    }
}
