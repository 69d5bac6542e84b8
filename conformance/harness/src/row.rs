//! A harness for rows: queries on unverified words, promises of rows that verify, and insertion and removal of entries.

use guira_layout::{
    Candidate, EntryFormat, EntryKind, ExtentRef, Generation, Probe, RowFormat, RowId, RowShape, Rows, Trailer, Version,
};

use super::case::{Case, heads};
use super::feed::{Feed, bytes_of};
use super::{Answer, Seed};

/// Decodes a table, a key with its digest, a value, a slot, and the words of a row.
///
/// # Panics
/// If a promise of rows or entries is broken.
pub fn row(data: &[u8]) -> Answer {
    let mut feed = Feed(data);
    let case = Case::draw(&mut feed);
    let at = RowId(feed.below(case.config().rows));
    let slot = feed.below(case.rows.entries() as u64) as usize;
    let flip = feed.word();
    let digest = feed.word();
    let (key, value) = (case.key(&mut feed), case.value(&mut feed));
    let mut words = feed.words(case.rows.row_words());
    let probe = case.rows.probe(&key, digest);
    assert_eq!((probe.key(), probe.digest()), (&key[..], digest));

    examine(&case, &words, &probe);
    special_rows(&case, at, &words, &probe);
    let verified = case.rows.verify(at, &words).is_ok();
    if verified {
        only_here(&case, at, &words, flip);
    }
    finished(&case, at, &mut words);
    replaced(&case, at, &mut words, slot);
    only_here(&case, at, &words, flip);
    special_rows(&case, at, &words, &probe);
    store_and_free(&case, at, &mut words, slot, &feed.words(case.rows.entry_words()));
    inline_entry(&case, &mut words, slot, &probe, &value);
    if case.config().format.has_extents() {
        extent_entry(&case, &mut words, slot, &probe, flip);
    }
    case.rows.format(at, &mut words);
    assert!(case.rows.verify(at, &words).is_ok() && case.rows.occupied(&words) == 0, "a formatted row is empty");
    Answer::of(verified)
}

/// Checks that on any words every query has an answer inside them, equal to that of a plain reading.
fn examine(case: &Case, words: &[u64], probe: &Probe<'_>) {
    let rows = &case.rows;
    let trailer = rows.trailer(words);
    let rebuilt = u64::from(trailer.version().0)
        | u64::from(trailer.level()) << 32
        | trailer.occupancy() << 36
        | trailer.extents() << 50;
    assert_eq!((trailer, rebuilt), (Trailer(rebuilt), words[rows.trailer_word()]));
    let occupied: Vec<usize> = (0..rows.entries()).filter(|slot| rebuilt >> 36 >> slot & 1 != 0).collect();
    assert_eq!(rows.occupancy(words), occupied.iter().fold(0, |bits, slot| bits | 1 << slot));
    assert_eq!(rows.occupied(words) as usize, occupied.len());
    assert_eq!(rows.free_entry(words), (0..rows.entries()).find(|slot| !occupied.contains(slot)));

    let expected: Vec<Candidate> = occupied.iter().filter_map(|slot| held(case, words, *slot, probe)).collect();
    let mut found = Vec::new();
    while let Some(candidate) = rows.find(words, probe, found.last().map_or(0, |last: &Candidate| last.index() + 1)) {
        found.push(candidate);
    }
    assert_eq!(found, expected);

    let entry_bytes = rows.entry_words() * 8;
    for slot in 0..rows.entries() {
        let entry = bytes_of(rows.entry(words, slot));
        let (mut key, mut value) = (Vec::new(), Vec::new());
        rows.append_inline_key(words, slot, &mut key);
        rows.append_inline_value(words, slot, &mut value);
        let start = if case.config().format.has_extents() { 8 } else { 0 };
        assert!(start + key.len() + value.len() <= entry_bytes, "an entry's parts lie inside it");
        assert_eq!([&key[..], &value].concat(), entry[start..][..key.len() + value.len()]);
        assert_eq!(rows.inline_value_bytes(words, slot), value.len());
        assert!(rows.inline_value_is(words, slot, &value));
        value.push(0);
        assert!(!rows.inline_value_is(words, slot, &value), "a longer value");
        if let [first, .., _] = &mut value[..] {
            *first ^= 1;
            value.pop();
            assert!(!rows.inline_value_is(words, slot, &value), "another value");
        }
        let extent = case.config().format.has_extents() && trailer.extents() >> slot & 1 != 0;
        assert_eq!(rows.entry_kind(words, slot) == EntryKind::Extent, extent);
        if extent {
            let extent = rows.extent_of(words, slot);
            let mut again = vec![0; rows.entry_words()];
            rows.encode_extent_entry(&mut again, &extent);
            assert_eq!(again[..4], rows.entry(words, slot)[..4], "an extent entry encodes to itself");
        }
    }
}

