//! Batches of verbs, and their results.
//!
//! Invariants: a parsed batch has as many verbs as its header says and nothing after them, no verb longer than
//! [`MAX_VERB_WORDS`], and a reply that fits one frame. The region checks bounds and alignment.

use crate::wire::{
    HEADER_WORDS, Header, Kind, MAX_BATCH_VERBS, MAX_FRAME_WORDS, MAX_VERB_WORDS, WireError, decode_addr, encode_addr,
};
use arrayvec::ArrayVec;
use guira_fabric::{Addr, FabricError, Verb};

/// The words at the start of each verb: its address, and its kind with its length.
const VERB_WORDS: usize = 2;

const READ: u64 = 0;
const WRITE: u64 = 1;
const CAS: u64 = 2;
const MASKED_CAS: u64 = 3;
const FETCH_ADD: u64 = 4;

/// The lengths of a batch's frame and of its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchShape {
    /// The words of the request, header included.
    pub request_words: usize,
    /// The words of the reply, header included.
    pub reply_words: usize,
}

impl BatchShape {
    /// Returns the shape of `batch`.
    ///
    /// # Errors
    /// `TooLarge` if the batch or its reply does not fit one frame.
    #[inline]
    pub fn of(batch: &[Verb<'_>]) -> Result<BatchShape, FabricError> {
        let mut shape = BatchShape { request_words: HEADER_WORDS, reply_words: HEADER_WORDS };
        let mut longest = 0;
        for verb in batch {
            let (operands, found) = match verb {
                Verb::Read { into, .. } => (0, into.len()),
                Verb::Write { words, .. } => (words.len(), 0),
                Verb::Cas { .. } => (2, 1),
                Verb::MaskedCas { .. } => (4, 1),
                Verb::FetchAdd { .. } => (1, 1),
            };
            longest = longest.max(operands).max(found);
            shape.request_words += VERB_WORDS + operands;
            shape.reply_words += found;
        }
        let fits = shape.request_words <= MAX_FRAME_WORDS && shape.reply_words <= MAX_FRAME_WORDS;
        if batch.is_empty() || batch.len() > MAX_BATCH_VERBS || longest > MAX_VERB_WORDS || !fits {
            return Err(FabricError::TooLarge { verbs: batch.len(), words: longest });
        }
        Ok(shape)
    }
}

/// Appends the frame of `batch` to `out`, which is unchanged after an error.
///
/// # Errors
/// `TooLarge` if the batch is empty, or it or its reply does not fit one frame.
#[inline]
pub fn encode_batch(out: &mut Vec<u64>, id: u64, batch: &[Verb<'_>]) -> Result<BatchShape, FabricError> {
    let shape = BatchShape::of(batch)?;
    out.reserve(shape.request_words);
    out.extend(Header { words: shape.request_words, kind: Kind::Batch, count: batch.len() as u16, id }.encode());
    for verb in batch {
        let addr = encode_addr(verb.addr());
        match verb {
            Verb::Read { into, .. } => out.extend([addr, READ | (into.len() as u64) << 32]),
            Verb::Write { words, .. } => {
                out.extend([addr, WRITE | (words.len() as u64) << 32]);
                out.extend_from_slice(words);
            }
            Verb::Cas { compare, swap, .. } => out.extend([addr, CAS | 1 << 32, *compare, *swap]),
            Verb::MaskedCas { compare, swap, compare_mask, swap_mask, .. } => {
                out.extend([addr, MASKED_CAS | 1 << 32, *compare, *swap, *compare_mask, *swap_mask]);
            }
            Verb::FetchAdd { add, .. } => out.extend([addr, FETCH_ADD | 1 << 32, *add]),
        }
    }
    Ok(shape)
}

/// Returns the words of the results of a batch whose body has `count` verbs: the length of the reply's body.
///
/// # Errors
/// `Body` if the body is too short, or it or its reply too long; `Value` for invalid verbs.
#[inline]
pub fn found_words(body: &[u64], count: u16) -> Result<usize, WireError> {
    let mut rest = body;
    let mut found = 0;
    for _ in 0..count {
        let (verb, behind) = Parsed::next(rest)?;
        found += verb.found;
        rest = behind;
    }
    let fits = found + HEADER_WORDS <= MAX_FRAME_WORDS && usize::from(count) <= MAX_BATCH_VERBS;
    if !rest.is_empty() || !fits || count == 0 {
        return Err(WireError::Body { what: "a batch of that many verbs", words: body.len() });
    }
    Ok(found)
}

/// Parses the verbs of a batch, which read their data from `body` and write their results to `found`, of the length
/// that [`found_words`] returned. Executed in order, they leave the reply's body there.
///
/// # Errors
/// Same as [`found_words`].
pub fn parse_batch<'b>(
    body: &'b [u64],
    count: u16,
    found: &'b mut [u64],
) -> Result<ArrayVec<Verb<'b>, MAX_BATCH_VERBS>, WireError> {
    let mut verbs = ArrayVec::new();
    parse_batch_into(&mut verbs, body, count, found)?;
    Ok(verbs)
}

