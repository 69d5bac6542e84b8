//! Encoding of a record's text into the bytes that a table stores.

use guira_layout::EntryFormat;

use super::{BadRecord, KEY_BYTES_MAX, Record, VALUE_BYTES_MAX, from_hex};

/// The notation of keys and values in an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// Raw bytes.
    Bytes,
    /// Hexadecimal digits, two per byte.
    Hex,
    /// Decimal numbers, stored little-endian.
    Numbers,
}

/// Encodes records from a notation to an entry format.
#[derive(Clone, Copy, Debug)]
pub struct RecordEncoder {
    format: EntryFormat,
    notation: Notation,
}

impl RecordEncoder {
    /// Creates an encoder from `notation` to a table of `format`.
    ///
    /// # Errors
    /// The reason why the format cannot store this notation.
    pub fn new(format: EntryFormat, notation: Notation) -> Result<RecordEncoder, String> {
        match (format, notation) {
            (EntryFormat::Bytes { .. }, Notation::Numbers) => {
                Err(format!("--numbers needs a table of a fixed format, but this one is {format}"))
            }
            _ => Ok(RecordEncoder { format, notation }),
        }
    }

    /// Whether the format has numbers: keys and values of fixed length.
    pub(crate) fn has_numbers(&self) -> bool {
        matches!(self.format, EntryFormat::Fixed { .. })
    }

    /// Returns the notation.
    pub fn notation(&self) -> Notation {
        self.notation
    }

    /// Encodes a record.
    ///
    /// # Errors
    /// The reason why the record cannot be stored.
    pub fn encode(&self, record: Record) -> Result<Record, BadRecord> {
        let (key, value) = match self.format {
            EntryFormat::Fixed { key_bytes, value_bytes } => {
                (Size::Exactly(key_bytes.into()), Size::Exactly(value_bytes.into()))
            }
            EntryFormat::Bytes { .. } => (Size::AtMost(KEY_BYTES_MAX), Size::AtMost(VALUE_BYTES_MAX)),
        };
        let key = self.stored("key", &record.key, key);
        let stored = key.and_then(|key| Ok((key, self.stored("value", &record.value, value)?)));
        match stored {
            Ok((key, value)) => {
                let (key, value) = (key.unwrap_or(record.key), value.unwrap_or(record.value));
                Ok(Record { key, value, line: record.line })
            }
            Err(reason) => {
                let value = &record.value[..record.value.len().min(EXCERPT_BYTES)];
                Err(BadRecord::new(record.line, &[&record.key[..], b"\t", value].concat(), reason))
            }
        }
    }

    /// Decodes `text`; returns `None` if the table stores `text` itself.
    fn stored(&self, name: &str, text: &[u8], size: Size) -> Result<Option<Vec<u8>>, String> {
        let (Size::Exactly(most) | Size::AtMost(most)) = size;
        let bytes = match self.notation {
            Notation::Bytes => None,
            Notation::Hex => {
                let digits = || format!("its {name} is not a hexadecimal string: two digits per byte");
                Some(from_hex(text).ok_or_else(digits)?)
            }
            Notation::Numbers => Some(little_endian(name, text, most)?),
        };
        let found = bytes.as_deref().unwrap_or(text).len();
        match size {
            Size::Exactly(wanted) if found != wanted => {
                let format = self.format;
                Err(format!(
                    "its {name} has {}, but the table ({format}) takes {name}s of exactly {wanted}",
                    of_bytes(found)
                ))
            }
            Size::AtMost(most) if found > most => {
                Err(format!("its {name} has {}, but the maximum is {most}", of_bytes(found)))
            }
            _ => Ok(bytes),
        }
    }
}

/// The size of keys or values that a table takes, in bytes.
#[derive(Clone, Copy)]
enum Size {
    Exactly(usize),
    AtMost(usize),
}

/// Maximum number of bytes of a value that an error shows.
const EXCERPT_BYTES: usize = 1024;

/// Encodes a decimal number in `wanted` bytes. If `wanted` is 0, only the empty text is accepted.
fn little_endian(name: &str, text: &[u8], wanted: usize) -> Result<Vec<u8>, String> {
    if wanted == 0 && text.is_empty() {
        return Ok(Vec::new());
    }
    let parsed = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number: u128 = parsed
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("its {name} is not a decimal number below 2^128"))?;
    let mut bytes = number.to_le_bytes().to_vec();
    if bytes.iter().skip(wanted).any(|byte| *byte != 0) {
        return Err(format!("its {name} is too large for {}", of_bytes(wanted)));
    }
    bytes.resize(wanted, 0);
    Ok(bytes)
}

