//! Records as text: TSV, JSON lines, or Debian control records.
//!
//! This crate owns the text formats of keys and values, and nothing else: it opens no files and no tables. Input is
//! read as a stream: one line (or one Debian record) is held at a time, and no more than [`LINE_BYTES_MAX`] of it.
//!
//! Invariants: the output of [`tsv::write`] and [`jsonl::write`] is read back byte for byte, and its format is
//! detected. The error of an unreadable record names its line and shows its beginning; the records after it can be
//! read.

#![forbid(unsafe_code)]

mod debian;
mod encoder;
pub mod jsonl;
mod lines;
mod text;
pub mod tsv;

use std::fmt;
use std::io::{self, BufRead};

pub use encoder::{Notation, RecordEncoder};
use lines::{BYTE_ORDER_MARK, Lines};
pub use text::{JsonBytes, from_hex, printable, to_hex};

/// Maximum size of a key in a table of format `bytes:N`, in bytes.
pub const KEY_BYTES_MAX: usize = guira_layout::MAX_KEY_BYTES;
/// Maximum size of a value in a table of format `bytes:N`, in bytes.
pub const VALUE_BYTES_MAX: usize = guira_layout::MAX_VALUE_BYTES;
/// Maximum size of a line, in bytes: the largest key and value with six characters per byte, as in `\u0000`.
pub const LINE_BYTES_MAX: usize = 6 * (KEY_BYTES_MAX + VALUE_BYTES_MAX) + 4096;
/// Maximum number of characters of a bad record that its error shows.
const EXCERPT_CHARS: usize = 60;

/// A key and a value, with their position in the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The line at which the record starts, from 1.
    pub line: u64,
}

/// The format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFormat {
    /// One line per record: key, TAB, value, with \t \n \r \\ \xHH as escapes.
    Tsv,
    /// One JSON object per record: {"key" or "key_b64", "value" or "value_b64"}.
    Jsonl,
    /// Debian control records, as `apt-cache dumpavail` prints them: key is the package's name, value the whole record.
    Debian,
}

impl InputFormat {
    /// Every format.
    pub const ALL: [InputFormat; 3] = [InputFormat::Tsv, InputFormat::Jsonl, InputFormat::Debian];
}

impl fmt::Display for InputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InputFormat::Tsv => "tsv",
            InputFormat::Jsonl => "jsonl",
            InputFormat::Debian => "debian",
        })
    }
}

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// The line at which it starts, from 1.
    pub line: u64,
    /// The beginning of the record.
    pub excerpt: String,
    /// The reason why it cannot be read.
    pub reason: String,
}

impl BadRecord {
    fn new(line: u64, content: &[u8], reason: impl Into<String>) -> BadRecord {
        BadRecord { line, excerpt: printable(content, EXCERPT_CHARS), reason: reason.into() }
    }
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} ({}): {}", self.line, self.excerpt, self.reason)
    }
}

/// The error of reading an input.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A record is invalid; the records after it can be read.
    #[error("{0}")]
    Bad(BadRecord),
    /// The input is not text in UTF-8, as its first bytes show; none of it was read.
    #[error("{name} is {encoding}")]
    NotText {
        /// The name of the input.
        name: String,
        /// The encoding that the first bytes show, in words.
        encoding: &'static str,
        /// The command that writes the text in UTF-8, without its last argument.
        converter: &'static str,
    },
    /// The input cannot be read any further.
    #[error("cannot read {name}: {source}")]
    Read {
        /// The name of the input.
        name: String,
        /// The system's error.
        r#source: io::Error,
    },
}

/// An iterator over the records of an input.
pub struct Records<R> {
    lines: Lines<R>,
    name: String,
    format: InputFormat,
    encoder: RecordEncoder,
    /// Whether the first bytes are known to be those of text.
    is_checked: bool,
    failed: bool,
}

impl<R: BufRead> Records<R> {
    /// Creates an iterator over the records of `reader`; `name` is its name in errors. If `format` is `None`, it is
    /// detected from the first bytes.
    ///
    /// # Errors
    /// `Read` if the first bytes cannot be read, `NotText` if they are those of a compressed file or of text in UTF-16 or
    /// UTF-32, which would be stored as other keys than it has. With a `format`, the first record reports both.
    pub fn new(
        reader: R,
        name: &str,
        format: Option<InputFormat>,
        encoder: RecordEncoder,
    ) -> Result<Records<R>, InputError> {
        let mut lines = Lines::new(reader);
        let is_checked = format.is_none();
        let format = match format {
            Some(format) => format,
            None => detect_format(text_head(&mut lines, name)?),
        };
        Ok(Records { lines, name: name.to_owned(), format, encoder, is_checked, failed: false })
    }

