//! Checks of extents, starting from the entries that refer to them: address, chunk, mark, generation, checksum, key,
//! and that no other entry refers to them.

use guira_fabric::{Addr, FabricError, Verb, post};
use guira_layout::{
    ChunkState, ChunkWord, EntryKind, ExtentClass, ExtentError, ExtentRef, Generation, RowId, parse_extent,
};
use guira_rcuckoo::{read_extent, sample_rows};

use crate::ProblemKind;
use crate::chunks::describe_class;
use crate::entries::Key;
use crate::findings::Findings;
use crate::rows::EntryPosition;
use crate::scan::Scan;

/// Width of an extent's address in an entry, in bits.
const OFFSET_BITS: u32 = 48;

/// Location of an extent: its size class, its chunk, and its mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentLocation {
    class: ExtentClass,
    chunk: u64,
    mark: Addr,
}

impl Scan<'_> {
    /// Returns the location of `extent`; `None` if no extent can have its address.
    pub(crate) fn extent_location(&self, extent: &ExtentRef) -> Option<ExtentLocation> {
        let (config, geometry) = (self.table.config(), self.table.geometry());
        let class = ExtentClass::of(extent.words()?, config.chunk_bytes);
        let mark = Addr::main(extent.mark_offset(config, geometry)?);
        let (chunk, _) = geometry.chunk_of(extent.offset)?;
        let chunks = if let ExtentClass::Run(chunks) = class { u64::from(chunks) } else { 1 };
        let fits = extent.offset >> OFFSET_BITS == 0 && chunk + chunks <= config.chunks;
        fits.then_some(ExtentLocation { class, chunk, mark })
    }

    /// Checks the extent of an occupied extent entry, and appends its key to `key`. 2 round trips.
    pub(crate) async fn inspect_extent(
        &mut self,
        words: &[u64],
        position: EntryPosition,
        key: &mut Vec<u8>,
        findings: &mut Findings,
    ) -> Result<Key, FabricError> {
        let extent = self.table.rows().extent_of(words, position.index);
        self.inspect_extent_entry(words, position, &extent, findings).await?;
        let Some(at) = self.extent_location(&extent) else {
            let text = format!(
                "it refers to offset {:#x} for a key of {} and a value of {} bytes: no such extent can be there",
                extent.offset, extent.key_bytes, extent.value_bytes
            );
            findings.add(ProblemKind::ExtentAddress, position, text);
            return Ok(Key::Unknown);
        };
        let (mut chunk_word, mut mark) = ([0], [0]);
        let chunk_at = self.table.geometry().chunk_word(at.chunk);
        let read_word = Verb::Read { addr: chunk_at, into: &mut chunk_word };
        post(&mut *self.lane, [read_word, Verb::Read { addr: at.mark, into: &mut mark }]).await?;
        self.inspect_chunk_of(at, chunk_word[0], position, findings);
        // [R-EXTENT-4]
        let freed = Generation(mark[0]) == extent.generation;
        let text = "its extent is marked free, and will be overwritten";
        findings.require(!freed, ProblemKind::ExtentFreed, position, text);
        self.inspect_sharing(words, position, &extent, findings).await?;
        self.inspect_content(position, &extent, key, findings).await
    }

    /// Checks the entry by itself.
    async fn inspect_extent_entry(
        &mut self,
        words: &[u64],
        position: EntryPosition,
        extent: &ExtentRef,
        findings: &mut Findings,
    ) -> Result<(), FabricError> {
        let rows = self.table.rows();
        let mut wanted = vec![0; rows.entry_words()];
        rows.encode_extent_entry(&mut wanted, extent);
        let padded = rows.entry(words, position.index) == wanted;
        findings.require(padded, ProblemKind::EntryPadding, position, "its unused words are not zero");
        // [R-EXTENT-3]
        let generation = extent.generation.0;
        if generation >= self.next_generation {
            self.refresh_generation().await?;
        }
        let drawn = (1..=Generation::MAX).contains(&generation) && generation < self.next_generation;
        findings.require(
            drawn,
            ProblemKind::ExtentGeneration,
            position,
            format_args!("its {} was never used: the next one is {}", extent.generation, self.next_generation),
        );
        Ok(())
    }

    /// Checks that the chunk at `at`, whose word is `word`, can hold the extent.
    fn inspect_chunk_of(&self, at: ExtentLocation, word: u64, position: EntryPosition, findings: &mut Findings) {
        let text = match ChunkWord(word).decode() {
            Some(ChunkState::Owned { class, .. } | ChunkState::Orphan { class, .. }) if class == at.class => return,
            Some(ChunkState::Owned { class, .. } | ChunkState::Orphan { class, .. }) => {
                format!(
                    "its extent needs {}, but chunk {} holds {}",
                    describe_class(at.class),
                    at.chunk,
                    describe_class(class)
                )
            }
            Some(ChunkState::Free) => format!("its extent lies in chunk {}, which is free", at.chunk),
            Some(ChunkState::Tail { head }) => {
                format!("its extent starts in chunk {}, which is a tail of the run at chunk {head}", at.chunk)
            }
            Some(ChunkState::Claiming { owner, .. }) => {
                format!("its extent lies in chunk {}, which {owner} is claiming or freeing", at.chunk)
            }
            None => format!("its extent lies in chunk {}, whose word {word:#x} is not valid", at.chunk),
        };
        findings.add(ProblemKind::ExtentChunk, position, text);
    }

    /// Checks that no other entry refers to the extent. An entry that was moved since it was sampled does not count.
    async fn inspect_sharing(
        &mut self,
        words: &[u64],
        position: EntryPosition,
        extent: &ExtentRef,
        findings: &mut Findings,
    ) -> Result<(), FabricError> {
        let mut shared_with = self
            .referring(words, extent.offset)
            .find(|index| *index < position.index)
            .map(|index| (position.row, index));
        if let Some(before) =
            self.extents.insert(extent.offset, position.row.0).filter(|before| *before != position.row.0)
        {
            let (table, before, mut sampled) = (self.table, RowId(before), Vec::new());
            let mut valid = false;
            sample_rows(&mut *self.lane, table, before, 1, &mut sampled, |sample| valid = sample.valid).await?;
            findings.inconclusive |= !valid;
            if let Some(index) = self.referring(&sampled, extent.offset).next().filter(|_| valid) {
                shared_with = Some((before, index));
            }
        }
        if let Some((row, index)) = shared_with {
            let text = format!("it refers to the same extent as {}", EntryPosition { row, index });
            findings.add(ProblemKind::ExtentShared, position, text);
        }
        Ok(())
    }

    /// Returns the indices of the entries of a row that refer to the extent at `offset`.
    fn referring(&self, words: &[u64], offset: u64) -> impl Iterator<Item = usize> {
        let table = self.table;
        table.rows().occupied_entries(words).filter(move |index| {
            table.rows().entry_kind(words, *index) == EntryKind::Extent
                && table.rows().extent_of(words, *index).offset == offset
        })
    }

    /// Reads the extent, checks its contents, and appends its key to `key`.
    async fn inspect_content(
        &mut self,
        position: EntryPosition,
        extent: &ExtentRef,
        key: &mut Vec<u8>,
        findings: &mut Findings,
    ) -> Result<Key, FabricError> {
        read_extent(&mut *self.lane, extent, &mut self.buffers.extent).await?;
        match parse_extent(&self.buffers.extent, extent, self.table.rows().sums()) {
            Ok(parsed) => parsed.append_key(key),
            Err(error @ ExtentError::Replaced { .. }) => {
                findings.add(ProblemKind::ExtentReplaced, position, error.to_string());
                return Ok(Key::Unknown);
            }
            Err(error @ ExtentError::Torn { .. }) => {
                findings.add(ProblemKind::ExtentTorn, position, error.to_string());
                return Ok(Key::Unknown);
            }
        }
        let digest = self.table.placement().digest(key);
        if digest != extent.digest {
            let text =
                format!("its digest is {:#018x}, but the digest of its extent's key is {digest:#018x}", extent.digest);
            findings.add(ProblemKind::ExtentDigest, position, text);
            return Ok(Key::Unknown);
        }
        Ok(Key::Known)
    }
}