/// Formats a size as `1 byte` or `2 bytes`.
fn of_bytes(number: usize) -> String {
    format!("{number} byte{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages say "1 byte", not "1 bytes".
    #[test]
    fn one_byte_is_singular() {
        let format = EntryFormat::Fixed { key_bytes: 1, value_bytes: 2 };
        let reason = |notation, key: &[u8], value: &[u8]| {
            let record = Record { key: key.to_vec(), value: value.to_vec(), line: 1 };
            RecordEncoder::new(format, notation).unwrap().encode(record).unwrap_err().reason
        };
        assert_eq!(
            reason(Notation::Bytes, b"a", b"b"),
            "its value has 1 byte, but the table (fixed:1:2) takes values of exactly 2"
        );
        assert!(reason(Notation::Bytes, b"ab", b"cd").starts_with("its key has 2 bytes, "));
        assert_eq!(reason(Notation::Numbers, b"256", b"1"), "its key is too large for 1 byte");
    }

    const FIXED: EntryFormat = EntryFormat::Fixed { key_bytes: 2, value_bytes: 20 };
    const BYTES: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };

    fn encoded(
        format: EntryFormat,
        notation: Notation,
        key: &[u8],
        value: &[u8],
    ) -> Result<(Vec<u8>, Vec<u8>), String> {
        let record = Record { key: key.to_vec(), value: value.to_vec(), line: 7 };
        let encoded = RecordEncoder::new(format, notation).unwrap().encode(record);
        encoded.map(|record| (record.key, record.value)).map_err(|bad| bad.to_string())
    }

    #[test]
    fn fixed_formats_take_exact_lengths() {
        let value = [b'v'; 20];
        assert_eq!(encoded(FIXED, Notation::Bytes, b"ab", &value), Ok((b"ab".to_vec(), value.to_vec())));
        assert_eq!(
            encoded(FIXED, Notation::Bytes, b"abc", b"x").unwrap_err(),
            "line 7 (\"abc\\tx\"): its key has 3 bytes, but the table (fixed:2:20) takes keys of exactly 2"
        );
        assert!(encoded(FIXED, Notation::Bytes, b"ab", b"x").unwrap_err().contains("its value has 1 byte,"));
    }

    #[test]
    fn numbers_are_little_endian() {
        let (key, value) = encoded(FIXED, Notation::Numbers, b"258", b"1").unwrap();
        assert_eq!((key, value.len(), value[0], value[1..].iter().max()), (vec![2, 1], 20, 1, Some(&0)));
        assert!(encoded(FIXED, Notation::Numbers, b"65535", b"0").is_ok());
        for key in [&b"65536"[..], b"", b"-1", b"+1", b"0x1", b"1.5", b"\xff"] {
            assert!(encoded(FIXED, Notation::Numbers, key, b"1").is_err(), "{}", String::from_utf8_lossy(key));
        }
        assert!(RecordEncoder::new(BYTES, Notation::Numbers).is_err());
        let keys_only = EntryFormat::Fixed { key_bytes: 8, value_bytes: 0 };
        assert!(encoded(keys_only, Notation::Numbers, b"1", b"").is_ok());
    }

    #[test]
    fn hexadecimal_digits_are_two_per_byte() {
        let digits = "0f".repeat(20);
        assert_eq!(encoded(FIXED, Notation::Hex, b"00fF", digits.as_bytes()), Ok((vec![0, 255], vec![15; 20])));
        assert_eq!(encoded(BYTES, Notation::Hex, b"", b"5c09"), Ok((vec![], b"\\\t".to_vec())));
        assert_eq!(
            encoded(FIXED, Notation::Hex, b"00ff11", b"").unwrap_err(),
            "line 7 (\"00ff11\\t\"): its key has 3 bytes, but the table (fixed:2:20) takes keys of exactly 2"
        );
        for key in [&b"0"[..], b"0g", b"0x", b" 0", b"\xff\xff"] {
            let error = encoded(BYTES, Notation::Hex, key, b"").unwrap_err();
            assert!(error.ends_with("its key is not a hexadecimal string: two digits per byte"), "{error}");
        }
        assert!(encoded(BYTES, Notation::Hex, b"00", b"0").unwrap_err().contains("its value is not a hexadecimal"));
        let digits = vec![b'0'; 2 * KEY_BYTES_MAX];
        assert_eq!(encoded(BYTES, Notation::Hex, &digits, b""), Ok((vec![0; KEY_BYTES_MAX], vec![])));
        let error = encoded(BYTES, Notation::Hex, &[&digits[..], b"00"].concat(), b"").unwrap_err();
        assert!(error.contains("its key has 65537 bytes"), "{error}");
    }

    #[test]
    fn byte_formats_take_any_length_up_to_the_maximum() {
        assert!(encoded(BYTES, Notation::Bytes, b"", b"").is_ok());
        assert!(encoded(BYTES, Notation::Bytes, &vec![b'k'; KEY_BYTES_MAX], b"").is_ok());
        let error = encoded(BYTES, Notation::Bytes, &vec![b'k'; KEY_BYTES_MAX + 1], b"").unwrap_err();
        assert!(error.contains("its key has 65537 bytes") && error.len() < 300, "{error}");
    }
}
