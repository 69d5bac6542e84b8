//! The notation of keys and values in arguments and answers: text, hexadecimal digits, decimal numbers, or the bytes of
//! a file.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Args;
use guira::EntryFormat;
use guira_input::{Record, RecordEncoder, VALUE_BYTES_MAX, from_hex, printable, to_hex};

use crate::failure::Failure;
use crate::input;
use crate::units::counted;

/// Maximum number of characters of a key in an answer.
const KEY_CHARS: usize = 80;
/// Size of the largest number in bytes.
const NUMBER_BYTES: usize = 16;

/// The options that choose the notation of keys and values.
#[derive(Clone, Copy, Debug, Args)]
pub struct NotationOptions {
    /// Write keys and values as hexadecimal digits, two per byte.
    #[arg(long)]
    hex: bool,
    /// Write keys and values as decimal numbers below 2^128, stored little-endian. For tables of a fixed format.
    #[arg(long, conflicts_with = "hex")]
    numbers: bool,
}

impl NotationOptions {
    /// Returns the chosen notation, if a table of `format` can have it.
    pub fn notation(&self, format: EntryFormat) -> Result<Notation, Failure> {
        self.encoder(format)?;
        Ok(match self.of_input() {
            guira_input::Notation::Bytes => Notation::Text,
            guira_input::Notation::Hex => Notation::Hex,
            guira_input::Notation::Numbers => Notation::Numbers,
        })
    }

    /// Returns the encoder from the chosen notation to a table of `format`.
    pub fn encoder(&self, format: EntryFormat) -> Result<RecordEncoder, Failure> {
        RecordEncoder::new(format, self.of_input()).map_err(Failure::Misuse)
    }

    /// Returns the options as words of a command line.
    pub fn words(&self) -> &'static [&'static str] {
        match self.of_input() {
            guira_input::Notation::Bytes => &[],
            guira_input::Notation::Hex => &["--hex"],
            guira_input::Notation::Numbers => &["--numbers"],
        }
    }

    fn of_input(&self) -> guira_input::Notation {
        match (self.hex, self.numbers) {
            (true, _) => guira_input::Notation::Hex,
            (false, true) => guira_input::Notation::Numbers,
            (false, false) => guira_input::Notation::Bytes,
        }
    }
}

/// The notation of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// The bytes themselves: text, usually.
    Text,
    /// Two hexadecimal digits per byte.
    Hex,
    /// Decimal numbers, stored little-endian.
    Numbers,
}

impl Notation {
    /// Formats bytes in this notation.
    pub fn written(self, bytes: &[u8]) -> Result<Cow<'_, [u8]>, Failure> {
        Ok(match self {
            Notation::Text => Cow::Borrowed(bytes),
            Notation::Hex => Cow::Owned(to_hex(bytes).into_bytes()),
            Notation::Numbers => Cow::Owned(number(bytes)?.into_bytes()),
        })
    }

    /// Formats a key for a message.
    pub fn shown(self, key: &[u8]) -> String {
        match self {
            Notation::Text => printable(key, KEY_CHARS),
            Notation::Hex => to_hex(key),
            Notation::Numbers => number(key).unwrap_or_else(|_| to_hex(key)),
        }
    }

    /// Parses a key.
    pub fn key(self, text: impl AsRef<OsStr>, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        let text = text.as_ref().as_bytes();
        let key = match (self, format) {
            (Notation::Numbers, EntryFormat::Fixed { key_bytes, .. }) => {
                let keys = EntryFormat::Fixed { key_bytes, value_bytes: 0 };
                little_endian(keys, text, b"")?.key
            }
            _ => self.bytes("key", text)?,
        };
        match format {
            EntryFormat::Fixed { key_bytes, .. } => self.exactly("key", key, key_bytes, format),
            EntryFormat::Bytes { .. } => Ok(key),
        }
    }

    /// Parses a value.
    pub fn value(self, text: impl AsRef<OsStr>, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        let text = text.as_ref().as_bytes();
        let value = match (self, format) {
            (Notation::Numbers, EntryFormat::Fixed { value_bytes, .. }) => {
                let values = EntryFormat::Fixed { key_bytes: 0, value_bytes };
                little_endian(values, b"", text)?.value
            }
            _ => self.bytes("value", text)?,
        };
        self.checked_value(value, format)
    }

    /// Reads a value from a file, as raw bytes in any notation; `-` is standard input.
    pub fn value_of_file(self, path: &Path, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        let value = if path == Path::new("-") {
            let name = "standard input";
            read_all(name, input::stdin().map_err(Failure::host(format!("read {name}")))?)?
        } else {
            let name = path.display().to_string();
            let file = File::open(path).map_err(Failure::host(format!("open {name}")))?;
            read_all(&name, file)?
        };
        self.checked_value(value, format)
    }

    /// Checks that a table of `format` can store a value, and returns it.
    fn checked_value(self, value: Vec<u8>, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        match format {
            EntryFormat::Fixed { value_bytes, .. } => self.exactly("value", value, value_bytes, format),
            EntryFormat::Bytes { .. } => Ok(value),
        }
    }

    fn bytes(self, what: &str, text: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            // Numbers are refused before unless the format is fixed.
            Notation::Text | Notation::Numbers => Ok(text.to_vec()),
            Notation::Hex => from_hex(text).ok_or_else(|| {
                let text = String::from_utf8_lossy(text);
                Failure::Misuse(format!("{what} {text:?} is not a hexadecimal string: write two digits per byte"))
            }),
        }
    }

    fn exactly(self, what: &str, bytes: Vec<u8>, wanted: u16, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        if bytes.len() == usize::from(wanted) {
            return Ok(bytes);
        }
        let hint = match self {
            Notation::Text => "; use --hex for bytes that are not text",
            Notation::Hex | Notation::Numbers => "",
        };
        let found = counted(bytes.len() as u64, "byte");
        Err(Failure::Misuse(format!(
            "the {what} has {found}, but the table ({format}) takes {what}s of exactly {wanted}{hint}"
        )))
    }
}