/// Checks that the table's specialized row reader, if any, answers as the general one does.
fn special_rows(case: &Case, at: RowId, words: &[u64], probe: &Probe<'_>) {
    match case.rows.shape() {
        RowShape::Fixed4x4(special) => agrees(&special, &case.rows, at, words, probe),
        RowShape::Fixed8x8(special) => agrees(&special, &case.rows, at, words, probe),
        RowShape::General => {}
    }
}

fn agrees(special: &impl Rows, rows: &RowFormat, at: RowId, words: &[u64], probe: &Probe<'_>) {
    assert_eq!(special.row_words(), rows.row_words());
    assert_eq!(special.verify(rows.sums(), at, words), rows.verify(at, words));
    assert_eq!(special.version(words), rows.trailer(words).version());
    let (key, expected) = (special.probe(probe.key(), probe.digest()), rows.find(words, probe, 0));
    let found = special.seek(words, &key, &[]);
    // A free entry that is not zeroed, which no client leaves behind, may hide the key.
    let is_zeroed = |slot: usize| rows.entry(words, slot).iter().all(|word| *word == 0);
    let occupancy = rows.occupancy(words);
    let hidden = (0..rows.entries()).any(|slot| occupancy >> slot & 1 == 0 && !is_zeroed(slot));
    if !hidden || found.is_some() {
        assert_eq!(found.is_some(), expected.is_some());
    }
    if let (Some(found), Some(Candidate::Inline(slot))) = (found, expected) {
        assert_eq!(special.extent_of(words, &found), None);
        let (mut value, mut of_slot) = (Vec::new(), Vec::new());
        special.append_value(words, &found, &mut value);
        rows.append_inline_value(words, slot, &mut of_slot);
        assert_eq!(value, of_slot);
    }
    assert!(
        special.verify(rows.sums(), at, &words[1..]).is_err() && special.seek(&words[1..], &key, &[]).is_none(),
        "cut short"
    );
}

/// Returns what slot `slot` holds of the key looked for, read byte by byte.
fn held(case: &Case, words: &[u64], slot: usize, probe: &Probe<'_>) -> Option<Candidate> {
    let entry = bytes_of(case.rows.entry(words, slot));
    let (key, low_half) = (probe.key(), 4..8);
    match case.config().format {
        EntryFormat::Fixed { .. } => entry.starts_with(key).then_some(Candidate::Inline(slot)),
        EntryFormat::Bytes { .. } if words[case.rows.trailer_word()] >> 50 >> slot & 1 != 0 => {
            entry.starts_with(&probe.digest().to_le_bytes()).then_some(Candidate::Extent(slot))
        }
        EntryFormat::Bytes { .. } => {
            let length = usize::from(u16::from_le_bytes([entry[0], entry[1]]));
            let digest = probe.digest().to_le_bytes();
            let is_key = length == key.len() && entry[low_half] == digest[4..] && entry[8..].starts_with(key);
            is_key.then_some(Candidate::Inline(slot))
        }
    }
}

/// Checks that a row verifies only at its own row number, and only unchanged. [R-ROW-1]
fn only_here(case: &Case, at: RowId, words: &[u64], flip: u64) {
    case.rows.verify(at, words).expect("the row verifies");
    assert!(case.rows.verify(RowId(at.0 + 1), words).is_err(), "a misdirected row");
    let mut damaged = words.to_vec();
    damaged[(flip >> 6) as usize % words.len()] ^= 1 << (flip % 64);
    assert!(case.rows.verify(at, &damaged).is_err(), "a flipped bit");
}

