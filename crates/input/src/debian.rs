//! Debian control records, separated by empty lines. The key is the content of the field `Package`; the value is the
//! whole record, byte for byte, without the end of its last line.

use std::io::{self, BufRead};

use super::lines::{Lines, Step};
use super::{BadRecord, Record, VALUE_BYTES_MAX};

const KEY_FIELD: &[u8] = b"package:";

/// Whether a line is the `Package` field, which holds the key.
pub fn is_field(line: &[u8]) -> bool {
    line.get(..KEY_FIELD.len()).is_some_and(|start| start.eq_ignore_ascii_case(KEY_FIELD))
}

/// Reads the next record.
pub fn read<R: BufRead>(lines: &mut Lines<R>) -> io::Result<Option<Result<Record, BadRecord>>> {
    let mut record = Record { key: Vec::new(), value: Vec::new(), line: 0 };
    let mut bad: Option<BadRecord> = None;
    // Bounded by the input: each iteration consumes a line. A bad record is read to its end, but not kept.
    loop {
        match lines.step()? {
            Step::End => break,
            Step::Line if lines.text().trim_ascii().is_empty() => {
                if record.line > 0 {
                    break;
                }
            }
            Step::Line => {
                if record.line == 0 {
                    record.line = lines.number();
                }
                if bad.is_none() {
                    bad = add(lines, &mut record).err();
                }
            }
            Step::TooLong => {
                record.line = lines.number();
                bad = bad.or(Some(lines.too_long()));
            }
        }
    }
    if record.line == 0 {
        return Ok(None);
    }
    if bad.is_none() && record.key.is_empty() {
        bad = Some(BadRecord::new(record.line, &record.value, "the record has no field \"Package\""));
    }
    Ok(Some(bad.map_or(Ok(record), Err)))
}

/// Adds the current line to the record.
fn add<R: BufRead>(lines: &Lines<R>, record: &mut Record) -> Result<(), BadRecord> {
    let text = lines.text();
    let refuse = |reason: &str| Err(BadRecord::new(lines.number(), text, reason));
    let is_first = record.value.is_empty();
    let continues = text.starts_with(b" ") || text.starts_with(b"\t");
    if continues && is_first {
        return refuse("the record starts with a continuation line");
    }
    if !continues && !text.contains(&b':') {
        return refuse("it is neither a field (\"Name: content\") nor a continuation line");
    }
    if is_field(text) {
        if !record.key.is_empty() {
            return refuse("the record has two fields \"Package\": is the empty line between records missing?");
        }
        record.key = text[KEY_FIELD.len()..].trim_ascii().to_vec();
        if record.key.is_empty() {
            return refuse("the field \"Package\" is empty");
        }
    }
    if record.value.len() + text.len() >= VALUE_BYTES_MAX {
        return refuse("the record exceeds the maximum size of a value");
    }
    if !is_first {
        record.value.push(b'\n');
    }
    record.value.extend_from_slice(text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn all(text: &str) -> Vec<Result<Record, BadRecord>> {
        let mut lines = Lines::new(Cursor::new(text));
        std::iter::from_fn(|| read(&mut lines).unwrap()).collect()
    }

    #[test]
    fn records_are_kept_whole() {
        let text = "\n\nPackage: a\nTag: x,\n y\n\n\nVersion: 2\npackage:  b \n";
        let records: Vec<_> = all(text).into_iter().map(Result::unwrap).collect();
        let (a, b) = (b"Package: a\nTag: x,\n y".to_vec(), b"Version: 2\npackage:  b ".to_vec());
        assert_eq!(records[0], Record { key: b"a".to_vec(), value: a, line: 3 });
        assert_eq!(records[1], Record { key: b"b".to_vec(), value: b, line: 8 });
        assert_eq!(records.len(), 2);
        assert!(all("").is_empty() && all("\n\n").is_empty());
    }

    #[test]
    fn a_bad_record_is_skipped_whole() {
        let text = "Version: 1\n\nPackage: a\nno colon\nPackage: c\n\n x\nPackage: d\n\nPackage:\n\nPackage: b\n\n\
                    Package: e\nPackage: f\n";
        let read = all(text);
        let lines: Vec<_> = read.iter().map(|r| r.as_ref().map(|r| r.line).map_err(|bad| bad.line)).collect();
        assert_eq!(lines, [Err(1), Err(4), Err(7), Err(10), Ok(12), Err(15)]);
    }
}
