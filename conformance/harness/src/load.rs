//! Harnesses for the formats that `guira load` reads and `guira dump` writes. Inputs are the files themselves.

use std::io::{self, BufRead, BufReader, Read};

use guira_input::{
    BadRecord, InputError, InputFormat, Notation, Record, RecordEncoder, Records, jsonl as json_lines, to_hex,
    tsv as lines,
};
use guira_layout::EntryFormat;

use super::{Answer, Seed};

/// The items read from an input, in order.
type Items = Vec<Result<Record, BadRecord>>;

const BYTES: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };
/// The byte order mark, which is skipped at the start of a file and an ordinary character elsewhere.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Most characters of a mistake's message, each of whose excerpts may be escaped.
const MESSAGE_CHARS_MAX: usize = 3_000;
const NUMBERS: EntryFormat = EntryFormat::Fixed { key_bytes: 8, value_bytes: 3 };

/// Decodes a TSV file.
///
/// # Panics
/// If a promise of the format is broken.
pub fn tsv(data: &[u8]) -> Answer {
    if !is_text(data) {
        return Answer::of(false);
    }
    let answer = load(data, InputFormat::Tsv, b"good\tvalue\n");
    for (line, item) in lines_of(data).zip(one_a_line(data, InputFormat::Tsv)) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
        match item {
            // Without escapes, a field is its own bytes.
            Some(Ok(record)) if !line.contains(&b'\\') => assert_eq!(fields, [&record.key[..], &record.value]),
            Some(Ok(_)) => assert_eq!(fields.len(), 2),
            Some(Err(_)) => assert!(fields.len() != 2 || line.contains(&b'\\')),
            None => assert!(line.is_empty()),
        }
    }
    answer
}

/// Decodes a file of JSON lines.
///
/// # Panics
/// If a promise of the format is broken.
pub fn jsonl(data: &[u8]) -> Answer {
    if !is_text(data) {
        return Answer::of(false);
    }
    let answer = load(data, InputFormat::Jsonl, b"{\"key\":\"good\",\"value\":\"value\"}\n");
    for (line, item) in lines_of(data).zip(one_a_line(data, InputFormat::Jsonl)) {
        if let Some(Ok(_)) = item {
            let line = line.trim_ascii();
            assert!(line.starts_with(b"{") && line.ends_with(b"}") && std::str::from_utf8(line).is_ok());
        }
    }
    answer
}

/// Decodes a file of Debian control records.
///
/// # Panics
/// If a promise of the format is broken.
pub fn debian(data: &[u8]) -> Answer {
    if !is_text(data) {
        return Answer::of(false);
    }
    let answer = load(data, InputFormat::Debian, b"Package: good\nVersion: 1\n");
    for record in read_all(data, InputFormat::Debian).into_iter().flatten() {
        let found = data.windows(record.key.len()).any(|window| window == record.key);
        assert!(found && !record.key.is_empty() && record.key.trim_ascii() == record.key);
        // A carriage return at the end of a line belongs to the line's end, so it would not be read again; nor would a
        // byte order mark at the start, or a value that looks like no text.
        let is_lost = |line: &[u8]| line.ends_with(b"\r");
        let is_marked = record.value.starts_with(BYTE_ORDER_MARK);
        if !is_marked && is_text(&record.value) && !record.value.split(|byte| *byte == b'\n').any(is_lost) {
            let again = read_all(&record.value, InputFormat::Debian);
            assert_eq!(again, [Ok(Record { line: 1, ..record })], "a value is itself a record");
        }
    }
    answer
}