/// Encodes decimal numbers in the same way as `guira load`.
fn little_endian(format: EntryFormat, key: &[u8], value: &[u8]) -> Result<Record, Failure> {
    let encoder = RecordEncoder::new(format, guira_input::Notation::Numbers).map_err(Failure::Misuse)?;
    let record = Record { key: key.into(), value: value.into(), line: 1 };
    encoder.encode(record).map_err(|bad| Failure::Misuse(bad.reason.replacen("its ", "the ", 1)))
}

/// Formats stored bytes as a decimal number.
fn number(bytes: &[u8]) -> Result<String, Failure> {
    let (low, high) = bytes.split_at(bytes.len().min(NUMBER_BYTES));
    if bytes.is_empty() {
        // A value of a table without values.
        return Ok(String::new());
    }
    if high.iter().any(|byte| *byte != 0) {
        let hex = to_hex(bytes);
        return Err(Failure::Misuse(format!(
            "the bytes {hex} are not a number below 2^128; use --hex to print any bytes"
        )));
    }
    let mut number = [0; NUMBER_BYTES];
    number[..low.len()].copy_from_slice(low);
    Ok(u128::from_le_bytes(number).to_string())
}

/// Reads a whole file as one value.
fn read_all(name: &str, reader: impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let limit = VALUE_BYTES_MAX as u64 + 1;
    reader.take(limit).read_to_end(&mut bytes).map_err(Failure::host(format!("read {name}")))?;
    if bytes.len() > VALUE_BYTES_MAX {
        return Err(Failure::Misuse(format!("{name} has more than {VALUE_BYTES_MAX} bytes, the maximum for a value")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED: EntryFormat = EntryFormat::Fixed { key_bytes: 4, value_bytes: 2 };
    const BYTES: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };

    #[test]
    fn keys_of_a_fixed_format_have_its_length() {
        assert_eq!(Notation::Text.key("abcd", FIXED).unwrap(), b"abcd");
        assert_eq!(Notation::Hex.key("00ff00FF", FIXED).unwrap(), [0, 255, 0, 255]);
        assert_eq!(Notation::Text.key("", BYTES).unwrap(), b"");
        let error = Notation::Text.key("abc", FIXED).unwrap_err().to_string();
        assert_eq!(
            error,
            "the key has 3 bytes, but the table (fixed:4:2) takes keys of exactly 4; use --hex for bytes that are not \
             text"
        );
        for text in ["0", "zz", "0x01", "é0"] {
            let error = Notation::Hex.key(text, BYTES).unwrap_err().to_string();
            assert!(error.contains("two digits per byte"), "{error}");
        }
    }

    #[test]
    fn numbers_are_little_endian() {
        assert_eq!(Notation::Numbers.key("258", FIXED).unwrap(), [2, 1, 0, 0]);
        assert_eq!(Notation::Numbers.value("65535", FIXED).unwrap(), [255, 255]);
        assert_eq!(Notation::Numbers.written(&[2, 1, 0, 0]).unwrap(), b"258".to_vec());
        let largest = [[255; 16].to_vec(), vec![0; 4]].concat();
        assert_eq!(Notation::Numbers.written(&largest).unwrap(), u128::MAX.to_string().into_bytes());
        let message = |result: Result<Vec<u8>, Failure>| result.unwrap_err().to_string();
        assert_eq!(message(Notation::Numbers.value("65536", FIXED)), "the value is too large for 2 bytes");
        assert_eq!(message(Notation::Numbers.key("-1", FIXED)), "the key is not a decimal number below 2^128");
        assert!(Notation::Numbers.written(&[1; 17]).unwrap_err().to_string().contains("--hex"));
        let options = NotationOptions { hex: false, numbers: true };
        assert!(options.notation(FIXED).is_ok() && options.notation(BYTES).is_err());
    }

    #[test]
    fn values_come_from_files_too() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"\0\xff").unwrap();
        for notation in [Notation::Text, Notation::Hex, Notation::Numbers] {
            assert_eq!(notation.value_of_file(file.path(), FIXED).unwrap(), b"\0\xff", "{notation:?}");
        }
        std::fs::write(file.path(), b"three").unwrap();
        assert!(matches!(Notation::Text.value_of_file(file.path(), FIXED), Err(Failure::Misuse(_))));
        let error = Notation::Text.value_of_file(Path::new("/no/such/file"), BYTES).unwrap_err();
        assert!(matches!(error, Failure::Host { .. }), "{error}");
    }

    #[test]
    fn no_character_of_a_value_is_special() {
        for text in ["@/etc/hostname", "@-", "@@x", "a@", "-"] {
            assert_eq!(Notation::Text.value(text, BYTES).unwrap(), text.as_bytes());
        }
    }
}
