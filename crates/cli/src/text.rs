//! Keys and values as they stand in arguments: text, hexadecimal digits, or the bytes of a file.

use std::fs::File;
use std::io::{self, Read};

use guira::EntryFormat;
use guira_input::VALUE_BYTES_MAX;

use crate::failure::Failure;

/// How keys and values of arguments are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// UTF-8 text.
    Text,
    /// Two hexadecimal digits a byte.
    Hex,
}

impl Notation {
    /// The notation that `--hex` asks for.
    pub fn of_flag(hex: bool) -> Notation {
        if hex { Notation::Hex } else { Notation::Text }
    }

    /// The bytes of a key.
    pub fn key(self, text: &str, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        let key = self.bytes("key", text)?;
        match format {
            EntryFormat::Fixed { key_bytes, .. } => self.exactly("key", key, key_bytes, format),
            EntryFormat::Bytes { .. } => Ok(key),
        }
    }

    /// The bytes of a value: as written, or after an `@` those of a file.
    pub fn value(self, text: &str, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        let value = match text.strip_prefix('@') {
            Some(literal) if literal.starts_with('@') => self.bytes("value", literal)?,
            Some("-") => read_all("standard input", io::stdin().lock())?,
            Some(path) => {
                let file = File::open(path).map_err(|error| Failure::Misuse(format!("cannot open {path}: {error}")))?;
                read_all(path, file)?
            }
            None => self.bytes("value", text)?,
        };
        match format {
            EntryFormat::Fixed { value_bytes, .. } => self.exactly("value", value, value_bytes, format),
            EntryFormat::Bytes { .. } => Ok(value),
        }
    }

    fn bytes(self, what: &str, text: &str) -> Result<Vec<u8>, Failure> {
        match self {
            Notation::Text => Ok(text.as_bytes().to_vec()),
            Notation::Hex => from_hex(text).ok_or_else(|| {
                Failure::Misuse(format!("{what} {text:?} is no hexadecimal string: write two digits a byte"))
            }),
        }
    }

    fn exactly(self, what: &str, bytes: Vec<u8>, wanted: u16, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        if bytes.len() == usize::from(wanted) {
            return Ok(bytes);
        }
        let hint = match self {
            Notation::Text => "; --hex takes bytes that are no text",
            Notation::Hex => "",
        };
        let found = bytes.len();
        Err(Failure::Misuse(format!(
            "the {what} has {found} bytes, and the table ({format}) takes {what}s of exactly {wanted}{hint}"
        )))
    }
}

/// All bytes of a file that is to be one value.
fn read_all(name: &str, reader: impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let limit = VALUE_BYTES_MAX as u64 + 1;
    reader.take(limit).read_to_end(&mut bytes).map_err(Failure::host(format!("read {name}")))?;
    if bytes.len() > VALUE_BYTES_MAX {
        return Err(Failure::Misuse(format!("{name} has more than {VALUE_BYTES_MAX} bytes, the largest value")));
    }
    Ok(bytes)
}

/// The bytes of a string of hexadecimal digits, two a byte.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Two hexadecimal digits a byte.
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIXED: EntryFormat = EntryFormat::Fixed { key_bytes: 4, value_bytes: 2 };
    const BYTES: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };

    proptest! {
        #[test]
        fn hex_round_trips(bytes: Vec<u8>) {
            let text = to_hex(&bytes);
            prop_assert_eq!(from_hex(&text), Some(bytes.clone()));
            prop_assert_eq!(from_hex(&text.to_uppercase()), Some(bytes));
        }
    }

    #[test]
    fn keys_of_a_fixed_format_have_its_length() {
        assert_eq!(Notation::Text.key("abcd", FIXED).unwrap(), b"abcd");
        assert_eq!(Notation::Hex.key("00ff00FF", FIXED).unwrap(), [0, 255, 0, 255]);
        assert_eq!(Notation::Text.key("", BYTES).unwrap(), b"");
        let error = Notation::Text.key("abc", FIXED).unwrap_err().to_string();
        assert_eq!(
            error,
            "the key has 3 bytes, and the table (fixed:4:2) takes keys of exactly 4; --hex takes bytes that are no text"
        );
        for text in ["0", "zz", "0x01", "é0"] {
            let error = Notation::Hex.key(text, BYTES).unwrap_err().to_string();
            assert!(error.contains("two digits a byte"), "{error}");
        }
    }

    #[test]
    fn values_come_from_files_too() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"\0\xff").unwrap();
        let from_file = format!("@{}", file.path().display());
        assert_eq!(Notation::Text.value(&from_file, FIXED).unwrap(), b"\0\xff");
        assert_eq!(Notation::Hex.value(&from_file, FIXED).unwrap(), b"\0\xff");
        assert_eq!(Notation::Text.value("@@x", BYTES).unwrap(), b"@x");
        assert_eq!(Notation::Text.value("a@", FIXED).unwrap(), b"a@");
        let error = Notation::Text.value("@/no/such/file", BYTES).unwrap_err();
        assert!(matches!(error, Failure::Misuse(_)), "{error}");
    }
}
