//! A reader of numbered lines of bounded length.
//!
//! Invariant: a line that is too long is one bad record; the rest of it is read and dropped, and the next line can be
//! read.

use std::io::{self, BufRead, Read};

use super::{BadRecord, LINE_BYTES_MAX, Record};

/// Maximum number of bytes used to detect a format.
const PEEK_BYTES: usize = 4096;
/// The byte order mark that some programs put before UTF-8 text. It is not part of a record.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The key and value of a line, or the reason why it is invalid.
pub type Pair = Result<(Vec<u8>, Vec<u8>), String>;

/// The lines of a reader, one at a time.
pub struct Lines<R> {
    reader: R,
    /// The peeked bytes, and how many of them have been read again.
    peeked: Vec<u8>,
    peeked_read: usize,
    /// The current line, with its end.
    line: Vec<u8>,
    number: u64,
    position: u64,
    line_bytes_max: usize,
}

/// The result of reading a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A line, now in [`Lines::text`].
    Line,
    /// A line that is too long; its beginning is in [`Lines::text`].
    TooLong,
    /// The end of the input.
    End,
}

impl<R: BufRead> Lines<R> {
    pub fn new(reader: R) -> Lines<R> {
        let (peeked, line) = (Vec::new(), Vec::new());
        Lines { reader, peeked, peeked_read: 0, line, number: 0, position: 0, line_bytes_max: LINE_BYTES_MAX }
    }

    /// Sets the maximum length of a line.
    pub fn set_max_line_bytes(&mut self, bytes: usize) {
        self.line_bytes_max = bytes;
    }

    /// Returns the first bytes, which will be read again: up to the end of the first non-empty line, or of the
    /// second if there are zeros, which may be those of UTF-16; at most 4 KiB.
    pub fn peek(&mut self) -> io::Result<&[u8]> {
        let is_short = |peeked: &[u8]| {
            let text = peeked.strip_prefix(BYTE_ORDER_MARK).unwrap_or(peeked);
            let lines = text.trim_ascii_start().iter().filter(|byte| **byte == b'\n').count();
            peeked.len() < PEEK_BYTES && lines < if peeked.contains(&0) { 2 } else { 1 }
        };
        while is_short(&self.peeked) {
            let before = self.peeked.len();
            let limit = (PEEK_BYTES - before) as u64;
            self.reader.by_ref().take(limit).read_until(b'\n', &mut self.peeked)?;
            if self.peeked.len() == before {
                break;
            }
        }
        Ok(&self.peeked)
    }

    /// Reads the next line.
    pub fn step(&mut self) -> io::Result<Step> {
        self.line.clear();
        let limit = self.line_bytes_max.saturating_add(1);
        self.read_until_end(limit)?;
        self.position += self.line.len() as u64;
        if self.line.is_empty() {
            return Ok(Step::End);
        }
        self.number += 1;
        if self.line.len() < limit || self.line.ends_with(b"\n") {
            return Ok(Step::Line);
        }
        self.drop_rest()?;
        Ok(Step::TooLong)
    }

    /// Returns the current line without its end, LF or CR LF, and without a byte order mark on the first line.
    pub fn text(&self) -> &[u8] {
        let mark: &[u8] = if self.number == 1 { BYTE_ORDER_MARK } else { b"" };
        let text = self.line.strip_prefix(mark).unwrap_or(&self.line);
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        text.strip_suffix(b"\r").unwrap_or(text)
    }

    /// Returns the number of the current line, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of bytes in all lines so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads the next record of a format with one record per line, skipping empty lines.
    pub fn record(&mut self, read: impl Fn(&[u8]) -> Pair) -> io::Result<Option<Result<Record, BadRecord>>> {
        // Bounded by the input: each iteration consumes a line.
        loop {
            match self.step()? {
                Step::End => return Ok(None),
                Step::TooLong => return Ok(Some(Err(self.too_long()))),
                Step::Line if self.text().is_empty() => {}
                Step::Line => break,
            }
        }
        let line = self.number;
        Ok(Some(match read(self.text()) {
            Ok((key, value)) => Ok(Record { key, value, line }),
            Err(reason) => Err(BadRecord::new(line, self.text(), reason)),
        }))
    }

    /// Returns the current line, which is too long, as a bad record.
    pub fn too_long(&self) -> BadRecord {
        BadRecord::new(self.number, &self.line, format!("it is longer than {} bytes", self.line_bytes_max))
    }

    fn read_until_end(&mut self, limit: usize) -> io::Result<()> {
        let peeked = &self.peeked[self.peeked_read..];
        if !peeked.is_empty() {
            let end = peeked.iter().position(|byte| *byte == b'\n').map_or(peeked.len(), |at| at + 1).min(limit);
            self.line.extend_from_slice(&peeked[..end]);
            self.peeked_read += end;
        }
        if !self.line.ends_with(b"\n") && self.line.len() < limit {
            let left = (limit - self.line.len()) as u64;
            self.reader.by_ref().take(left).read_until(b'\n', &mut self.line)?;
        }
        Ok(())
    }

    /// Skips the rest of a line.
    fn drop_rest(&mut self) -> io::Result<()> {
        let peeked = &self.peeked[self.peeked_read..];
        if let Some(at) = peeked.iter().position(|byte| *byte == b'\n') {
            self.peeked_read += at + 1;
            self.position += at as u64 + 1;
            return Ok(());
        }
        self.position += peeked.len() as u64;
        self.peeked_read = self.peeked.len();
        self.position += self.reader.skip_until(b'\n')? as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor};

    use super::*;

    fn steps(text: &[u8], line_bytes_max: usize, peek: bool) -> Vec<(Step, u64, Vec<u8>)> {
        let mut lines = Lines { line_bytes_max, ..Lines::new(BufReader::with_capacity(3, Cursor::new(text))) };
        if peek {
            lines.peek().unwrap();
        }
        let mut steps = Vec::new();
        loop {
            let step = lines.step().unwrap();
            if step == Step::End {
                assert_eq!(lines.position(), text.len() as u64);
                return steps;
            }
            steps.push((step, lines.number(), lines.text().to_vec()));
        }
    }

    #[test]
    fn lines_end_in_lf_or_cr_lf() {
        for peek in [false, true] {
            let texts: Vec<_> = steps(b"a\nbc\r\n\n\rd\re", 100, peek).into_iter().map(|step| step.2).collect();
            assert_eq!(texts, [&b"a"[..], b"bc", b"", b"\rd\re"]);
            assert_eq!(steps(b"", 100, peek), []);
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped() {
        for peek in [false, true] {
            let steps = steps(b"abcd\nabcde\nx\nabcdefghijkl", 4, peek);
            let kinds: Vec<_> = steps.iter().map(|step| (step.0, step.1)).collect();
            assert_eq!(kinds, [(Step::Line, 1), (Step::TooLong, 2), (Step::Line, 3), (Step::TooLong, 4)]);
        }
    }

    #[test]
    fn peeking_consumes_nothing() {
        let text = [vec![b'\n'; 10], vec![b'x'; 10_000], b"\nend".to_vec()].concat();
        let mut lines = Lines::new(Cursor::new(&text));
        assert_eq!(lines.peek().unwrap().len(), PEEK_BYTES);
        assert_eq!(steps(&text, 20_000, true), steps(&text, 20_000, false));
    }
}