/// Checks what every format promises: an input is records and mistakes in the order of its lines, however it arrives;
/// no mistake affects what follows; what was read can be written and read again.
fn load(data: &[u8], format: InputFormat, good: &[u8]) -> Answer {
    let whole = read_all(data, format);
    numbered(&whole, data);
    let drawn = data.iter().fold(data.len(), |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    arrives_in_pieces(data, format, &whole, drawn);
    ends_early(data, format, &whole, drawn);
    spoils_nothing(data, format, &whole, good);
    limits_lines(data, format, &whole, drawn);
    let mut recognised = records(data, None);
    if recognised.format() == format {
        assert_eq!(items(&mut recognised), whole, "recognised as {format}");
    }
    let records: Vec<Record> = whole.into_iter().flatten().collect();
    can_be_written(&records);
    as_numbers(data, format);
    as_digits(data, format);
    Answer::of(!records.is_empty())
}

/// Returns the lines of a file, without line feeds and byte order mark.
fn lines_of(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.strip_prefix(BYTE_ORDER_MARK).unwrap_or(data).split(|byte| *byte == b'\n')
}

/// Returns the records of a reader, of any length, as a table of byte strings takes them.
fn records<R: BufRead>(reader: R, format: Option<InputFormat>) -> Records<R> {
    let fit = RecordEncoder::new(BYTES, Notation::Bytes).expect("every format takes bytes");
    Records::new(reader, "input", format, fit).expect("the beginning can be read")
}

/// Whether an input is taken for text in UTF-8; if it is not, all of it is refused, in every format.
fn is_text(data: &[u8]) -> bool {
    let fit = RecordEncoder::new(BYTES, Notation::Bytes).expect("every format takes bytes");
    !matches!(Records::new(data, "input", None, fit), Err(InputError::NotText { .. }))
}

fn items<R: BufRead>(records: &mut Records<R>) -> Items {
    let bad = |error| match error {
        InputError::Bad(bad) => bad,
        other => panic!("the input can be read: {other}"),
    };
    records.map(|record| record.map_err(bad)).collect()
}

fn read_all(data: &[u8], format: InputFormat) -> Items {
    let mut records = records(data, Some(format));
    let items = items(&mut records);
    assert_eq!(records.bytes_read(), data.len() as u64, "all of it was read");
    items
}

/// Returns for each line the record or the mistake in it, and nothing for an empty line.
fn one_a_line(data: &[u8], format: InputFormat) -> Vec<Option<Result<Record, BadRecord>>> {
    let mut lines = vec![None; data.split(|byte| *byte == b'\n').count()];
    for item in read_all(data, format) {
        let line = item.as_ref().map_or_else(|bad| bad.line, |record| record.line) as usize;
        assert!(lines[line - 1].replace(item).is_none(), "line {line} gives one item");
    }
    lines
}

/// Checks that items are in the order of their lines, which exist, and that a mistake's message is one line.
fn numbered(whole: &Items, data: &[u8]) {
    let mut before = 0;
    for item in whole {
        let line = match item {
            Ok(record) => record.line,
            Err(bad) => {
                assert!(!bad.reason.is_empty());
                let message = bad.to_string();
                assert!(
                    message.starts_with(&format!("line {} (", bad.line)) && !message.contains(char::is_control),
                    "{message}"
                );
                assert!(message.chars().count() <= MESSAGE_CHARS_MAX, "{message}");
                bad.line
            }
        };
        assert!(line > before, "line {line} after line {before}");
        before = line;
    }
    assert!(before <= data.split_inclusive(|byte| *byte == b'\n').count() as u64);
}

/// A reader that yields a few bytes at a time, and sometimes none; after its last byte, the end or an error.
struct Pieces<'d> {
    data: &'d [u8],
    drawn: usize,
    last: Last,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    End,
    Error,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.drawn = self.drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if self.drawn >> 60 == 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.data.is_empty() && self.last == Last::Error {
            return Err(io::Error::other("the disk is gone"));
        }
        let bytes = (1 + (self.drawn >> 32) % 9).min(into.len());
        self.data.read(&mut into[..bytes])
    }
}

fn arrives_in_pieces(data: &[u8], format: InputFormat, whole: &Items, drawn: usize) {
    let pieces = BufReader::with_capacity(1 + drawn % 13, Pieces { data, drawn, last: Last::End });
    assert_eq!(items(&mut records(pieces, Some(format))), *whole);
}

/// Checks that a file with a read error gives the items before it, then one error, then nothing.
fn ends_early(data: &[u8], format: InputFormat, whole: &Items, drawn: usize) {
    let data = &data[..drawn % (data.len() + 1)];
    let mut broken = records(BufReader::new(Pieces { data, drawn, last: Last::Error }), Some(format));
    let mut given = whole.iter();
    loop {
        match broken.next().expect("an error is the last item") {
            Ok(record) => assert_eq!(given.next(), Some(&Ok(record))),
            Err(InputError::Bad(bad)) => assert_eq!(given.next(), Some(&Err(bad))),
            Err(InputError::Read { .. } | InputError::NotText { .. }) => break,
        }
    }
    assert!(broken.next().is_none());
}

/// Checks that a good record is read whatever precedes it, and does not change that.
fn spoils_nothing(data: &[u8], format: InputFormat, whole: &Items, good: &[u8]) {
    let mut longer = [data, b"\n\n"].concat();
    let line = 1 + longer.iter().filter(|byte| **byte == b'\n').count() as u64;
    longer.extend(good);
    // Zeros among few bytes may look like text in UTF-16 with these behind them.
    if !is_text(&longer) {
        return;
    }
    let mut read = read_all(&longer, format);
    let last = read.pop().expect("the good record").expect("it is good");
    assert_eq!((&last.key[..], last.line), (&b"good"[..], line));
    assert_eq!(read, *whole);
}

