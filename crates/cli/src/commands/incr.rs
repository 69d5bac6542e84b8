//! `guira incr`: adds to a counter by compare-and-swap.

use std::time::Instant;

use clap::Args;
use guira::Client;
use guira::{EntryFormat, Swap};
use serde::Serialize;

use super::single::KeyArguments;
use super::{Verdict, WaitOptions};
use crate::failure::Failure;
use crate::output::Output;

/// Bytes of the largest number.
const NUMBER_BYTES: usize = 16;
/// Bytes of a number of `Client::increment`.
const LIBRARY_NUMBER_BYTES: usize = 8;

/// Add to a counter, and print its new value.
///
/// A key that does not exist counts from 0. Concurrent additions are never lost: each replaces the value by
/// compare-and-swap, and tries again until --deadline if another client changed it first.
///
/// In a table of format bytes:N a counter is decimal text, from -2^127 to 2^127 - 1, or a number of programs, as
/// Client::increment of the library makes it: 8 bytes, unsigned, little-endian. It stays what it is; a new one is text,
/// or with --binary a number of programs. In a table of format fixed:K:V it is an unsigned little-endian number of V
/// bytes, with V = 8 that of programs. If the value is not a number, or the sum does not fit, the command fails and the
/// counter is unchanged.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub key: KeyArguments,
    /// Count in 8 bytes, as Client::increment of the library does, so that programs can add to the counter. Only needed
    /// for a new counter, or for a value of 8 bytes that are all digits, which is text otherwise.
    #[arg(long)]
    pub binary: bool,
    /// The number to add; may be negative.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = parse_number)]
    pub by: i128,
}

fn parse_number(text: &str) -> Result<i128, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number from -2^127 to 2^127 - 1; write 5 or -5"))
}

#[derive(Serialize)]
struct Answer {
    /// The new value, as text: many JSON readers keep only 53 bits of a number.
    value: String,
    /// Whether the key did not exist before.
    created: bool,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let subject = arguments.key.open(WaitOptions::open)?;
    let format = subject.store.table().config().format;
    let counter = Counter::of(format, if arguments.binary { NewCounter::Number } else { NewCounter::Text })?;
    let until = Instant::now().checked_add(arguments.key.wait.deadline);
    let mut client = subject.store.client()?;
    let mut attempts = 0_u64;
    let answer = loop {
        attempts += 1;
        if let Some(answer) = counter.attempt(&mut client, &subject.key, arguments.by)? {
            break answer;
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            let shown = subject.notation.shown(&subject.key);
            return Err(Failure::Contended { key: shown, attempts });
        }
    };
    let said = output.answer(&answer, || answer.value.clone());
    said.map_err(Failure::after(format!("the counter was set to {}", answer.value)))?;
    Ok(Verdict::Fine)
}

/// The representation of a new counter in a table of values of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewCounter {
    Text,
    Number,
}

/// The representation of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counter {
    /// Decimal text, except that a value of 8 bytes which is none is a number of the library.
    Text,
    /// A little-endian number of `value_bytes` bytes.
    Number { value_bytes: usize },
}

impl Counter {
    /// Returns the representation of a counter in a table of `format`.
    fn of(format: EntryFormat, new: NewCounter) -> Result<Counter, Failure> {
        match (format, new) {
            (EntryFormat::Bytes { .. }, NewCounter::Text) => Ok(Counter::Text),
            (EntryFormat::Bytes { .. }, NewCounter::Number) => {
                Ok(Counter::Number { value_bytes: LIBRARY_NUMBER_BYTES })
            }
            (EntryFormat::Fixed { value_bytes, .. }, NewCounter::Number)
                if usize::from(value_bytes) != LIBRARY_NUMBER_BYTES =>
            {
                Err(Failure::Misuse(format!(
                    "a counter of programs has 8 bytes; the table has values of {value_bytes}"
                )))
            }
            (EntryFormat::Fixed { value_bytes, .. }, _) => Ok(Counter::Number { value_bytes: value_bytes.into() }),
        }
    }

