//! Finds out whether an extent that is not marked free is still in use. Dead clients leak extents: no entry refers to
//! them, and no client marked them.
//!
//! Invariant: an extent counts as leaked only if no client will ever refer to it, or write its mark, again. R-RECOVER-7
//! in docs/protocol.md has the argument.

use guira_fabric::{Addr, FabricError, Lane, Verb, post};
use guira_layout::{EntryKind, ExtentRef, Generation, MAX_EXTENT_HEADER_WORDS, RECOVERIES_WORD, RowId, parse_extent};

use crate::lookup::{MissSample, TRAILER_WORDS, Verdict, miss_verdict};
use crate::{RowPair, Table, read_extent};

/// The use of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentUse {
    /// An entry refers to the extent.
    Linked,
    /// Nothing refers to the extent, and nothing will.
    Leaked,
    /// Not known: a client is changing a row that the entry may be in, or died while doing so, or that row is damaged.
    Unsettled,
}

/// Returns how many dead clients were recovered in the table so far, or a larger number: a recoverer counts the client
/// before it frees the slot. Everything that a death leaked was leaked before it was counted. 1 round trip. Source:
/// R-RECOVER-7.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn count_recoveries(lane: &mut dyn Lane, table: &Table) -> Result<u64, FabricError> {
    let mut count = [0];
    post(lane, [Verb::Read { addr: table.geometry().superblock_word(RECOVERIES_WORD), into: &mut count }]).await?;
    Ok(count[0])
}

/// Returns the use of the extent of `generation` that begins at byte `offset` of the main space, in a slot of
/// `slot_words` words. The caller owns the chunk of that slot, and has no pending change that links the extent. Round
/// trips: 3 if an entry refers to it; 1 or 2 if it was not written completely; 4 otherwise. Source: R-RECOVER-7.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn look_up_extent(
    lane: &mut dyn Lane,
    table: &Table,
    offset: u64,
    generation: Generation,
    place_words: u64,
) -> Result<ExtentUse, FabricError> {
    let mut header = [0; MAX_EXTENT_HEADER_WORDS];
    post(lane, [Verb::Read { addr: Addr::main(offset), into: &mut header }]).await?;
    let extent = ExtentRef::of_header(offset, &header);
    let fits = |words: usize| words as u64 <= place_words;
    // An extent that was not written completely was never linked. // [R-EXTENT-1]
    if extent.generation != generation || !extent.words().is_some_and(fits) {
        return Ok(ExtentUse::Leaked);
    }
    let mut words = Vec::new();
    read_extent(lane, &extent, &mut words).await?;
    let Ok(parsed) = parse_extent(&words, &extent, table.rows().sums()) else {
        return Ok(ExtentUse::Leaked);
    };
    let mut key = Vec::new();
    parsed.append_key(&mut key);
    let (placement, digest) = (table.placement(), table.placement().digest(&key));
    let mut pair = placement.rows(digest);
    // Ends: each segment was split from the one before. // [R-GROW-3]
    loop {
        match find_entry(lane, table, pair, digest, &extent).await? {
            Found::Use(found) => return Ok(found),
            Found::Elsewhere { row, trailer } => match placement.next_segment(row, trailer, digest) {
                Some((segments, next)) => pair = placement.rows_beside(segments.first_row(next), digest),
                None => return Ok(ExtentUse::Unsettled),
            },
        }
    }
}

/// The result of looking for the entry of an extent.
enum Found {
    /// The extent has this use.
    Use(ExtentUse),
    /// This row, whose trailer begins with this word, says that the extent's key is in another segment.
    Elsewhere { row: RowId, trailer: u64 },
}

/// Looks for `extent` among the entries of `pair`, validated as a miss is, and then reads the rows' locks: a client
/// that took the extent out of the index, and has yet to mark it, holds one of them. [R-RECOVER-7] [R-READ-3]
async fn find_entry(
    lane: &mut dyn Lane,
    table: &Table,
    pair: RowPair,
    digest: u64,
    extent: &ExtentRef,
) -> Result<Found, FabricError> {
    let (rows, locks) = (table.rows(), table.locks());
    let numbers = [pair.first, pair.second];
    let mut words = vec![0; 2 * rows.row_words()];
    post(lane, table.read_rows(&numbers, &mut words).collect::<Vec<_>>()).await?;
    if words.chunks_exact(rows.row_words()).any(|words| refers_to(table, words, extent)) {
        return Ok(Found::Use(ExtentUse::Linked));
    }
    let mut trailers = [[0; TRAILER_WORDS]; 2];
    let mut held = [[0]; 2];
    let masks = numbers.map(|row| locks.mask(locks.lock_of(row)));
    let again = numbers.iter().zip(&mut trailers).map(|(row, into)| table.read_trailer(*row, into));
    let lock_reads = masks.iter().zip(&mut held).map(|(mask, into)| Verb::Read { addr: locks.addr(mask.word), into });
    post(lane, again.chain(lock_reads).collect::<Vec<_>>()).await?;
    let is_free = masks.iter().zip(&held).all(|(mask, [word])| word & mask.mask == 0);
    let (first, second) = words.split_at(rows.row_words());
    let missed = [MissSample::of(table, &rows, pair.first, first), MissSample::of(table, &rows, pair.second, second)];
    let has_moved = |sample: &&MissSample| {
        sample.is_whole && table.placement().moved_to(sample.row, sample.trailer[0], digest).is_some()
    };
    if let Some(MissSample { row, trailer, .. }) = missed.iter().find(has_moved) {
        return Ok(Found::Elsewhere { row: *row, trailer: trailer[0] });
    }
    let verdict = miss_verdict::<()>([&missed[0], &missed[1]], trailers.map(Some));
    let is_settled = is_free && matches!(verdict, Verdict::Absent);
    Ok(Found::Use(if is_settled { ExtentUse::Leaked } else { ExtentUse::Unsettled }))
}

/// Whether an entry of a row, sampled as `words`, refers to `extent`. In a row that does not verify the entry may be
/// invalid, but it is reason enough to leave the extent alone.
fn refers_to(table: &Table, words: &[u64], extent: &ExtentRef) -> bool {
    let rows = table.rows();
    let mut extents = rows.occupied_entries(words).filter(|slot| rows.entry_kind(words, *slot) == EntryKind::Extent);
    extents.any(|slot| {
        let found = rows.extent_of(words, slot);
        (found.offset, found.generation) == (extent.offset, extent.generation)
    })
}