/// Checks that a line longer than the bound is a mistake, and that other lines are as without a bound. (In the Debian
/// format a record has several lines, and is bad if one of them is too long.)
fn limits_lines(data: &[u8], format: InputFormat, whole: &Items, drawn: usize) {
    let most = drawn % 48;
    let mut limited = records(data, Some(format)).with_max_line_bytes(most);
    let limited_items = items(&mut limited);
    assert_eq!(limited.bytes_read(), data.len() as u64, "what is dropped is read");
    numbered(&limited_items, data);
    if format == InputFormat::Debian {
        return;
    }
    let is_long = |line: &[u8]| line.strip_suffix(b"\n").unwrap_or(line).len() > most;
    let long: Vec<bool> = data.split_inclusive(|byte| *byte == b'\n').map(is_long).collect();
    let line_of = |item: &Result<Record, BadRecord>| item.as_ref().map_or_else(|bad| bad.line, |record| record.line);
    let is_short = |item: &&Result<Record, BadRecord>| !long[line_of(item) as usize - 1];
    assert!(limited_items.iter().filter(is_short).eq(whole.iter().filter(is_short)));
    let refused = limited_items.iter().filter(|item| !is_short(item));
    let lengths = format!("longer than {most} bytes");
    assert_eq!(refused.clone().count(), long.iter().filter(|is_long| **is_long).count());
    assert!(refused.into_iter().all(|item| item.as_ref().is_err_and(|bad| bad.reason.contains(&lengths))));
}

/// Checks that records are read back as they were written, in both formats that can be written, one per line, and that
/// the format is recognized.
fn can_be_written(read: &[Record]) {
    let (mut tsv, mut jsonl) = (Vec::new(), Vec::new());
    for Record { key, value, .. } in read {
        lines::write(key, value, &mut tsv).expect("writing to memory succeeds");
        json_lines::write(key, value, &mut jsonl).expect("writing to memory succeeds");
    }
    for (written, format) in [(tsv, InputFormat::Tsv), (jsonl, InputFormat::Jsonl)] {
        assert!(std::str::from_utf8(&written).is_ok(), "{format} is text");
        let mut again = records(&written[..], None);
        assert!(read.is_empty() || again.format() == format, "{format} was taken for {}", again.format());
        let expected = read.iter().zip(1..).map(|(record, line)| Ok(Record { line, ..record.clone() }));
        assert_eq!(items(&mut again), expected.collect::<Items>());
    }
}

/// Checks that decimal numbers fill the sizes of a fixed format, little-endian, and are stored as written.
fn as_numbers(data: &[u8], format: InputFormat) {
    let encoder = RecordEncoder::new(NUMBERS, Notation::Numbers).expect("a fixed format takes numbers");
    let numbers = Records::new(data, "input", Some(format), encoder).expect("the beginning can be read");
    let numbers: Vec<Record> = numbers.filter_map(Result::ok).collect();
    let texts = if numbers.is_empty() { Vec::new() } else { one_a_line(data, format) };
    for record in numbers {
        assert_eq!((record.key.len(), record.value.len()), (8, 3));
        // A JSON number is not text, so there is nothing to compare it with.
        let Some(Ok(text)) = &texts[record.line as usize - 1] else { continue };
        for (stored, text) in [(record.key, &text.key), (record.value, &text.value)] {
            let number = stored.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
            let digits = String::from_utf8_lossy(text);
            assert_eq!(digits.trim_start_matches('0'), number.to_string().trim_start_matches('0'));
        }
    }
}

/// Checks that hexadecimal digits stand for bytes, which are read back from the digits that are written.
fn as_digits(data: &[u8], format: InputFormat) {
    let encoder = RecordEncoder::new(BYTES, Notation::Hex).expect("every table takes digits");
    let digits = |data, format| Records::new(data, "input", format, encoder).expect("the beginning can be read");
    let read: Vec<Record> = digits(data, Some(format)).filter_map(Result::ok).collect();
    let texts = if read.is_empty() { Vec::new() } else { one_a_line(data, format) };
    let mut written = Vec::new();
    for Record { key, value, line } in &read {
        let (key, value) = (to_hex(key), to_hex(value));
        if let Some(Ok(text)) = &texts[*line as usize - 1] {
            let written = [&key, &value].map(|digits| digits.clone().into_bytes());
            assert_eq!(written, [&text.key, &text.value].map(|text| text.to_ascii_lowercase()));
        }
        lines::write(key.as_bytes(), value.as_bytes(), &mut written).expect("writing to memory succeeds");
    }
    let again = digits(&written, None).zip(1..).map(|(record, line)| (record.expect("it was written"), line));
    let expected = read.into_iter().zip(1..).map(|(record, line)| (Record { line, ..record }, line));
    assert!(again.eq(expected), "{}", String::from_utf8_lossy(&written));
}

