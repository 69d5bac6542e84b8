//! TSV: one line per record, with key, TAB, value.
//!
//! ```text
//! \t TAB    \n line feed    \r carriage return    \\ backslash    \xHH the byte of two hexadecimal digits
//! ```
//! The writer escapes these, every control character, every byte that is not UTF-8, and the first byte of a line that
//! would make the file look like another format or encoding, or its key like a byte order mark. The reader accepts these escapes;
//! any other byte stands for itself, except that a line may end in CR LF.

use std::io::{self, Write};

use super::lines::{BYTE_ORDER_MARK, Pair};
use super::{debian, other_encoding};

/// Parses a line, given without its line end.
pub(crate) fn read(line: &[u8]) -> Pair {
    let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
        let converter = match line.first() {
            Some(b'[') => "; jq makes lines of a JSON array: jq -c '.[]' FILE | guira load URL -",
            _ if line.contains(&b',') => {
                "; Miller converts CSV: mlr --icsv --otsv --ho cut -o -f KEY,VALUE FILE | guira load URL -"
            }
            _ => "",
        };
        return Err(format!("it has no TAB: expected key, TAB, value{converter}"));
    };
    let (key, value) = (&line[..tab], &line[tab + 1..]);
    if value.contains(&b'\t') {
        return Err("it has more than one TAB (write \\t for one in a value)".to_owned());
    }
    Ok((unescape(key)?, unescape(value)?))
}

/// Writes a record as a line.
///
/// # Errors
/// The error of the writer.
pub fn write(key: &[u8], value: &[u8], to: &mut impl Write) -> io::Result<()> {
    match key.split_first() {
        Some((first, rest))
            if *first == b'{'
                || debian::is_field(key)
                || key.starts_with(BYTE_ORDER_MARK)
                || other_encoding(key).is_some() =>
        {
            write!(to, "\\x{first:02x}")?;
            escape(rest, to)?;
        }
        _ => escape(key, to)?,
    }
    to.write_all(b"\t")?;
    escape(value, to)?;
    to.write_all(b"\n")
}

fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        bytes.extend_from_slice(&rest[..at]);
        let (byte, length) = escaped(&rest[at..])?;
        bytes.push(byte);
        rest = &rest[at + length..];
    }
    bytes.extend_from_slice(rest);
    Ok(bytes)
}

/// Decodes the escape at the start of `text`; returns the byte and the length of the escape.
fn escaped(text: &[u8]) -> Result<(u8, usize), String> {
    let digit = |at: usize| text.get(at).and_then(|byte| (*byte as char).to_digit(16)).map(|digit| digit as u8);
    match text.get(1) {
        Some(b't') => Ok((b'\t', 2)),
        Some(b'n') => Ok((b'\n', 2)),
        Some(b'r') => Ok((b'\r', 2)),
        Some(b'\\') => Ok((b'\\', 2)),
        Some(b'x') => match (digit(2), digit(3)) {
            (Some(high), Some(low)) => Ok((high << 4 | low, 4)),
            _ => Err("\\x is not followed by two hexadecimal digits".to_owned()),
        },
        Some(_) => Err("it has a backslash that is not one of \\t \\n \\r \\\\ \\xHH".to_owned()),
        None => Err("it ends a field with a lone backslash".to_owned()),
    }
}

fn escape(bytes: &[u8], to: &mut impl Write) -> io::Result<()> {
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid().as_bytes();
        while let Some(at) = rest.iter().position(|byte| byte.is_ascii_control() || *byte == b'\\') {
            to.write_all(&rest[..at])?;
            match rest[at] {
                b'\t' => to.write_all(b"\\t")?,
                b'\n' => to.write_all(b"\\n")?,
                b'\r' => to.write_all(b"\\r")?,
                b'\\' => to.write_all(b"\\\\")?,
                byte => write!(to, "\\x{byte:02x}")?,
            }
            rest = &rest[at + 1..];
        }
        to.write_all(rest)?;
        for byte in chunk.invalid() {
            write!(to, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(key: &[u8], value: &[u8]) -> String {
        let mut line = Vec::new();
        write(key, value, &mut line).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn csv_is_told_how_it_is_converted() {
        assert!(read(b"key,value").unwrap_err().contains("mlr --icsv"));
        assert_eq!(read(b"key value").unwrap_err(), "it has no TAB: expected key, TAB, value");
    }

    #[test]
    fn escapes_are_as_documented() {
        assert_eq!(written(b"a\tb", b"\n\r\\"), "a\\tb\t\\n\\r\\\\\n");
        assert_eq!(written("é".as_bytes(), b"\xff\0\x7f"), "é\t\\xff\\x00\\x7f\n");
        assert_eq!(written(b"{a{", b"{"), "\\x7ba{\t{\n");
        assert_eq!(written(b"Package: a", b"Package:"), "\\x50ackage: a\tPackage:\n");
        assert_eq!(written("\u{feff}a".as_bytes(), "\u{feff}".as_bytes()), "\\xef\\xbb\\xbfa\t\u{feff}\n");
        assert_eq!(written(b"BZh91AY&SY", b"BZh91AY&SY"), "\\x42Zh91AY&SY\tBZh91AY&SY\n");
        assert_eq!(written(b"", b""), "\t\n");
    }

    #[test]
    fn escapes_are_read() {
        let pair = |key: &[u8], value: &[u8]| Ok((key.to_vec(), value.to_vec()));
        assert_eq!(read(br"a\tb	\n\r\\\x41\xfF"), pair(b"a\tb", b"\n\r\\A\xff"));
        assert_eq!(read(b"\t"), pair(b"", b""));
        assert_eq!(read(b"raw \xff\tkept \0"), pair(b"raw \xff", b"kept \0"));
        for bad in [&b"none"[..], b"a\tb\tc", b"a\\\tb", b"a\tb\\", b"\\q\tb", b"\\x4\tb", b"\\xzz\tb", b""] {
            assert!(read(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
