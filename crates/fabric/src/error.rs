//! What can go wrong between a client and the bytes, and whether it had an effect.

use std::fmt;

use crate::Addr;

/// What an operation that failed did to the remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing changed.
    None,
    /// The change was made.
    Done,
    /// Nobody here can know: the connection was lost after the change had been sent. It may also still be made, by
    /// whoever recovers the client that was lost, until somebody changes the same object.
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

/// A batch could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A verb reaches outside the region. The whole batch was refused.
    #[error("{verb} of {} at {addr} lies outside the region ({space_bytes} bytes); the batch was refused",
            counted(*words, "word"))]
    OutOfBounds {
        /// The verb's name.
        verb: &'static str,
        /// Where it starts.
        addr: Addr,
        /// How many words it touches.
        words: usize,
        /// The size of the space it addresses.
        space_bytes: u64,
    },
    /// A verb's address is not a multiple of 8. The whole batch was refused.
    #[error("{verb} at {addr} is not aligned to 8 bytes; the batch was refused")]
    Misaligned {
        /// The verb's name.
        verb: &'static str,
        /// Where it starts.
        addr: Addr,
    },
    /// The batch is longer than [`crate::Caps::max_batch`], or a verb longer than [`crate::Caps::max_verb_words`].
    #[error("a batch of {}, the longest of {}, exceeds the fabric's limits; it was refused", counted(*verbs, "verb"),
            counted(*words, "word"))]
    TooLarge {
        /// Verbs in the batch.
        verbs: usize,
        /// Words of its longest verb.
        words: usize,
    },
    /// The backend cannot execute this verb; see [`crate::Caps`].
    #[error("this fabric has no {verb}; the batch was refused")]
    Unsupported {
        /// The verb's name.
        verb: &'static str,
    },
    /// The lane was opened for reading only. The batch was refused.
    #[error("{verb} on a read-only lane; the batch was refused")]
    ReadOnly {
        /// The verb's name.
        verb: &'static str,
    },
    /// The process was forked after it opened the region: what it inherited is its parent's. The batch was refused.
    #[error("this process was forked after it opened the store; nothing was changed; open the store again")]
    Forked,
    /// The lane's client is dead: the fault plan cut its batch at a verb boundary or inside a WRITE.
    #[error("the client died in the middle of a batch ({effect})")]
    Died {
        /// What the batch did before it was cut.
        effect: Effect,
    },
    /// The connection to the memory node was lost.
    #[error("the connection to the memory node was lost ({effect})")]
    Disconnected {
        /// What the batch in flight did.
        effect: Effect,
    },
    /// The memory node dropped this client's session, for good: none of its verbs takes effect any more, and whoever
    /// asked for it has taken over the slots that the session held. // [R-RECOVER-1]
    #[error("the memory node shut this client out, and others took over what it held ({effect})")]
    Fenced {
        /// What the batch in flight did: [`Effect::None`] if it was sent after the session was dropped.
        effect: Effect,
    },
    /// The backend's own resources failed (mapping, descriptor, memory).
    #[error("{0}")]
    Backend(String),
}

/// `1 word`, `2 words`.
fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

impl FabricError {
    /// What the batch that failed did to the remote memory.
    pub fn effect(&self) -> Effect {
        match self {
            FabricError::Died { effect } | FabricError::Disconnected { effect } | FabricError::Fenced { effect } => {
                *effect
            }
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
