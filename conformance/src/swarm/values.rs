//! Keys and values by number: a value's bytes encode its number, and a mixture of two values encodes none.

/// Low bits of a value's number that encode its length.
const LENGTH_BITS: u32 = 3;

/// Returns the key with number `key`.
pub fn key_bytes(key: u64) -> [u8; 8] {
    key.to_le_bytes()
}

/// Returns the number of a key's bytes.
pub fn key_number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// Returns the unique number of value `serial` of client `client`, whose length is the one with index `length` among
/// those of the run.
pub fn value_number(client: u32, serial: u32, length: usize) -> u64 {
    debug_assert!(length < 1 << LENGTH_BITS && serial < 1 << 28);
    u64::from(client + 1) << 32 | u64::from(serial) << LENGTH_BITS | length as u64
}

/// Returns the bytes of value `number`: its number, then bytes that depend on it and on their position.
pub fn value_bytes(number: u64, lengths: &[usize]) -> Vec<u8> {
    let length = lengths[(number & ((1 << LENGTH_BITS) - 1)) as usize];
    let mut bytes = Vec::with_capacity(length);
    let mut mixed = number;
    while bytes.len() < length {
        bytes.extend(mixed.to_le_bytes());
        mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
    bytes.truncate(length);
    bytes
}

/// Returns the number of the value `bytes`.
///
/// # Errors
/// A description, if `bytes` are truncated or a mixture of values.
pub fn value_of(bytes: &[u8], lengths: &[usize]) -> Result<u64, String> {
    let number = bytes.first_chunk().copied().map(u64::from_le_bytes);
    let number = number.filter(|number| ((number & ((1 << LENGTH_BITS) - 1)) as usize) < lengths.len());
    match number.filter(|number| value_bytes(*number, lengths) == bytes) {
        Some(number) => Ok(number),
        None => Err(format!("{} bytes that no client ever wrote, the first of them {:x?}", bytes.len(), head(bytes))),
    }
}

fn head(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(16)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_its_number_and_a_mixture_has_none() {
        let lengths = [8, 30, 4_000];
        let numbers: Vec<u64> = (0..3).map(|length| value_number(7, 9, length)).collect();
        for number in &numbers {
            assert_eq!(value_of(&value_bytes(*number, &lengths), &lengths), Ok(*number));
        }
        let (one, other) = (value_bytes(numbers[2], &lengths), value_bytes(value_number(7, 10, 2), &lengths));
        for cut in [8, 16, 2_000, 3_992] {
            assert!(value_of(&[&one[..cut], &other[cut..]].concat(), &lengths).is_err(), "mixed at {cut}");
        }
        assert!(value_of(&one[..30], &lengths).is_err() && value_of(&[], &lengths).is_err());
    }
}
