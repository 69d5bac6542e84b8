//! Entries of a row: finding a key, and encoding and decoding keys and values.
//!
//! `fixed:K:V` packs key and value bytes into whole words. `bytes:N` starts an inline entry with a header word
//! {key length 16, value length 16, high half of the key's digest 32}, then key and value without a gap; an
//! extent entry is {digest, address 48, generation 48, key length 32 | value length 32}.

use crate::sum::with_le_bytes;

use crate::bytes::{append, copy_in, equal, mask, word_of};
use crate::config::{EXTENT_ENTRY_WORDS, EntryFormat, INLINE_HEADER_BYTES};
use crate::row::EntryKind;
use crate::{ExtentRef, Generation, RowFormat};

/// A key prepared for lookups.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'k> {
    key: &'k [u8],
    digest: u64,
    first: u64,
    first_mask: u64,
}

/// An entry that holds, or may hold, the key of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// The entry at this index has the key, and its value is in the row.
    Inline(usize),
    /// The entry at this index has the key's digest. Only the extent tells whether it has the key.
    Extent(usize),
}

impl Candidate {
    /// Returns the index of the entry in its row.
    pub fn index(self) -> usize {
        match self {
            Candidate::Inline(index) | Candidate::Extent(index) => index,
        }
    }
}

impl<'k> Probe<'k> {
    /// Returns the key.
    pub fn key(&self) -> &'k [u8] {
        self.key
    }

    /// Returns the key's 64-bit digest.
    #[inline(always)]
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

fn inline_header(key_bytes: usize, value_bytes: usize, digest: u64) -> u64 {
    key_bytes as u64 | (value_bytes as u64) << 16 | digest >> 32 << 32
}