    /// Sets the maximum length of a line; a longer line is a bad record. The default is [`LINE_BYTES_MAX`].
    pub fn with_max_line_bytes(mut self, bytes: usize) -> Records<R> {
        self.lines.set_max_line_bytes(bytes);
        self
    }

    /// Returns the format that was given or detected.
    pub fn format(&self) -> InputFormat {
        self.format
    }

    /// Returns the number of bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.lines.position()
    }

    fn read(&mut self) -> Result<Option<Record>, InputError> {
        if !self.is_checked {
            self.failed = true;
            text_head(&mut self.lines, &self.name)?;
            (self.is_checked, self.failed) = (true, false);
        }
        let read = match self.format {
            InputFormat::Tsv => self.lines.record(tsv::read),
            InputFormat::Jsonl => self.lines.record(|text| jsonl::read(text, &self.encoder)),
            InputFormat::Debian => debian::read(&mut self.lines),
        };
        match read {
            Ok(Some(Ok(record))) => self.encoder.encode(record).map(Some).map_err(InputError::Bad),
            Ok(Some(Err(bad))) => Err(InputError::Bad(bad)),
            Ok(None) => Ok(None),
            Err(source) => {
                self.failed = true;
                Err(InputError::Read { name: self.name.clone(), source })
            }
        }
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<Record, InputError>;

    fn next(&mut self) -> Option<Result<Record, InputError>> {
        if self.failed { None } else { self.read().transpose() }
    }
}

/// The first bytes of an input, which are those of text in UTF-8.
fn text_head<'l, R: BufRead>(lines: &'l mut Lines<R>, name: &str) -> Result<&'l [u8], InputError> {
    let head = lines.peek().map_err(|source| InputError::Read { name: name.to_owned(), source })?;
    match other_encoding(head) {
        Some((encoding, converter)) => Err(InputError::NotText { name: name.to_owned(), encoding, converter }),
        None => Ok(head),
    }
}

