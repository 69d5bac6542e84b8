//! Refusals of requests. Nothing of a refused request was executed.

use guira_fabric::{Addr, FabricError, RESERVING, Space, printable};

use super::{Kind, WireError, append};

/// Maximum number of bytes of a refusal's text: a longer one is cut.
const MAX_TEXT_BYTES: usize = 512;

/// The names of verbs, and of other requests that may be refused, by their number in a refusal.
const VERB_NAMES: [&str; 9] =
    ["READ", "WRITE", "CAS", "MASKED CAS", "FETCH-ADD", "a hold", "a fence", "a batch of verbs over TCP", RESERVING];

const OUT_OF_BOUNDS: u64 = 1;
const MISALIGNED: u64 = 2;
const TOO_LARGE: u64 = 3;
const UNSUPPORTED: u64 = 4;
const READ_ONLY: u64 = 5;
const BACKEND: u64 = 6;
const NO_MEMORY: u64 = 7;

/// The reason why a request was refused, as the client's lane reports it.
pub type Refusal = FabricError;

/// Appends the frame that refuses request `id`.
pub fn encode_refusal(out: &mut Vec<u64>, id: u64, refusal: &Refusal) {
    let verb_number = |name: &str| VERB_NAMES.iter().position(|known| *known == name).unwrap_or(0) as u64;
    match refusal {
        FabricError::OutOfBounds { verb, addr, words, space_bytes } => {
            let body = [OUT_OF_BOUNDS, verb_number(verb), encode_addr(*addr), *words as u64, *space_bytes];
            append(out, Kind::Refused, id, &body);
        }
        FabricError::Misaligned { verb, addr } => {
            append(out, Kind::Refused, id, &[MISALIGNED, verb_number(verb), encode_addr(*addr)]);
        }
        FabricError::TooLarge { verbs, words } => {
            append(out, Kind::Refused, id, &[TOO_LARGE, *verbs as u64, *words as u64]);
        }
        FabricError::Unsupported { verb } => append(out, Kind::Refused, id, &[UNSUPPORTED, verb_number(verb)]),
        FabricError::ReadOnly { verb } => append(out, Kind::Refused, id, &[READ_ONLY, verb_number(verb)]),
        FabricError::NoMemory { wanted, available, limiter } => {
            let mut body = vec![NO_MEMORY, *wanted, *available];
            append_text(&mut body, limiter);
            append(out, Kind::Refused, id, &body);
        }
        other => {
            let mut body = vec![BACKEND];
            append_text(&mut body, &other.to_string());
            append(out, Kind::Refused, id, &body);
        }
    }
}

/// Appends the length of a text, and its bytes.
fn append_text(body: &mut Vec<u64>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(MAX_TEXT_BYTES)];
    body.push(bytes.len() as u64);
    body.extend(bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    }));
}

/// Decodes a text of `bytes` bytes.
fn decode_text(bytes: u64, text: &[u64]) -> Result<String, WireError> {
    let length = usize::try_from(bytes).ok().filter(|length| length.div_ceil(8) == text.len());
    let length = length.ok_or(WireError::Body { what: "a text", words: text.len() })?;
    let packed: Vec<u8> = text.iter().flat_map(|word| word.to_le_bytes()).take(length).collect();
    Ok(printable(&String::from_utf8_lossy(&packed)))
}

/// Decodes the body of a refusal.
///
/// # Errors
/// `Body` or `Value` if it is invalid.
pub fn decode_refusal(body: &[u64]) -> Result<Refusal, WireError> {
    let verb = |number: u64| {
        let name = usize::try_from(number).ok().and_then(|number| VERB_NAMES.get(number).copied());
        name.ok_or(WireError::Value { what: "kind of verb", value: number })
    };
    let count = |value: u64| usize::try_from(value).map_err(|_| WireError::Value { what: "count", value });
    match *body {
        [OUT_OF_BOUNDS, number, addr, words, space_bytes] => {
            let (verb, addr, words) = (verb(number)?, decode_addr(addr), count(words)?);
            Ok(FabricError::OutOfBounds { verb, addr, words, space_bytes })
        }
        [MISALIGNED, number, addr] => Ok(FabricError::Misaligned { verb: verb(number)?, addr: decode_addr(addr) }),
        [TOO_LARGE, verbs, words] => Ok(FabricError::TooLarge { verbs: count(verbs)?, words: count(words)? }),
        [UNSUPPORTED, number] => Ok(FabricError::Unsupported { verb: verb(number)? }),
        [READ_ONLY, number] => Ok(FabricError::ReadOnly { verb: verb(number)? }),
        [BACKEND, bytes, ref text @ ..] => Ok(FabricError::Backend(decode_text(bytes, text)?)),
        [NO_MEMORY, wanted, available, bytes, ref text @ ..] => {
            Ok(FabricError::NoMemory { wanted, available, limiter: decode_text(bytes, text)? })
        }
        _ => Err(WireError::Body { what: "a refusal", words: body.len() }),
    }
}

/// The bit of an address that says Device space.
const DEVICE_BIT: u64 = 1 << 63;

/// Encodes an address, of a verb or in a refusal.
#[inline(always)]
pub fn encode_addr(addr: Addr) -> u64 {
    match addr.space() {
        Space::Main => addr.offset(),
        Space::Device => addr.offset() | DEVICE_BIT,
    }
}

/// Decodes an address.
#[inline(always)]
pub fn decode_addr(word: u64) -> Addr {
    if word & DEVICE_BIT == 0 { Addr::main(word) } else { Addr::device(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_memory_keeps_its_numbers() {
        for limiter in ["", "/dev/shm", "the memory limit of a control group"] {
            let refusal = FabricError::NoMemory { wanted: 1 << 40, available: 3, limiter: limiter.to_owned() };
            let mut frame = Vec::new();
            encode_refusal(&mut frame, 1, &refusal);
            assert_eq!(decode_refusal(&frame[2..]), Ok(refusal));
        }
    }

    #[test]
    fn control_characters_of_a_text_are_escaped() {
        let hostile = "full\u{1b}[2J\u{7}\r\nok \u{9b}1m \u{202e}txt.exe é 東";
        let mut frame = Vec::new();
        encode_refusal(&mut frame, 1, &FabricError::Backend(hostile.to_owned()));
        let Ok(FabricError::Backend(text)) = decode_refusal(&frame[2..]) else { panic!("a refusal") };
        assert_eq!(text, "full\\u{1b}[2J\\u{7}\\u{d}\\u{a}ok \\u{9b}1m \\u{202e}txt.exe é 東");
        assert_eq!(printable("nothing was changed"), "nothing was changed");
    }
}
