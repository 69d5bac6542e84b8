//! The framing of records between two processes: lengths, key, value; at the end a length that no key has.
//!
//! Invariant: an input that ends without this end mark is an error, so a writer that died is never mistaken for one
//! that finished.

use std::io::{self, Read, Write};

use guira_input::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

const END: u32 = u32::MAX;

/// Writes a record.
pub fn write(to: &mut impl Write, key: &[u8], value: &[u8]) -> io::Result<()> {
    to.write_all(&length(key, KEY_BYTES_MAX)?.to_le_bytes())?;
    to.write_all(&length(value, VALUE_BYTES_MAX)?.to_le_bytes())?;
    to.write_all(key)?;
    to.write_all(value)
}

/// Writes the end mark.
pub fn write_end(to: &mut impl Write) -> io::Result<()> {
    to.write_all(&END.to_le_bytes())?;
    to.flush()
}

/// Reads a record into `key` and `value`; returns false at the end mark.
pub fn read(from: &mut impl Read, key: &mut Vec<u8>, value: &mut Vec<u8>) -> io::Result<bool> {
    let key_bytes = read_length(from)?;
    if key_bytes == END {
        return Ok(false);
    }
    let value_bytes = read_length(from)?;
    fill(from, key, key_bytes, KEY_BYTES_MAX)?;
    fill(from, value, value_bytes, VALUE_BYTES_MAX)?;
    Ok(true)
}

fn length(bytes: &[u8], most: usize) -> io::Result<u32> {
    let length = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= most);
    length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a record exceeds the maximum size"))
}

fn read_length(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn fill(from: &mut impl Read, bytes: &mut Vec<u8>, length: u32, most: usize) -> io::Result<()> {
    let length = length as usize;
    if length > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a record exceeds the maximum size"));
    }
    bytes.resize(length, 0);
    from.read_exact(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_round_trip(records: Vec<(Vec<u8>, Vec<u8>)>, cut: prop::sample::Index) {
            let mut sent = Vec::new();
            for (key, value) in &records {
                write(&mut sent, key, value).unwrap();
            }
            write_end(&mut sent).unwrap();
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let mut received = &sent[..];
            for record in &records {
                prop_assert!(read(&mut received, &mut key, &mut value).unwrap());
                prop_assert_eq!((&key, &value), (&record.0, &record.1));
            }
            prop_assert!(!read(&mut received, &mut key, &mut value).unwrap());
            prop_assert!(received.is_empty());

            // If the input is cut anywhere, the end mark is never read.
            let mut received = &sent[..cut.index(sent.len())];
            let end = loop {
                match read(&mut received, &mut key, &mut value) {
                    Ok(true) => {}
                    end => break end,
                }
            };
            prop_assert_eq!(end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let mut sent = 70_000_u32.to_le_bytes().to_vec();
        sent.extend(1_u32.to_le_bytes());
        let error = read(&mut &sent[..], &mut Vec::new(), &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(write(&mut Vec::new(), &vec![0; KEY_BYTES_MAX + 1], b"").is_err());
    }
}