fn named(texts: &[(&str, &[u8])]) -> Vec<Seed> {
    texts.iter().map(|(name, text)| ((*name).to_owned(), text.to_vec())).collect()
}

pub(super) fn tsv_seeds() -> Vec<Seed> {
    named(&[
        ("two", b"heron\tGarza\nibis\tCuraca\n"),
        ("escapes", b"a\\tb\t\\n\\r\\\\\\x41\\xfF\n"),
        ("byte-order-mark", b"\xef\xbb\xbfa\tb\r\n\xef\xbb\xbfc\t\xef\xbb\xbf\n"),
        ("bytes", b"raw \xff\xc3\tkept \0\x7f\n\t\n"),
        ("line-ends", b"\n\r\n a\tb\r\nc\td\r\r\n\ne\tf"),
        ("mistakes", b"no tab\na\tb\tc\na\tb\\\n\\q\tb\n\\x4\tb\n\\xzz\tb\ngood\tone\n"),
        ("like-others", b"\\x7ba{\t{\n\\x50ackage: a\tPackage:\n"),
        ("numbers", b"258\t1\n65535\t0\n18446744073709551616\t1\n-1\t1\n007\t16777215\n"),
        ("digits", b"00fF\t0a5c09\n\t\n0\t00\n00\t0g\n\\x30\\x31\t2\\x33\r\n"),
        ("long", &[&[b'k'; 60][..], b"\t", &[b'v'; 90], b"\n"].concat()),
    ])
}

pub(super) fn jsonl_seeds() -> Vec<Seed> {
    named(&[
        ("two", b"{\"key\":\"heron\",\"value\":\"Garza\"}\n{\"key\":\"ibis\",\"value\":\"Curaca\"}\n"),
        (
            "byte-order-mark",
            b"\xef\xbb\xbf{\"key\":\"a\",\"value\":\"b\"}\r\n\xef\xbb\xbf{\"key\":\"c\",\"value\":\"d\"}\n",
        ),
        ("base64", b" { \"value_b64\" : \"/wA=\", \"key_b64\" : \"YQ==\" } \r\n\n"),
        ("escapes", "{\"key\":\"\",\"value\":\"\\u0000\\ud83d\\ude00ü\\n\"}\n".as_bytes()),
        (
            "numbers",
            b"{\"key\":12,\"value\":\"34\"}\n{\"key\":1e3,\"value\":-0}\n{\"key\":18446744073709551616,\"value\":1}",
        ),
        (
            "mistakes",
            b"{\"key\":\"a\"}\n{\"key\":\"a\",\"key_b64\":\"\",\"value\":\"\"}\n[]\n{\"key\":\"a\",\"vlaue\":\"b\"}\n",
        ),
        ("not-text", b"{\"key\":\"\xff\",\"value\":\"\"}\n{\"key\":\"\\ud800\",\"value\":null}\n"),
        ("control", b"{\"\\u001b[2J\\n\":1}\n"),
        ("deep", b"{\"key\":[[[[[[{}]]]]]],\"value\":\"\"}\n"),
        ("cut", b"{\"key\":\"a\",\"value\":\"b"),
    ])
}

pub(super) fn debian_seeds() -> Vec<Seed> {
    named(&[
        ("two", b"\n\nPackage: a\nTag: x,\n y\n\n\nVersion: 2\npackage:  b \n"),
        ("byte-order-mark", b"\xef\xbb\xbfPackage: a\r\n\n\xef\xbb\xbfTag: x\nPackage: b\n"),
        ("line-ends", b"Package: a\r\nVersion: 1\r\n \t\r\nPackage: b\r\r\n"),
        ("mistakes", b"Version: 1\n\nPackage: a\nno colon\n\n x\nPackage: d\n\nPackage:\n\nPackage: e\nPackage: f\n"),
        ("bytes", b"Package: \xff\0\nDescription: \xc3\n .\n \x0b\n"),
        ("long", &[b"Package: p\nTag: ", &[b't'; 100][..], b"\n ", &[b'u'; 30], b"\n"].concat()),
        ("real", b"Package: 0ad\nVersion: 0.0.26-3\nDepends: 0ad-data (>= 0.0.26),\n libc6 (>= 2.29)\nSize: 1\n"),
    ])
}