/// Same as [`parse_batch`], into `verbs`, which is empty: a return value would copy 14 KiB, however few verbs there
/// are. After an error `verbs` has those before the invalid one.
///
/// # Errors
/// Same as [`found_words`].
#[inline]
pub fn parse_batch_into<'b>(
    verbs: &mut ArrayVec<Verb<'b>, MAX_BATCH_VERBS>,
    body: &'b [u64],
    count: u16,
    found: &'b mut [u64],
) -> Result<(), WireError> {
    let (mut rest, mut free) = (body, found);
    for _ in 0..count {
        let (Parsed { addr, kind, operands, found }, behind) = Parsed::next(rest)?;
        rest = behind;
        let too_long = WireError::Body { what: "a batch of that many verbs", words: body.len() };
        let (into, left) = std::mem::take(&mut free).split_at_mut_checked(found).ok_or(too_long)?;
        free = left;
        let verb = match (kind, operands, into) {
            (READ, _, into) => Verb::Read { addr, into },
            (WRITE, words, _) => Verb::Write { addr, words },
            (CAS, &[compare, swap], [found]) => Verb::Cas { addr, compare, swap, found },
            (MASKED_CAS, &[compare, swap, compare_mask, swap_mask], [found]) => {
                Verb::MaskedCas { addr, compare, swap, compare_mask, swap_mask, found }
            }
            (FETCH_ADD, &[add], [found]) => Verb::FetchAdd { addr, add, found },
            (kind, ..) => return Err(WireError::Value { what: "kind of verb", value: kind }),
        };
        verbs.try_push(verb).map_err(|_| too_long)?;
    }
    Ok(())
}

/// Copies the results of a batch from the body of its reply to the buffers of its verbs.
///
/// # Errors
/// `Body` if the length of the reply does not match the batch; the contents of the buffers are unspecified then.
#[inline]
pub fn decode_reply(body: &[u64], batch: &mut [Verb<'_>]) -> Result<(), WireError> {
    let wrong = WireError::Body { what: "the results of this batch", words: body.len() };
    let mut rest = body;
    for verb in batch {
        let words = match verb {
            Verb::Read { into, .. } => into.len(),
            Verb::Write { .. } => 0,
            _ => 1,
        };
        let (data, behind) = rest.split_at_checked(words).ok_or(wrong)?;
        rest = behind;
        match verb {
            Verb::Read { into, .. } => into.copy_from_slice(data),
            Verb::Write { .. } => {}
            Verb::Cas { found, .. } | Verb::MaskedCas { found, .. } | Verb::FetchAdd { found, .. } => **found = data[0],
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(wrong) }
}

/// A verb of a body.
struct Parsed<'b> {
    addr: Addr,
    kind: u64,
    operands: &'b [u64],
    /// The words of its results.
    found: usize,
}

impl<'b> Parsed<'b> {
    /// Parses the first verb of `body`; returns the rest of `body`, too.
    #[inline(always)]
    fn next(body: &'b [u64]) -> Result<(Parsed<'b>, &'b [u64]), WireError> {
        let cut = WireError::Body { what: "a verb", words: body.len() };
        let (&[addr, what], rest) = body.split_first_chunk::<VERB_WORDS>().ok_or(cut)?;
        let (kind, words) = (what as u32 as u64, (what >> 32) as usize);
        let (operands, found) = match kind {
            READ => (0, words),
            WRITE => (words, 0),
            CAS => (2, 1),
            MASKED_CAS => (4, 1),
            FETCH_ADD => (1, 1),
            _ => return Err(WireError::Value { what: "kind of verb", value: kind }),
        };
        let is_atomic = kind >= CAS;
        if words == 0 || words > MAX_VERB_WORDS || (is_atomic && words != 1) {
            return Err(WireError::Value { what: "length of a verb", value: words as u64 });
        }
        let (operands, rest) = rest.split_at_checked(operands).ok_or(cut)?;
        Ok((Parsed { addr: decode_addr(addr), kind, operands, found }, rest))
    }
}