    /// Tries once to add; returns `None` if another client changed the counter in the meantime.
    fn attempt(self, client: &mut Client, key: &[u8], by: i128) -> Result<Option<Answer>, Failure> {
        let found = client.get(key)?;
        let (value, shown) = self.sum(found.as_deref(), by)?;
        let (is_done, created) = match &found {
            None => (client.try_insert(key, &value)?, true),
            Some(found) => (client.compare_and_swap(key, found, &value)? == Swap::Done, false),
        };
        Ok(is_done.then_some(Answer { value: shown, created }))
    }

    /// Returns the sum of `found`, or of 0, and `by`, as stored bytes and as text.
    fn sum(self, found: Option<&[u8]>, by: i128) -> Result<(Vec<u8>, String), Failure> {
        match self {
            Counter::Text
                if found.is_some_and(|found| found.len() == LIBRARY_NUMBER_BYTES && decimal(found).is_err()) =>
            {
                Counter::Number { value_bytes: LIBRARY_NUMBER_BYTES }.sum(found, by)
            }
            Counter::Text => {
                let old = found.map_or(Ok(0), decimal)?;
                let new = old.checked_add(by).ok_or_else(|| beyond(old, by, "from -2^127 to 2^127 - 1"))?;
                Ok((new.to_string().into_bytes(), new.to_string()))
            }
            Counter::Number { value_bytes } => {
                if let Some(found) = found.filter(|found| found.len() != value_bytes) {
                    let shown = guira_input::printable(found, 40);
                    return Err(Failure::Counter(format!("the value is {shown}, which is not a number of 8 bytes")));
                }
                let old = found.map_or(Ok(0), little_endian)?;
                let room = || format!("from 0 to 2^{} - 1", 8 * value_bytes.min(NUMBER_BYTES));
                let new = old.checked_add_signed(by).filter(|new| fits(*new, value_bytes));
                let new = new.ok_or_else(|| beyond(old, by, &room()))?;
                let mut bytes = new.to_le_bytes().to_vec();
                bytes.resize(value_bytes, 0);
                Ok((bytes, new.to_string()))
            }
        }
    }
}

/// Parses a value in the form that this command writes: digits, after a minus sign if negative.
fn decimal(value: &[u8]) -> Result<i128, Failure> {
    let text = std::str::from_utf8(value).ok();
    let number = text.and_then(|text| Some((text, text.parse::<i128>().ok()?)));
    // Each number has exactly one text: no plus sign, no leading zeros.
    let number = number.filter(|(text, number)| *text == number.to_string()).map(|(_, number)| number);
    number.ok_or_else(|| {
        let shown = guira_input::printable(value, 40);
        Failure::Counter(format!("the value is {shown}, which is neither a decimal number nor a number of 8 bytes"))
    })
}

/// Reads a value of fixed length as a number.
fn little_endian(value: &[u8]) -> Result<u128, Failure> {
    let (low, high) = value.split_at(value.len().min(NUMBER_BYTES));
    if high.iter().any(|byte| *byte != 0) {
        return Err(Failure::Counter("the value is not a number below 2^128".to_owned()));
    }
    let mut number = [0; NUMBER_BYTES];
    number[..low.len()].copy_from_slice(low);
    Ok(u128::from_le_bytes(number))
}

fn fits(number: u128, value_bytes: usize) -> bool {
    value_bytes >= NUMBER_BYTES || number >> (8 * value_bytes) == 0
}

