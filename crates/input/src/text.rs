//! Bytes as printable text, hexadecimal digits, and fields of JSON objects.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// Formats bytes for messages: quoted, with unprintable characters escaped, cut after `chars` characters.
pub fn printable(bytes: &[u8], chars: usize) -> String {
    // A character has at most 4 bytes.
    let head = &bytes[..bytes.len().min(4 * chars)];
    let text = String::from_utf8_lossy(head);
    let shown: String = text.chars().take(chars).collect();
    let cut = if shown.len() < text.len() || head.len() < bytes.len() { "…" } else { "" };
    format!("{shown:?}{cut}")
}

/// Bytes as a field of a JSON object: `name` if they are UTF-8, `name_b64` otherwise.
#[derive(Clone, Copy, Debug)]
pub struct JsonBytes<'b> {
    names: (&'static str, &'static str),
    bytes: &'b [u8],
}

impl<'b> JsonBytes<'b> {
    /// Creates the field of a key.
    pub fn key(bytes: &'b [u8]) -> JsonBytes<'b> {
        JsonBytes { names: ("key", "key_b64"), bytes }
    }

    /// Creates the field of a value.
    pub fn value(bytes: &'b [u8]) -> JsonBytes<'b> {
        JsonBytes { names: ("value", "value_b64"), bytes }
    }

    /// Adds the field to an object.
    ///
    /// # Errors
    /// The error of the serializer.
    pub fn add_to<M: SerializeMap>(self, map: &mut M) -> Result<(), M::Error> {
        match std::str::from_utf8(self.bytes) {
            Ok(text) => map.serialize_entry(self.names.0, text),
            Err(_) => map.serialize_entry(self.names.1, &STANDARD.encode(self.bytes)),
        }
    }
}

/// Serializes an object with this one field, to be flattened into others.
impl Serialize for JsonBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        self.add_to(&mut map)?;
        map.end()
    }
}

/// Decodes a string of hexadecimal digits, two per byte.
pub fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Encodes bytes as hexadecimal digits, two per byte.
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]).collect()
}

/// Decodes a base64 string, in the standard alphabet with padding.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hex_round_trips(bytes: Vec<u8>) {
            let text = to_hex(&bytes);
            prop_assert_eq!(from_hex(text.as_bytes()), Some(bytes.clone()));
            prop_assert_eq!(from_hex(text.to_uppercase().as_bytes()), Some(bytes));
        }

        #[test]
        fn printable_is_one_short_line(bytes: Vec<u8>) {
            let text = printable(&bytes, 10);
            prop_assert!(!text.contains('\n') && text.chars().count() <= 10 * 10 + 3, "{}", text);
        }
    }

    #[test]
    fn excerpts_are_cut() {
        assert_eq!(printable(b"short", 10), "\"short\"");
        assert_eq!(printable(b"a\tb\nc\xff", 10), "\"a\\tb\\nc\u{fffd}\"");
        assert_eq!(printable(&[b'x'; 100], 3), "\"xxx\"…");
    }

    #[test]
    fn json_has_text_or_base64() {
        let text = |bytes| serde_json::to_string(&JsonBytes::value(bytes)).unwrap();
        assert_eq!(text("ü".as_bytes()), "{\"value\":\"ü\"}");
        assert_eq!(text(b"\xff\0"), "{\"value_b64\":\"/wA=\"}");
        assert_eq!((from_base64("/wA="), from_base64("/wA"), from_base64("_wA=")), (Some(vec![255, 0]), None, None));
    }
}
