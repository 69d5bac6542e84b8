//! Keys and values that a table can store, and where each is stored.

use guira_layout::{EntryKind, Probe, RowId};

use super::Table;
use super::segment_map::SegmentMap;
use crate::{ErrorKind, RowPair};

/// A key that a table can store, with its digest and rows in that table.
#[derive(Clone, Copy, Debug)]
pub struct Key<'k> {
    bytes: &'k [u8],
    digest: u64,
    pair: RowPair,
}

impl<'k> Key<'k> {
    /// Returns the key's bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &'k [u8] {
        self.bytes
    }

    /// Returns the key's digest.
    #[inline(always)]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns both rows that may hold the key.
    #[inline(always)]
    pub fn rows(&self) -> RowPair {
        self.pair
    }
}

impl Table {
    /// Returns the key of these bytes, with its rows in a new table; see [`crate::Client::key`].
    ///
    /// # Errors
    /// `KeyLength`.
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, ErrorKind> {
        self.key_of(bytes, |digest| self.placement().rows(digest)).ok_or_else(|| self.refuse_key(bytes.len()))
    }

    /// Returns the key of these bytes, with its rows in the segment that `map` gives; `None` if the table cannot store
    /// it.
    #[inline(always)]
    pub(crate) fn key_by<'k>(&self, map: &SegmentMap, bytes: &'k [u8]) -> Option<Key<'k>> {
        self.key_of(bytes, |digest| self.placement().rows_by(map, digest))
    }

    #[inline(always)]
    fn key_of<'k>(&self, bytes: &'k [u8], rows: impl FnOnce(u64) -> RowPair) -> Option<Key<'k>> {
        if !self.rows().accepts_key(bytes.len()) {
            return None;
        }
        let digest = self.placement().digest(bytes);
        Some(Key { bytes, digest, pair: rows(digest) })
    }

    /// Returns where a value of `bytes` bytes of `key` is stored: in its row or in an extent.
    ///
    /// # Errors
    /// `ValueLength`.
    #[inline(always)]
    pub fn place(&self, key: &Key<'_>, bytes: usize) -> Result<EntryKind, ErrorKind> {
        self.try_place(key, bytes).ok_or_else(|| self.refuse_value(bytes))
    }

    /// Same as [`Table::place`], without the error: `None`. Where nobody reads an error, the code that drops it keeps
    /// the whole result in memory.
    #[inline(always)]
    pub fn try_place(&self, key: &Key<'_>, bytes: usize) -> Option<EntryKind> {
        self.rows().accepts_value(bytes).then(|| self.rows().kind_for(key.bytes.len(), bytes))
    }

    /// Returns the rows that the entry `slot` of `row` may be in, from its stored digest or its key's; `buffer` is
    /// scratch space for the key. Both lie in the segment of `row`. [R-GROW-1]
    pub fn entry_rows(&self, row: RowId, words: &[u64], slot: usize, buffer: &mut Vec<u8>) -> RowPair {
        self.placement().rows_beside(row, self.entry_digest(words, slot, buffer))
    }

    /// Returns the digest of the key of entry `slot`: the stored one, or its key's; `buffer` is scratch space for the
    /// key.
    #[inline(always)]
    pub(crate) fn entry_digest(&self, words: &[u64], slot: usize, buffer: &mut Vec<u8>) -> u64 {
        match self.rows().entry_kind(words, slot) {
            EntryKind::Extent => self.rows().extent_of(words, slot).digest,
            EntryKind::Inline => {
                buffer.clear();
                self.rows().append_inline_key(words, slot, buffer);
                self.placement().digest(buffer)
            }
        }
    }

    pub(crate) fn refuse_key(&self, bytes: usize) -> ErrorKind {
        ErrorKind::KeyLength { bytes, format: self.rows().entry_format() }
    }

    pub(crate) fn refuse_value(&self, bytes: usize) -> ErrorKind {
        ErrorKind::ValueLength { bytes, format: self.rows().entry_format() }
    }

    /// Returns the probe that finds `key` in rows.
    #[inline(always)]
    pub(crate) fn probe<'k>(&self, key: &Key<'k>) -> Probe<'k> {
        self.rows().probe(key.bytes, key.digest)
    }
}