/// Position in the trailer of the number of the entry that a blind write replaced, in rows of few enough entries.
const REPLACED_SHIFT: u32 = 60;
const MAX_MARKED_ENTRIES: usize = 10;

/// Checks that finishing a change sets the next version, in the table's bits, names no replaced entry, and changes
/// nothing else. [R-ROW-2]
fn finished(case: &Case, at: RowId, words: &mut [u64]) {
    let before = words.to_vec();
    case.rows.finish(at, words);
    only_version_changed(case, words, &before, 0);
    assert_eq!(case.rows.replaced_entry(words), None);
}

/// Checks that finishing a blind write that replaced the value in `slot` does the same, and names that entry, if the
/// trailer has room. [R-LOCK-10]
fn replaced(case: &Case, at: RowId, words: &mut [u64], slot: usize) {
    let before = words.to_vec();
    case.rows.finish_replaced(at, words, slot);
    only_version_changed(case, words, &before, slot as u64 + 1);
    let is_named = case.rows.entries() <= MAX_MARKED_ENTRIES;
    assert_eq!(case.rows.replaced_entry(words), is_named.then_some(slot));
    assert_eq!(case.rows.occupancy(words), case.rows.occupancy(&before));
}

/// Checks that a row has the next version, and the number `replaced` if its trailer has room, and is else unchanged but
/// for its checksum.
fn only_version_changed(case: &Case, words: &[u64], before: &[u64], replaced: u64) {
    let rows = &case.rows;
    let version_mask = ((1u64 << case.config().version_bits) - 1) as u32;
    let version = rows.trailer(before).version().0.wrapping_add(1) & version_mask;
    assert_eq!(rows.trailer(words).version(), Version(version));
    assert_eq!(words[..rows.trailer_word()], before[..rows.trailer_word()]);
    let mut expected = before[rows.trailer_word()];
    if rows.entries() <= MAX_MARKED_ENTRIES {
        expected = expected << (64 - REPLACED_SHIFT) >> (64 - REPLACED_SHIFT) | replaced << REPLACED_SHIFT;
    }
    assert_eq!(words[rows.trailer_word()] >> 32, expected >> 32);
}

/// Checks that storing an entry changes nothing else, and that freeing it leaves nothing behind. [R-ROW-3]
fn store_and_free(case: &Case, at: RowId, words: &mut [u64], slot: usize, entry: &[u64]) {
    let rows = &case.rows;
    let bit = 1 << slot;
    for placement in [EntryKind::Inline, EntryKind::Extent] {
        let before = words.to_vec();
        rows.put_entry(words, slot, entry, placement);
        let types = if placement == EntryKind::Extent { bit } else { 0 };
        only_this_slot_changed(case, words, &before, slot, entry, (bit, types));
        rows.finish(at, words);
        rows.verify(at, words).expect("a finished row verifies");
        let before = words.to_vec();
        rows.clear_entry(words, slot);
        only_this_slot_changed(case, words, &before, slot, &vec![0; entry.len()], (0, 0));
        rows.finish(at, words);
        rows.verify(at, words).expect("a finished row verifies");
    }
}

/// Checks that `slot` holds `entry`, its bits of occupancy and type are `bits`, and all else is unchanged but the
/// checksum.
fn only_this_slot_changed(case: &Case, words: &[u64], before: &[u64], slot: usize, entry: &[u64], bits: (u64, u64)) {
    let rows = &case.rows;
    assert_eq!(rows.entry(words, slot), entry);
    for other in (0..rows.entries()).filter(|other| *other != slot) {
        assert_eq!(rows.entry(words, other), rows.entry(before, other));
    }
    let end = rows.entries() * rows.entry_words();
    assert_eq!(words[end..rows.trailer_word()], before[end..rows.trailer_word()], "padding");
    let cleared = before[rows.trailer_word()] & !(1 << slot << 36 | 1 << slot << 50);
    assert_eq!(words[rows.trailer_word()], cleared | bits.0 << 36 | bits.1 << 50);
}