/// First bytes of files that are not text in UTF-8, their names, and the commands that make such text of them.
const OTHER_ENCODINGS: [(&[u8], &str, &str); 15] = [
    (b"\xff\xfe\0\0", "text in UTF-32", "iconv -f UTF-32 -t UTF-8"),
    (b"\0\0\xfe\xff", "text in UTF-32", "iconv -f UTF-32 -t UTF-8"),
    (b"\xff\xfe", "text in UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\x1f\x8b", "compressed by gzip", "gzip -dc"),
    (b"\x1f\x9d", "compressed by compress", "gzip -dc"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -dc"),
    (b"\x02\x21\x4c\x18", "compressed by lz4", "lz4 -dc"),
    (b"\xfd7zXZ\0", "compressed by xz", "xz -dc"),
    (b"\x5d\0\0", "compressed by lzma", "xz -dc"),
    (b"LZIP\x01", "compressed by lzip", "lzip -dc"),
    (b"\x89LZO\0", "compressed by lzop", "lzop -dc"),
    (b"PK\x03\x04", "a zip archive", "unzip -p"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x -so"),
];
/// Characters at the start of a text in UTF-16 or UTF-32 without a byte order mark that show what it is.
const SAMPLE_CHARS: usize = 4;

/// The encoding of an input whose first bytes are not those of text in UTF-8, and the command that converts it.
fn other_encoding(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let known = OTHER_ENCODINGS.iter().find(|(magic, ..)| head.starts_with(magic));
    let is_bzip2 = head.starts_with(b"BZh") && head.get(4..10) == Some(b"1AY&SY");
    // The name of the first file, filled with zeros.
    let is_tar = head.get(257..262) == Some(b"ustar") && head[..100].contains(&0);
    // A character of ASCII is a byte beside one or three zeros.
    let has_pattern = |places: &[bool]| {
        let sample = head.get(..places.len() * SAMPLE_CHARS);
        sample.is_some_and(|sample| {
            sample.iter().zip(places.iter().cycle()).all(|(byte, is_zero)| (*byte == 0) == *is_zero)
        })
    };
    match known {
        Some((_, name, converter)) => Some((name, converter)),
        None if is_tar => Some(("a tar archive", "tar -xOf")),
        None if is_bzip2 => Some(("compressed by bzip2", "bzip2 -dc")),
        None if has_pattern(&[false, true]) => Some(("text in UTF-16", "iconv -f UTF-16LE -t UTF-8")),
        None if has_pattern(&[true, false]) => Some(("text in UTF-16", "iconv -f UTF-16BE -t UTF-8")),
        None if has_pattern(&[false, true, true, true]) => Some(("text in UTF-32", "iconv -f UTF-32LE -t UTF-8")),
        None if has_pattern(&[true, true, true, false]) => Some(("text in UTF-32", "iconv -f UTF-32BE -t UTF-8")),
        None if has_wide_tab(head, 0) => Some(("text in UTF-16", "iconv -f UTF-16LE -t UTF-8")),
        None if has_wide_tab(head, 1) => Some(("text in UTF-16", "iconv -f UTF-16BE -t UTF-8")),
        None => None,
    }
}

/// Whether the first TAB and the line feed behind it are those of UTF-16, where they are at even (0) or odd (1) places,
/// beside zeros. Other characters of the line need not be those of ASCII.
fn has_wide_tab(head: &[u8], parity: usize) -> bool {
    let first = |byte: u8| head.iter().position(|found| *found == byte);
    let (Some(tab), Some(end)) = (first(b'\t'), first(b'\n')) else { return false };
    let is_wide = |at: usize| at % 2 == parity && head.get(at ^ 1) == Some(&0);
    tab < end && is_wide(tab) && is_wide(end)
}

/// Detects the format of an input from its first bytes. No output of a writer is mistaken for another format: no line
/// of TSV starts with a brace or with Debian's key field, because the writer escapes those.
fn detect_format(head: &[u8]) -> InputFormat {
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    let start = head.iter().position(|byte| !matches!(byte, b'\n' | b'\r')).unwrap_or(head.len());
    let head = &head[start..];
    let line = &head[..head.iter().position(|byte| *byte == b'\n').unwrap_or(head.len())];
    if line.starts_with(b"{") {
        InputFormat::Jsonl
    } else if debian::is_field(line) && !line.contains(&b'\t') {
        InputFormat::Debian
    } else {
        InputFormat::Tsv
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor};

    use guira_layout::EntryFormat;
    use proptest::prelude::*;

    use super::*;

    const BYTES: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };

    fn all(text: &[u8], format: Option<InputFormat>) -> Vec<Result<Record, String>> {
        let encoder = RecordEncoder::new(BYTES, Notation::Bytes).unwrap();
        let records = Records::new(Cursor::new(text), "test", format, encoder).unwrap();
        records.map(|record| record.map_err(|error| error.to_string())).collect()
    }

    fn pairs(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        pairs_in(Notation::Bytes, text)
    }

    fn pairs_in(notation: Notation, text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let encoder = RecordEncoder::new(BYTES, notation).unwrap();
        let records = Records::new(Cursor::new(text), "test", None, encoder).unwrap();
        records.map(|record| record.map(|record| (record.key, record.value)).unwrap()).collect()
    }

    /// Text in UTF-16 or UTF-32 and compressed text are refused, whatever the format, and text in UTF-8 is not.
    #[test]
    fn other_encodings_are_refused() {
        let utf16 = |text: &str, to: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(to).collect::<Vec<u8>>();
        let utf32 = |text: &str, to: fn(u32) -> [u8; 4]| text.chars().flat_map(|c| to(c as u32)).collect::<Vec<u8>>();
        let refused = [
            (utf16("\u{feff}heron\tGarza\r\n", u16::to_le_bytes), "text in UTF-16"),
            (utf16("\u{feff}heron\tGarza\r\n", u16::to_be_bytes), "text in UTF-16"),
            (utf16("heron\tGarza\r\n", u16::to_le_bytes), "text in UTF-16"),
            (utf16("heron\tGarza\r\n", u16::to_be_bytes), "text in UTF-16"),
            (utf16("a\t1\nb\t2\n", u16::to_le_bytes), "text in UTF-16"),
            (utf16("a\t1\nb\t2\n", u16::to_be_bytes), "text in UTF-16"),
            (utf16("цапля\tптица\n", u16::to_le_bytes), "text in UTF-16"),
            (utf16("цапля\tптица\nb\t2\n", u16::to_be_bytes), "text in UTF-16"),
            (utf16("鷺\t鳥\n鷺\t鳥\n", u16::to_le_bytes), "text in UTF-16"),
            (utf32("a\t1\nb\t2\n", u32::to_le_bytes), "text in UTF-32"),
            (utf32("\u{feff}heron\tGarza\n", u32::to_le_bytes), "text in UTF-32"),
            (utf32("heron\tGarza\n", u32::to_be_bytes), "text in UTF-32"),
            (b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec(), "compressed by gzip"),
            (b"\x28\xb5\x2f\xfd\x04\0".to_vec(), "compressed by zstd"),
            (b"\xfd7zXZ\0\0\x04".to_vec(), "compressed by xz"),
            (b"BZh91AY&SY\x01".to_vec(), "compressed by bzip2"),
            (b"\x04\x22\x4d\x18\x64\x40\xa7heron\tGarza\n".to_vec(), "compressed by lz4"),
            (b"\x5d\0\0\x80\0heron\tGarza\n".to_vec(), "compressed by lzma"),
            (b"7z\xbc\xaf\x27\x1c\0\x04\t\n".to_vec(), "a 7z archive"),
            ([&b"birds.tsv"[..], &[0; 248], b"ustar\x0000\theron\tGarza\n"].concat(), "a tar archive"),
            (b"PK\x03\x04\x14\0".to_vec(), "a zip archive"),
        ];
        let encoder = RecordEncoder::new(BYTES, Notation::Bytes).unwrap();
        for (bytes, what) in refused {
            for format in [None, Some(InputFormat::Tsv), Some(InputFormat::Jsonl), Some(InputFormat::Debian)] {
                let first =
                    Records::new(Cursor::new(&bytes), "birds", format, encoder).map(|mut records| records.next());
                let error = first.map_or_else(Some, |first| first.and_then(Result::err)).expect(what).to_string();
                assert!(error.starts_with(&format!("birds is {what}")), "{error}");
            }
        }
        for text in [
            "",
            "a",
            "PK\t1\n",
            "BZh9\t1\n",
            "a\0b\t1\n",
            "a\0\t1\n",
            "ab\t\0\n",
            "ab\t\0\nb\tc\n",
            "\u{feff}heron\tGarza\n",
            "h\u{e9}ron\tGarza\n",
        ] {
            assert!(Records::new(Cursor::new(text), "birds", None, encoder).is_ok(), "{text:?}");
        }
    }

    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        let nasty = prop::sample::select(b"\t\n\r\\{}\"x0a:P \0\x7f\x80\xc3\xbf\xff".to_vec());
        prop_oneof![
            prop::collection::vec(nasty, 0..12),
            prop::collection::vec(any::<u8>(), 0..40),
            any::<String>().prop_map(String::into_bytes),
        ]
    }

    proptest! {
        #[test]
        fn written_records_are_read_back(written in prop::collection::vec((any_bytes(), any_bytes()), 0..8)) {
            let (mut tsv, mut jsonl) = (Vec::new(), Vec::new());
            for (key, value) in &written {
                tsv::write(key, value, &mut tsv).unwrap();
                jsonl::write(key, value, &mut jsonl).unwrap();
            }
            prop_assert_eq!(&pairs(&tsv), &written, "{}", String::from_utf8_lossy(&tsv));
            prop_assert_eq!(&pairs(&jsonl), &written, "{}", String::from_utf8_lossy(&jsonl));
            prop_assert!(std::str::from_utf8(&tsv).is_ok());
            let lines = tsv.iter().filter(|byte| **byte == b'\n').count();
            prop_assert_eq!(lines, written.len());
        }

        #[test]
        fn records_written_as_digits_are_read_back(written in prop::collection::vec((any_bytes(), any_bytes()), 0..8)) {
            let (mut tsv, mut jsonl) = (Vec::new(), Vec::new());
            for (key, value) in &written {
                let (key, value) = (to_hex(key), to_hex(value));
                tsv::write(key.as_bytes(), value.as_bytes(), &mut tsv).unwrap();
                jsonl::write(key.as_bytes(), value.as_bytes(), &mut jsonl).unwrap();
            }
            prop_assert_eq!(&pairs_in(Notation::Hex, &tsv), &written);
            prop_assert_eq!(&pairs_in(Notation::Hex, &jsonl), &written);
        }

        #[test]
        fn no_input_causes_a_panic(text: Vec<u8>, format in prop::sample::select(&InputFormat::ALL[..])) {
            for format in [Some(format), None] {
                let encoder = RecordEncoder::new(BYTES, Notation::Bytes).unwrap();
                // Text in another encoding is refused as a whole.
                Records::new(Cursor::new(&text), "test", format, encoder).into_iter().flatten().for_each(drop);
            }
        }
    }

    /// Cause: peeking stopped at an empty line after a byte order mark. Effect: the JSON lines after it were read as
    /// TSV.
    #[test]
    fn formats_are_detected_after_a_byte_order_mark_and_empty_lines() {
        let record = b"{\"key\": \"a\", \"value\": \"b\"}\n";
        for start in [&b""[..], b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\xef\xbb\xbf\r\n\n"] {
            let text = [start, record].concat();
            assert_eq!(pairs(&text), [(b"a".to_vec(), b"b".to_vec())], "{start:x?}");
        }
    }

    #[test]
    fn formats_are_detected() {
        for (head, format) in [
            (&b"{\"key\":\"a\",\"value\":\"b\"}\n"[..], InputFormat::Jsonl),
            (b"\n\r\n{}", InputFormat::Jsonl),
            (b"\xef\xbb\xbf{}", InputFormat::Jsonl),
            (b"Package: 0ad\nVersion: 1\n", InputFormat::Debian),
            (b"package:x", InputFormat::Debian),
            (b"Package: a\tb\n", InputFormat::Tsv),
            (b"key\tvalue\n", InputFormat::Tsv),
            (b"Version: 1\n", InputFormat::Tsv),
            (b"", InputFormat::Tsv),
        ] {
            assert_eq!(detect_format(head), format, "{}", String::from_utf8_lossy(head));
        }
    }

    #[test]
    fn bad_records_are_reported_and_skipped() {
        let read = all(b"a\tb\nno tab here\n\nc\td\r\nx\\q\ty\n", None);
        let lines: Vec<_> = read.iter().map(|record| record.as_ref().map(|record| record.line)).collect();
        assert_eq!(lines[0], Ok(1));
        assert_eq!(
            lines[1].as_ref().unwrap_err().as_str(),
            "line 2 (\"no tab here\"): it has no TAB: expected key, TAB, value"
        );
        assert_eq!(lines[2], Ok(4));
        assert!(lines[3].as_ref().unwrap_err().starts_with("line 5 (\"x\\\\q\\ty\"): "), "{:?}", lines[3]);
        assert_eq!(read[2].as_ref().unwrap().value, b"d");
        assert_eq!(lines.len(), 4);
    }

    /// A reader that yields a line, then fails.
    struct Broken(&'static [u8]);

    impl io::Read for Broken {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(io::Error::other("the disk is gone"));
            }
            self.0.read(into)
        }
    }

    #[test]
    fn an_input_that_cannot_be_read_ends() {
        let encoder = RecordEncoder::new(BYTES, Notation::Bytes).unwrap();
        let reader = BufReader::new(Broken(b"a\tb\nc\t"));
        let mut records = Records::new(reader, "test", None, encoder).unwrap();
        assert_eq!(records.next().unwrap().unwrap().key, b"a");
        let error = records.next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "cannot read test: the disk is gone");
        assert!(records.next().is_none());
        assert!(Records::new(BufReader::new(Broken(b"")), "test", None, encoder).is_err());
    }

    #[test]
    fn long_lines_are_bad_records() {
        let encoder = RecordEncoder::new(BYTES, Notation::Bytes).unwrap();
        let records = Records::new(&b"key\tvalue\na\tb\n"[..], "test", None, encoder).unwrap().with_max_line_bytes(4);
        let read: Vec<_> = records.map(|record| record.map(|record| record.line)).collect();
        let bad = read[0].as_ref().unwrap_err().to_string();
        assert_eq!(bad, "line 1 (\"key\\tv\"): it is longer than 4 bytes");
        assert_eq!((read.len(), read[1].as_ref().unwrap()), (2, &2));
    }
}