impl RowFormat {
    /// Prepares `key`, whose digest is `digest`, for lookups. The caller checks the key's length: see
    /// [`RowFormat::accepts_key`].
    #[inline(always)]
    pub fn probe<'k>(&self, key: &'k [u8], digest: u64) -> Probe<'k> {
        let (first, first_mask) = match self.format {
            EntryFormat::Fixed { .. } => {
                let head = key.len().min(8);
                (word_of(&key[..head]), mask(head))
            }
            EntryFormat::Bytes { .. } => (inline_header(key.len(), 0, digest), !0 << 32 | 0xffff),
        };
        Probe { key, digest, first, first_mask }
    }

    /// Whether a key of `bytes` bytes can be stored.
    #[inline(always)]
    pub fn accepts_key(&self, bytes: usize) -> bool {
        match self.format {
            EntryFormat::Fixed { key_bytes, .. } => bytes == usize::from(key_bytes),
            EntryFormat::Bytes { .. } => bytes <= crate::MAX_KEY_BYTES,
        }
    }

    /// Whether a value of `bytes` bytes can be stored.
    #[inline(always)]
    pub fn accepts_value(&self, bytes: usize) -> bool {
        match self.format {
            EntryFormat::Fixed { value_bytes, .. } => bytes == usize::from(value_bytes),
            EntryFormat::Bytes { .. } => bytes <= crate::MAX_VALUE_BYTES,
        }
    }

    /// Returns the kind of entry that stores a key and a value of these lengths.
    pub fn kind_for(&self, key_bytes: usize, value_bytes: usize) -> EntryKind {
        self.format.kind_for(key_bytes, value_bytes)
    }

    /// Returns the first entry of `row`, from index `from` on, that holds or may hold the key. Safe on unverified
    /// words: the caller verifies the row before it acts on the answer.
    #[inline(always)]
    pub fn find(&self, row: &[u64], probe: &Probe<'_>, from: usize) -> Option<Candidate> {
        let occupancy = self.occupancy(row) & (!0 << from);
        match self.format {
            EntryFormat::Fixed { key_bytes, .. } => self.find_fixed(row, probe, occupancy, usize::from(key_bytes)),
            EntryFormat::Bytes { .. } => self.find_bytes(row, probe, occupancy),
        }
    }

    #[inline(always)]
    fn find_fixed(&self, row: &[u64], probe: &Probe<'_>, occupancy: u64, key_bytes: usize) -> Option<Candidate> {
        let mut hits = self.first_word_hits(row, probe) & occupancy;
        while hits != 0 {
            let index = hits.trailing_zeros() as usize;
            if key_bytes <= 8 || equal(self.entry(row, index), 0, probe.key) {
                return Some(Candidate::Inline(index));
            }
            hits &= hits - 1;
        }
        None
    }

    /// Returns a bit mask: bit i is set if the first word of entry i matches. Compares all entries without a branch
    /// between them.
    #[inline(always)]
    fn first_word_hits(&self, row: &[u64], probe: &Probe<'_>) -> u64 {
        let test = |word: u64| u64::from((word ^ probe.first) & probe.first_mask == 0);
        let entries = &row[..self.entries() * self.entry_words()];
        let fold = |hits: u64, (index, word): (usize, u64)| hits | test(word) << index;
        match self.entry_words() {
            1 => entries.iter().copied().enumerate().fold(0, fold),
            2 => entries.chunks_exact(2).map(|entry| entry[0]).enumerate().fold(0, fold),
            words => entries.chunks_exact(words).map(|entry| entry[0]).enumerate().fold(0, fold),
        }
    }

    fn find_bytes(&self, row: &[u64], probe: &Probe<'_>, mut occupancy: u64) -> Option<Candidate> {
        let extents = self.trailer(row).extents();
        while occupancy != 0 {
            let index = occupancy.trailing_zeros() as usize;
            let entry = self.entry(row, index);
            if extents & 1 << index != 0 {
                if entry[0] == probe.digest {
                    return Some(Candidate::Extent(index));
                }
            } else if (entry[0] ^ probe.first) & probe.first_mask == 0 && equal(entry, INLINE_HEADER_BYTES, probe.key) {
                return Some(Candidate::Inline(index));
            }
            occupancy &= occupancy - 1;
        }
        None
    }

    /// Returns the length of the value of the inline entry `index`. It is clamped to the entry, so that damaged lengths
    /// cannot reach outside.
    #[inline(always)]
    pub fn inline_value_bytes(&self, row: &[u64], index: usize) -> usize {
        match self.format {
            EntryFormat::Fixed { value_bytes, .. } => usize::from(value_bytes),
            EntryFormat::Bytes { .. } => {
                let (_, at, bytes) = self.inline_parts(self.entry(row, index));
                debug_assert!(at + bytes <= self.entry_words() * 8);
                bytes
            }
        }
    }

    /// Returns the key length, the byte position of the value, and the value length of an inline `bytes:N` entry.
    fn inline_parts(&self, entry: &[u64]) -> (usize, usize, usize) {
        let room = self.entry_words() * 8 - INLINE_HEADER_BYTES;
        let key_bytes = (entry[0] as usize & 0xffff).min(room);
        let value_bytes = (entry[0] as usize >> 16 & 0xffff).min(room - key_bytes);
        (key_bytes, INLINE_HEADER_BYTES + key_bytes, value_bytes)
    }

    /// Returns the byte position and the length of the value in an inline entry.
    #[inline(always)]
    fn inline_value(&self, entry: &[u64]) -> (usize, usize) {
        match self.format {
            EntryFormat::Fixed { key_bytes, value_bytes } => (usize::from(key_bytes), usize::from(value_bytes)),
            EntryFormat::Bytes { .. } => {
                let (_, at, bytes) = self.inline_parts(entry);
                (at, bytes)
            }
        }
    }

    /// Appends the value of the inline entry `index` to `into`.
    #[inline(always)]
    pub fn append_inline_value(&self, row: &[u64], index: usize, into: &mut Vec<u8>) {
        let entry = self.entry(row, index);
        let (at, bytes) = self.inline_value(entry);
        append(entry, at, bytes, into);
    }

    /// Whether the value of the inline entry `index` is `value`.
    pub fn inline_value_is(&self, row: &[u64], index: usize, value: &[u8]) -> bool {
        let entry = self.entry(row, index);
        let (at, bytes) = self.inline_value(entry);
        value.len() == bytes && with_le_bytes(entry, |all| all[at..at + bytes] == *value)
    }

    /// Returns the value of the inline entry `index` as a little-endian number, if it has eight bytes.
    pub fn inline_number(&self, row: &[u64], index: usize) -> Option<u64> {
        let entry = self.entry(row, index);
        let (at, bytes) = self.inline_value(entry);
        with_le_bytes(entry, |all| all[at..at + bytes].try_into().ok().map(u64::from_le_bytes))
    }

    /// Appends the key of the inline entry `index` to `into`.
    pub fn append_inline_key(&self, row: &[u64], index: usize, into: &mut Vec<u8>) {
        let entry = self.entry(row, index);
        let (at, bytes) = match self.format {
            EntryFormat::Fixed { key_bytes, .. } => (0, usize::from(key_bytes)),
            EntryFormat::Bytes { .. } => (INLINE_HEADER_BYTES, self.inline_parts(entry).0),
        };
        append(entry, at, bytes, into);
    }

    /// Encodes an inline entry into `entry`, which must be one entry long.
    ///
    /// # Panics
    /// If key and value do not fit: see [`RowFormat::kind_for`].
    pub fn encode_inline(&self, entry: &mut [u64], probe: &Probe<'_>, value: &[u8]) {
        debug_assert_eq!(self.kind_for(probe.key.len(), value.len()), EntryKind::Inline);
        match (self.format, &mut *entry, probe.key.len(), value.len()) {
            // Entries of fixed:4:4 and fixed:8:8, whose lengths are constants.
            (EntryFormat::Fixed { .. }, [word], 4, 4) => *word = probe.first | word_of(value) << 32,
            (EntryFormat::Fixed { .. }, [key, word], 8, 8) => (*key, *word) = (probe.first, word_of(value)),
            (EntryFormat::Fixed { .. }, ..) => {
                entry.fill(0);
                copy_in(entry, 0, probe.key);
                copy_in(entry, probe.key.len(), value);
            }
            (EntryFormat::Bytes { .. }, ..) => {
                entry.fill(0);
                entry[0] = inline_header(probe.key.len(), value.len(), probe.digest);
                copy_in(entry, INLINE_HEADER_BYTES, probe.key);
                copy_in(entry, INLINE_HEADER_BYTES + probe.key.len(), value);
            }
        }
    }

    /// Encodes an entry that refers to `extent` into `entry`, which must be one entry long.
    ///
    /// # Panics
    /// If the format has no extents.
    pub fn encode_extent_entry(&self, entry: &mut [u64], extent: &ExtentRef) {
        assert!(self.format.has_extents() && entry.len() >= EXTENT_ENTRY_WORDS, "{} has no extents", self.format);
        entry.fill(0);
        entry[0] = extent.digest;
        entry[1] = extent.offset;
        entry[2] = extent.generation.0;
        entry[3] = u64::from(extent.key_bytes) | u64::from(extent.value_bytes) << 32;
    }

    /// Returns the extent that the extent entry `index` refers to.
    pub fn extent_of(&self, row: &[u64], index: usize) -> ExtentRef {
        let entry = self.entry(row, index);
        ExtentRef {
            digest: entry[0],
            offset: entry[1],
            generation: Generation(entry[2]),
            key_bytes: entry[3] as u32,
            value_bytes: (entry[3] >> 32) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::tests::row_format;
    use crate::{Preset, RowId};

    fn round_trip(format: &RowFormat, key: &[u8], value: &[u8]) {
        let digest = 0x1234_5678_9abc_def0 ^ key.len() as u64;
        let probe = format.probe(key, digest);
        let mut row = vec![0; format.row_words()];
        format.format(RowId(1), &mut row);
        let mut entry = vec![0; format.entry_words()];
        format.encode_inline(&mut entry, &probe, value);
        let index = format.entries() - 1;
        format.put_entry(&mut row, index, &entry, EntryKind::Inline);
        assert_eq!(format.find(&row, &probe, 0), Some(Candidate::Inline(index)));
        assert_eq!(format.find(&row, &probe, index + 1), None);
        let (mut key_back, mut value_back) = (Vec::new(), Vec::new());
        format.append_inline_key(&row, index, &mut key_back);
        format.append_inline_value(&row, index, &mut value_back);
        assert_eq!((key_back.as_slice(), value_back.as_slice()), (key, value));
        assert_eq!(format.inline_value_bytes(&row, index), value.len());
    }

    #[test]
    fn fixed_entries_round_trip_with_any_key() {
        for (name, key_bytes, value_bytes) in [
            ("fixed:4:4", 4, 4),
            ("fixed:8:8", 8, 8),
            ("fixed:8:56", 8, 56),
            ("fixed:16:3", 16, 3),
            ("fixed:5:0", 5, 0),
        ] {
            for preset in Preset::ALL {
                let format = row_format(preset, name);
                round_trip(&format, &vec![0; key_bytes], &vec![0; value_bytes]);
                round_trip(&format, &vec![0xff; key_bytes], &vec![0xee; value_bytes]);
                let key: Vec<u8> = (1..=key_bytes as u8).collect();
                round_trip(&format, &key, &vec![7; value_bytes]);
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_entries_round_trip(
            key in prop::collection::vec(any::<u8>(), 0..40),
            value in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let format = row_format(Preset::Hardened, "bytes:64");
            if format.kind_for(key.len(), value.len()) == EntryKind::Inline {
                round_trip(&format, &key, &value);
            }
        }

        /// Garbage in a row gives wrong answers at worst, never a panic; the row's checksum does not match.
        #[test]
        fn garbage_rows_do_not_panic(
            words in prop::collection::vec(any::<u64>(), 80),
            key in prop::collection::vec(any::<u8>(), 8),
        ) {
            for name in ["fixed:8:8", "fixed:4:4", "bytes:64"] {
                for preset in Preset::ALL {
                    let format = row_format(preset, name);
                    let key = &key[..if name == "fixed:4:4" { 4 } else { 8 }];
                    let probe = format.probe(key, words[0]);
                    let row = &words[..format.row_words()];
                    let mut out = Vec::new();
                    let mut from = 0;
                    while let Some(candidate) = format.find(row, &probe, from) {
                        from = candidate.index() + 1;
                    }
                    for index in 0..format.entries() {
                        format.append_inline_key(row, index, &mut out);
                        format.append_inline_value(row, index, &mut out);
                    }
                    prop_assert!(format.verify(RowId(0), row).is_err());
                }
            }
        }
    }

    #[test]
    fn extent_entries_round_trip() {
        let format = row_format(Preset::Hardened, "bytes:64");
        let extent = ExtentRef {
            digest: 77,
            offset: (1 << 48) - 8,
            generation: Generation(Generation::MAX),
            key_bytes: 1 << 16,
            value_bytes: 64 << 20,
        };
        let mut row = vec![0; format.row_words()];
        format.format(RowId(1), &mut row);
        let mut entry = vec![0; format.entry_words()];
        format.encode_extent_entry(&mut entry, &extent);
        format.put_entry(&mut row, 2, &entry, EntryKind::Extent);
        assert_eq!(format.extent_of(&row, 2), extent);
        let probe = format.probe(b"some key", 77);
        assert_eq!(format.find(&row, &probe, 0), Some(Candidate::Extent(2)));
        assert_eq!(format.kind_for(0, 65), EntryKind::Extent);
        assert_eq!(format.kind_for(0, 64), EntryKind::Inline);
        assert_eq!(format.kind_for(1, 63), EntryKind::Inline);
    }
}