/// Checks that an inline entry is found, and gives back its key and value.
fn inline_entry(case: &Case, words: &mut [u64], slot: usize, probe: &Probe<'_>, value: &[u8]) {
    let rows = &case.rows;
    let (key_bytes, value_bytes) = (probe.key().len(), value.len());
    assert!(rows.accepts_key(key_bytes) && rows.accepts_value(value_bytes));
    if rows.kind_for(key_bytes, value_bytes) == EntryKind::Extent {
        return;
    }
    let mut entry = vec![!0; rows.entry_words()];
    rows.encode_inline(&mut entry, probe, value);
    rows.put_entry(words, slot, &entry, EntryKind::Inline);
    assert_eq!(rows.find(words, probe, slot), Some(Candidate::Inline(slot)));
    let (mut key_back, mut value_back) = (Vec::new(), Vec::new());
    rows.append_inline_key(words, slot, &mut key_back);
    rows.append_inline_value(words, slot, &mut value_back);
    assert_eq!((&key_back[..], &value_back[..]), (probe.key(), value));
    examine(case, words, probe);
}

/// Checks that an entry that refers to an extent is found by its digest, and gives back its extent.
fn extent_entry(case: &Case, words: &mut [u64], slot: usize, probe: &Probe<'_>, seed: u64) {
    let rows = &case.rows;
    let extent = ExtentRef {
        digest: probe.digest(),
        offset: seed & Generation::MAX,
        generation: Generation(seed.rotate_left(20) & Generation::MAX),
        key_bytes: probe.key().len() as u32,
        value_bytes: (seed >> 40) as u32,
    };
    let mut entry = vec![!0; rows.entry_words()];
    rows.encode_extent_entry(&mut entry, &extent);
    rows.put_entry(words, slot, &entry, EntryKind::Extent);
    assert_eq!(rows.extent_of(words, slot), extent);
    assert_eq!(rows.find(words, probe, slot), Some(Candidate::Extent(slot)));
    examine(case, words, probe);
}

/// Returns seeds: a row of each table that holds the input's own key twice, and others; intact, and with a damaged
/// trailer.
pub(super) fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (name, head) in heads() {
        let case = Case::draw(&mut Feed(&head));
        let rows = &case.rows;
        let (at, digest) = (RowId(1), 0x1234_5678_9abc_def0_u64);
        let (key_bytes, value_bytes) = match case.config().format {
            EntryFormat::Fixed { key_bytes, value_bytes } => (usize::from(key_bytes), usize::from(value_bytes)),
            EntryFormat::Bytes { .. } => (9, 13),
        };
        let (key, value) = (vec![b'k'; key_bytes], vec![b'v'; value_bytes]);
        let mut words = vec![0; rows.row_words()];
        rows.format(at, &mut words);
        let mut entry = vec![0; rows.entry_words()];
        for slot in [0, rows.entries() - 1] {
            rows.encode_inline(&mut entry, &rows.probe(&key, digest), &value);
            rows.put_entry(&mut words, slot, &entry, EntryKind::Inline);
        }
        if case.config().format.has_extents() && rows.entries() > 2 {
            let (offset, generation) = (case.geometry.chunk(0).offset() + 4096, Generation(77));
            let extent = ExtentRef { digest, offset, generation, key_bytes: 9, value_bytes: 500 };
            rows.encode_extent_entry(&mut entry, &extent);
            rows.put_entry(&mut words, 1, &entry, EntryKind::Extent);
        }
        rows.finish(at, &mut words);
        let mut input = head.clone();
        input.extend([1, 0, 0x4321, digest].iter().flat_map(|word: &u64| word.to_le_bytes()));
        // The length bytes mean nothing in fixed formats.
        input.push(key_bytes as u8);
        input.extend(&key);
        input.push(value_bytes as u8);
        input.extend(&value);
        input.extend(bytes_of(&words));
        seeds.push((name, input));
    }
    seeds
}