fn beyond(old: impl std::fmt::Display, by: i128, room: &str) -> Failure {
    Failure::Counter(format!("the counter is {old}; adding {by} would exceed its range, {room}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(found: &[u8], by: i128) -> Result<String, String> {
        let sum = Counter::Text.sum(Some(found), by);
        sum.map(|(bytes, shown)| {
            assert_eq!(bytes, shown.as_bytes());
            shown
        })
        .map_err(|failure| failure.to_string())
    }

    #[test]
    fn text_is_added_to() {
        for (found, by, sum) in [("0", 1, "1"), ("41", 1, "42"), ("-1", 1, "0"), ("0", -5, "-5"), ("9", 1, "10")] {
            assert_eq!(text(found.as_bytes(), by).as_deref(), Ok(sum));
        }
        assert_eq!(Counter::Text.sum(None, -7).unwrap().0, b"-7");
        let (least, most) = (i128::MIN.to_string(), i128::MAX.to_string());
        assert_eq!(text(most.as_bytes(), i128::MIN).as_deref(), Ok("-1"));
        for (found, by) in [(&most, 1), (&least, -1)] {
            assert!(text(found.as_bytes(), by).unwrap_err().contains("would exceed its range"));
        }
    }

    #[test]
    fn a_value_that_is_not_a_number_is_refused() {
        let beyond = format!("{}0", i128::MAX);
        for found in ["", " 1", "1 ", "+1", "007", "-0", "1.5", "0x1", "ten", "\u{ff}", beyond.as_str()] {
            let said = text(found.as_bytes(), 1).unwrap_err();
            let words = "neither a decimal number nor a number of 8 bytes; nothing was changed";
            assert!(said.ends_with(words), "{found:?}: {said}");
        }
        assert!(text(b"\xff", 1).is_err());
    }

    #[test]
    fn numbers_of_every_length_are_added_to() {
        for value_bytes in [1_usize, 2, 8, 15, 16, 20] {
            let counter = Counter::Number { value_bytes };
            let (zero, shown) = counter.sum(None, 0).unwrap();
            assert_eq!((zero.len(), shown.as_str()), (value_bytes, "0"));
            let (one, _) = counter.sum(Some(&zero), 1).unwrap();
            assert_eq!((one[0], counter.sum(Some(&one), -1).unwrap().0), (1, zero.clone()));
            assert!(counter.sum(Some(&zero), -1).unwrap_err().to_string().contains("from 0 to 2^"));
            let mut most = vec![0; value_bytes];
            most[..value_bytes.min(NUMBER_BYTES)].fill(255);
            assert!(counter.sum(Some(&most), 1).unwrap_err().to_string().contains("exceed"), "{value_bytes}");
            assert_eq!(counter.sum(Some(&most), -1).unwrap().0[0], 254);
        }
        let mut large = vec![0; 20];
        large[19] = 1;
        assert!(Counter::Number { value_bytes: 20 }.sum(Some(&large), 1).is_err());
    }

    #[test]
    fn the_format_of_the_table_decides() {
        let fixed = |value_bytes| EntryFormat::Fixed { key_bytes: 8, value_bytes };
        let any = EntryFormat::Bytes { inline_bytes: 64 };
        for (format, new, counter) in [
            (fixed(8), NewCounter::Text, Counter::Number { value_bytes: 8 }),
            (fixed(8), NewCounter::Number, Counter::Number { value_bytes: 8 }),
            (fixed(4), NewCounter::Text, Counter::Number { value_bytes: 4 }),
            (any, NewCounter::Text, Counter::Text),
            (any, NewCounter::Number, Counter::Number { value_bytes: 8 }),
        ] {
            assert_eq!(Counter::of(format, new).unwrap(), counter);
        }
        assert!(matches!(Counter::of(fixed(4), NewCounter::Number), Err(Failure::Misuse(_))));
    }

    /// A value of 8 bytes is text if it is decimal text, and otherwise a number of the library.
    #[test]
    fn values_of_eight_bytes_are_told_apart() {
        let number = |number: u64| number.to_le_bytes();
        assert_eq!(Counter::Text.sum(Some(&number(41)), 1).unwrap(), (number(42).to_vec(), "42".to_owned()));
        assert_eq!(Counter::Text.sum(Some(b"12345678"), 1).unwrap().0, b"12345679");
        assert_eq!(Counter::Text.sum(Some(b"99999999"), 1).unwrap().0, b"100000000");
        let digits = u64::from_le_bytes(*b"12345678");
        let counter = Counter::Number { value_bytes: 8 };
        assert_eq!(counter.sum(Some(b"12345678"), 1).unwrap().0, number(digits + 1));
        assert!(counter.sum(Some(b"12"), 1).unwrap_err().to_string().contains("not a number of 8 bytes"));
        for (value, by) in [(0, -1), (u64::MAX, 1)] {
            let error = Counter::Text.sum(Some(&number(value)), by).unwrap_err().to_string();
            assert!(error.contains("from 0 to 2^64 - 1"), "{error}");
        }
    }
}
