//! Errors of a fabric, and the effect that the failed operation had.

use std::fmt;
use std::io;

use crate::Addr;
use crate::refusal::thread_refused;

/// The effect of a failed operation on the remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing changed.
    None,
    /// The change was made.
    Done,
    /// Unknown, because the connection was lost after the change had been sent. Until another client changes the same
    /// object, the change may still be made by the client that recovers the lost one.
    Unknown,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effect::None => "nothing was changed",
            Effect::Done => "the change was made",
            Effect::Unknown => "whether the change was made is unknown",
        })
    }
}

/// An error of a batch that could not be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A verb reaches outside the region. The whole batch was refused.
    #[error("{verb} of {} at {addr} lies outside the region ({space_bytes} bytes); the batch was refused",
            counted(*words, "word"))]
    OutOfBounds {
        /// The verb's name.
        verb: &'static str,
        /// The address at which it starts.
        addr: Addr,
        /// The number of words it touches.
        words: usize,
        /// The size of the space it addresses.
        space_bytes: u64,
    },
    /// A verb's address is not a multiple of 8. The whole batch was refused.
    #[error("{verb} at {addr} is not aligned to 8 bytes; the batch was refused")]
    Misaligned {
        /// The verb's name.
        verb: &'static str,
        /// The address at which it starts.
        addr: Addr,
    },
    /// The batch is longer than [`crate::Caps::max_batch`], or a verb longer than [`crate::Caps::max_verb_words`].
    #[error("a batch of {}, the longest with {}, exceeds the limits of the fabric; it was refused",
            counted(*verbs, "verb"), counted(*words, "word"))]
    TooLarge {
        /// Verbs in the batch.
        verbs: usize,
        /// Words in its longest verb.
        words: usize,
    },
    /// The backend cannot execute this verb; see [`crate::Caps`].
    #[error("this fabric does not support {verb}; the batch was refused")]
    Unsupported {
        /// The verb's name.
        verb: &'static str,
    },
    /// The lane was opened for reading only. The batch was refused.
    #[error("{verb} is not permitted on a region that was opened for reading only; nothing was changed")]
    ReadOnly {
        /// The verb's name.
        verb: &'static str,
    },
    /// The process was forked after the region was opened: the lanes and holds that it inherited belong to its parent.
    /// The batch was refused.
    #[error("this process was forked after the store was opened; nothing was changed; open the store again")]
    Forked,
    /// The lane's client is dead: the fault plan ended its batch at a verb boundary or inside a WRITE.
    #[error("the client died in the middle of a batch ({effect})")]
    Died {
        /// The effect of the batch before it was ended.
        effect: Effect,
    },
    /// The connection to the memory node was lost.
    #[error("the connection to the memory node was lost ({effect})")]
    Disconnected {
        /// The effect of the batch in flight.
        effect: Effect,
    },
    /// The connection to the memory node was lost, and its network card or driver gave a reason.
    #[error("the connection to the memory node was lost: {cause} ({effect})")]
    ConnectionFailed {
        /// The reason: `a work request failed: transport retry counter exceeded`.
        cause: String,
        /// The effect of the batch in flight.
        effect: Effect,
    },
    /// The memory node dropped this client's session for good: none of its verbs takes effect any more, and the client
    /// that asked for it has taken over the client slots that the session held. [R-RECOVER-1]
    #[error("the memory node dropped this client's session, and other clients took over its slots ({effect})")]
    Fenced {
        /// The effect of the batch in flight: [`Effect::None`] if it was sent after the session was dropped.
        effect: Effect,
    },
    /// There is no memory for more bytes of the region. Nothing was changed.
    #[error("it needs {}, and {limiter} has only {} free", crate::ByteCount(*wanted), crate::ByteCount(*available))]
    NoMemory {
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that are free for this user.
        available: u64,
        /// The directory, machine or control group that has too little.
        limiter: String,
    },
    /// A resource of the backend failed (mapping, descriptor, memory).
    #[error("{0}")]
    Backend(String),
}

/// Formats a number with its noun: `1 word`, `2 words`.
fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

impl FabricError {
    /// Returns the error that a thread could not be started.
    #[must_use]
    pub fn no_thread(error: &io::Error) -> FabricError {
        FabricError::Backend(format!("cannot start a thread: {}", thread_refused(error)))
    }

    /// Returns the effect of the failed batch on the remote memory.
    pub fn effect(&self) -> Effect {
        match self {
            FabricError::Died { effect }
            | FabricError::Disconnected { effect }
            | FabricError::ConnectionFailed { effect, .. }
            | FabricError::Fenced { effect } => *effect,
            _ => Effect::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_word_is_counted_in_the_singular() {
        let of =
            |words| FabricError::OutOfBounds { verb: "READ", addr: Addr::main(8), words, space_bytes: 8 }.to_string();
        assert!(of(1).starts_with("READ of 1 word at ") && of(2).starts_with("READ of 2 words at "), "{}", of(1));
    }
}
