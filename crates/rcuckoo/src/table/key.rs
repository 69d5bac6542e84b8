//! Keys and values that a table can store, and their places.

use guira_layout::{EntryKind, Probe};

use super::Table;
use crate::{ErrorKind, RowPair};

/// A key that a table can store, hashed once: for that table, and no other.
#[derive(Clone, Copy, Debug)]
pub struct Key<'k> {
    bytes: &'k [u8],
    digest: u64,
    pair: RowPair,
}

impl<'k> Key<'k> {
    /// Its bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &'k [u8] {
        self.bytes
    }

    /// Its digest.
    #[inline(always)]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Both rows that may hold it.
    #[inline(always)]
    pub fn rows(&self) -> RowPair {
        self.pair
    }
}

impl Table {
    /// The key of these bytes, and its rows.
    ///
    /// # Errors
    /// `KeyLength`.
    #[inline(always)]
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, ErrorKind> {
        if !self.rows().accepts_key(bytes.len()) {
            return Err(self.refuse_key(bytes.len()));
        }
        let digest = self.placement().digest(bytes);
        Ok(Key { bytes, digest, pair: self.placement().rows(digest) })
    }

    /// The place for a value of `bytes` bytes of `key`: in its row or in an extent.
    ///
    /// # Errors
    /// `ValueLength`.
    #[inline(always)]
    pub fn place(&self, key: &Key<'_>, bytes: usize) -> Result<EntryKind, ErrorKind> {
        if !self.rows().accepts_value(bytes) {
            return Err(self.refuse_value(bytes));
        }
        Ok(self.rows().kind_for(key.bytes.len(), bytes))
    }

    /// The rows of the entry in `slot` of a row, by the digest that it stores or its key has; `buffer` is for the key.
    pub fn entry_rows(&self, words: &[u64], slot: usize, buffer: &mut Vec<u8>) -> RowPair {
        let digest = match self.rows().entry_kind(words, slot) {
            EntryKind::Extent => self.rows().extent_of(words, slot).digest,
            EntryKind::Inline => {
                buffer.clear();
                self.rows().append_inline_key(words, slot, buffer);
                self.placement().digest(buffer)
            }
        };
        self.placement().rows(digest)
    }

    pub(crate) fn refuse_key(&self, bytes: usize) -> ErrorKind {
        ErrorKind::KeyLength { bytes, format: self.rows().entry_format() }
    }

    pub(crate) fn refuse_value(&self, bytes: usize) -> ErrorKind {
        ErrorKind::ValueLength { bytes, format: self.rows().entry_format() }
    }

    /// The probe that finds `key` in rows.
    #[inline(always)]
    pub(crate) fn probe<'k>(&self, key: &Key<'k>) -> Probe<'k> {
        self.rows().probe(key.bytes, key.digest)
    }
}
