//! Entries: encoding, place, and whether their key is stored twice.
//!
//! A key can only be in its digest's two rows, so each primary entry's key is looked for behind it and in its secondary
//! row, and no map of keys is needed. Equal digests are not equal keys: the keys of extents are read. // [R-UPDATE-2]

use guira_fabric::{Addr, FabricError};
use guira_layout::{Candidate, EXTENT_HEADER_WORDS, Placement, Probe, extent_key_matches};

use crate::ProblemKind;
use crate::findings::Findings;
use crate::rows::Place;
use crate::sample::Block;
use crate::scan::{Buffers, Scan};

/// Whether an entry's key is known, and can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Known,
    Unknown,
}

impl Scan<'_> {
    /// Looks at an occupied entry of a row that verifies.
    pub(crate) async fn inspect_entry(
        &mut self,
        block: &Block,
        words: &[u64],
        place: Place,
        findings: &mut Findings,
    ) -> Result<(), FabricError> {
        let mut key = std::mem::take(&mut self.buffers.key);
        key.clear();
        let inspected = self.inspect_entry_with(block, words, place, &mut key, findings).await;
        self.buffers.key = key;
        inspected
    }

    async fn inspect_entry_with(
        &mut self,
        block: &Block,
        words: &[u64],
        place: Place,
        key: &mut Vec<u8>,
        findings: &mut Findings,
    ) -> Result<(), FabricError> {
        let (digest, known) = match self.table.rows().placement(words, place.slot) {
            Placement::Inline => {
                let known = self.inspect_inline(words, place, key, findings);
                (self.table.placement().digest(key), known)
            }
            Placement::Extent => {
                let known = self.inspect_extent(words, place, key, findings).await?;
                (self.table.rows().extent_of(words, place.slot).digest, known)
            }
        };
        // An inline key with impossible lengths says nothing about its rows; an extent entry says its digest.
        if known == Key::Unknown && self.table.rows().placement(words, place.slot) == Placement::Inline {
            return Ok(());
        }
        // [R-HASH-1]
        let pair = self.table.placement().rows(digest);
        if pair.other(place.row).is_none() {
            let text = format!("its key belongs to {} and {}: no lookup finds it here", pair.first, pair.second);
            findings.add(ProblemKind::EntryMisplaced, place, text);
            return Ok(());
        }
        if known == Key::Known {
            let probe = self.table.rows().probe(key, digest);
            self.find_twin(block, words, place, &probe, findings).await?;
        }
        Ok(())
    }

    /// Compares an inline entry with what encoding its key and value gives, and takes out its key.
    fn inspect_inline(&mut self, words: &[u64], place: Place, key: &mut Vec<u8>, findings: &mut Findings) -> Key {
        let (table, rows) = (self.table, self.table.rows());
        let Buffers { value, entry: wanted, .. } = &mut self.buffers;
        value.clear();
        wanted.resize(rows.entry_words(), 0);
        rows.append_inline_key(words, place.slot, key);
        rows.append_inline_value(words, place.slot, value);
        let digest = table.placement().digest(key);
        rows.encode_inline(wanted, &rows.probe(key, digest), value);
        let found = rows.entry(words, place.slot);
        if found == wanted {
            return Key::Known;
        }
        if table.config().format.has_extents() {
            // The header's low half says the lengths, which were clamped to the entry if they are beyond it.
            if found[0] as u32 != wanted[0] as u32 {
                let text = format!("its lengths {:#x} exceed the entry", found[0] as u32);
                findings.add(ProblemKind::EntryLengths, place, text);
                return Key::Unknown;
            }
            let text = "the digest in its header is not its key's: no lookup finds it";
            findings.require(found[0] == wanted[0], ProblemKind::EntryDigest, place, text);
        }
        let header_words = usize::from(table.config().format.has_extents());
        let padded = found[header_words..] == wanted[header_words..];
        findings.require(padded, ProblemKind::EntryPadding, place, "its unused bytes are not zero");
        Key::Known
    }

    /// Looks for a second entry with the key of the entry at `place`: behind it in its row, and in the secondary row if
    /// this is the primary one.
    async fn find_twin(
        &mut self,
        block: &Block,
        words: &[u64],
        place: Place,
        probe: &Probe<'_>,
        findings: &mut Findings,
    ) -> Result<(), FabricError> {
        if let Some(slot) = self.twin_in(words, probe, place.slot + 1).await? {
            let twin = Place { row: place.row, slot };
            findings.add(ProblemKind::DuplicateKey, place, format!("its key is stored again, in {twin}"));
        }
        let pair = self.table.placement().rows(probe.digest());
        if place.row != pair.first || pair.is_single() {
            return Ok(());
        }
        // A secondary row that is torn is reported, or looked at again, by itself; this one has to be with it.
        let Some(other) = block.valid_anywhere(self.table, pair.second) else {
            findings.unsettled = true;
            return Ok(());
        };
        if let Some(slot) = self.twin_in(other, probe, 0).await? {
            let twin = Place { row: pair.second, slot };
            findings.add(ProblemKind::DuplicateKey, place, format!("its key is stored again, in {twin}"));
        }
        Ok(())
    }

    /// The first slot from `from` on whose entry holds the key of `probe`. 1 round trip for each extent of its digest.
    async fn twin_in(&mut self, words: &[u64], probe: &Probe<'_>, from: usize) -> Result<Option<usize>, FabricError> {
        let (table, mut from) = (self.table, from);
        while let Some(candidate) = table.rows().find(words, probe, from) {
            let slot = candidate.slot();
            let extent = match candidate {
                Candidate::Inline(_) => return Ok(Some(slot)),
                Candidate::Extent(_) => table.rows().extent_of(words, slot),
            };
            from = slot + 1;
            let key = probe.key();
            // Where no extent can be there is no key; the entry's own inspection says so.
            if extent.key_bytes as usize != key.len() || self.extent_place(&extent).is_none() {
                continue;
            }
            let mut head = vec![0; EXTENT_HEADER_WORDS + key.len().div_ceil(8)];
            self.read(Addr::main(extent.offset), &mut head).await?;
            if extent_key_matches(&head, &extent, key) == Ok(true) {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }
}
