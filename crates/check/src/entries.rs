//! Checks of entries: their encoding, their rows, and whether their keys are stored twice.
//!
//! A key can only be in its digest's two rows, so the key of each primary entry is searched for behind it and in its
//! secondary row, and no map of keys is needed. Equal digests do not mean equal keys: the keys of extents are read.
//! [R-UPDATE-2]

use guira_fabric::{Addr, FabricError};
use guira_layout::{Candidate, EntryKind, Probe, extent_key_matches};

use crate::ProblemKind;
use crate::findings::Findings;
use crate::rows::EntryPosition;
use crate::sample::Block;
use crate::scan::{Buffers, Scan};

/// Whether an entry's key was read and is consistent with the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Known,
    Unknown,
}

impl Scan<'_> {
    /// Checks an occupied entry of a row that verifies.
    pub(crate) async fn inspect_entry(
        &mut self,
        block: &Block,
        words: &[u64],
        position: EntryPosition,
        findings: &mut Findings,
    ) -> Result<(), FabricError> {
        let mut key = std::mem::take(&mut self.buffers.key);
        key.clear();
        let inspected = self.inspect_entry_with(block, words, position, &mut key, findings).await;
        self.buffers.key = key;
        inspected
    }

    async fn inspect_entry_with(
        &mut self,
        block: &Block,
        words: &[u64],
        position: EntryPosition,
        key: &mut Vec<u8>,
        findings: &mut Findings,
    ) -> Result<(), FabricError> {
        let (digest, known) = match self.table.rows().entry_kind(words, position.index) {
            EntryKind::Inline => {
                let known = self.inspect_inline(words, position, key, findings);
                (self.table.placement().digest(key), known)
            }
            EntryKind::Extent => {
                let known = self.inspect_extent(words, position, key, findings).await?;
                (self.table.rows().extent_of(words, position.index).digest, known)
            }
        };
        // With impossible lengths an inline entry has no key, so its rows are unknown; an extent entry has the digest.
        if known == Key::Unknown && self.table.rows().entry_kind(words, position.index) == EntryKind::Inline {
            return Ok(());
        }
        // [R-HASH-1]
        let (placement, level) = (self.table.placement(), self.table.rows().trailer(words).level());
        let pair = placement.rows_beside(position.row, digest);
        if placement.has_left(position.row, level, digest) {
            let text = "its key belongs in another segment: no lookup finds it here";
            findings.add(ProblemKind::EntryMisplaced, position, text);
            return Ok(());
        }
        if pair.other(position.row).is_none() {
            let text = format!("its key belongs in {} and {}: no lookup finds it here", pair.first, pair.second);
            findings.add(ProblemKind::EntryMisplaced, position, text);
            return Ok(());
        }
        if known == Key::Known {
            let probe = self.table.rows().probe(key, digest);
            self.find_duplicate(block, words, position, &probe, findings).await?;
        }
        Ok(())
    }

    /// Compares an inline entry with the encoding of its key and value, and appends its key to `key`.
    fn inspect_inline(
        &mut self,
        words: &[u64],
        position: EntryPosition,
        key: &mut Vec<u8>,
        findings: &mut Findings,
    ) -> Key {
        let (table, rows) = (self.table, self.table.rows());
        let Buffers { value, entry: wanted, .. } = &mut self.buffers;
        value.clear();
        wanted.resize(rows.entry_words(), 0);
        rows.append_inline_key(words, position.index, key);
        rows.append_inline_value(words, position.index, value);
        let digest = table.placement().digest(key);
        rows.encode_inline(wanted, &rows.probe(key, digest), value);
        let found = rows.entry(words, position.index);
        if found == wanted {
            return Key::Known;
        }
        if table.config().format.has_extents() {
            // The header's low half has the lengths, which were clamped to the entry if they exceed it.
            if found[0] as u32 != wanted[0] as u32 {
                let text = format!("its lengths, {:#x}, exceed the entry", found[0] as u32);
                findings.add(ProblemKind::EntryLengths, position, text);
                return Key::Unknown;
            }
            let text = "the digest in its header is not that of its key: no lookup finds it";
            findings.require(found[0] == wanted[0], ProblemKind::EntryDigest, position, text);
        }
        let header_words = usize::from(table.config().format.has_extents());
        let padded = found[header_words..] == wanted[header_words..];
        findings.require(padded, ProblemKind::EntryPadding, position, "its unused bytes are not zero");
        Key::Known
    }

    /// Searches for a second entry with the key of the entry at `position`: behind it in its row, and in the secondary
    /// row if this is the primary one.
    async fn find_duplicate(
        &mut self,
        block: &Block,
        words: &[u64],
        position: EntryPosition,
        probe: &Probe<'_>,
        findings: &mut Findings,
    ) -> Result<(), FabricError> {
        if let Some(index) = self.duplicate_in(words, probe, position.index + 1).await? {
            let duplicate = EntryPosition { row: position.row, index };
            findings.add(
                ProblemKind::DuplicateKey,
                position,
                format!("its key is stored a second time, in {duplicate}"),
            );
        }
        let pair = self.table.placement().rows_beside(position.row, probe.digest());
        if position.row != pair.first || pair.is_single() {
            return Ok(());
        }
        // A torn secondary row is reported or checked again by itself; the primary row has to be checked again, too.
        let Some(other) = block.valid_anywhere(self.table, pair.second) else {
            findings.inconclusive = true;
            return Ok(());
        };
        if let Some(index) = self.duplicate_in(other, probe, 0).await? {
            let duplicate = EntryPosition { row: pair.second, index };
            findings.add(
                ProblemKind::DuplicateKey,
                position,
                format!("its key is stored a second time, in {duplicate}"),
            );
        }
        Ok(())
    }

    /// Returns the first index, from `from` on, of an entry with the key of `probe`. 1 round trip for each extent with
    /// its digest.
    async fn duplicate_in(
        &mut self,
        words: &[u64],
        probe: &Probe<'_>,
        from: usize,
    ) -> Result<Option<usize>, FabricError> {
        let (table, mut from) = (self.table, from);
        while let Some(candidate) = table.rows().find(words, probe, from) {
            let index = candidate.index();
            let extent = match candidate {
                Candidate::Inline(_) => return Ok(Some(index)),
                Candidate::Extent(_) => table.rows().extent_of(words, index),
            };
            from = index + 1;
            let key = probe.key();
            // An impossible address has no key; the check of that entry reports it.
            if extent.key_bytes as usize != key.len() || self.extent_location(&extent).is_none() {
                continue;
            }
            let mut head = vec![0; extent.header_words() + key.len().div_ceil(8)];
            self.read(Addr::main(extent.offset), &mut head).await?;
            if extent_key_matches(&head, &extent, key) == Ok(true) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}
