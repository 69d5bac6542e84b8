//! Harnesses for extents and the chunks they are cut from.

use guira_layout::{
    CHUNK_HEADER_WORDS, ChunkState, ChunkWord, ExtentClass, ExtentError, ExtentRef, Generation,
    MAX_EXTENT_HEADER_WORDS, MAX_KEY_BYTES, MAX_VALUE_BYTES, OwnerId, Sums, encode_extent, extent_key_matches,
    extent_words, parse_extent,
};

use super::case::{Case, heads};
use super::feed::{Feed, bytes_of};
use super::{Answer, Seed};

/// Most words of an extent in a harness; longer ones test nothing else.
const WORDS_MAX: usize = 64;

/// Decodes a table, an entry's reference to an extent, a key to compare with, and the words at the extent's address.
///
/// # Panics
/// If a promise of extents is broken.
pub fn extent(data: &[u8]) -> Answer {
    let mut feed = Feed(data);
    let case = Case::draw(&mut feed);
    let mut extent = ExtentRef {
        digest: feed.word(),
        offset: feed.word(),
        generation: Generation(feed.word()),
        key_bytes: feed.word() as u32,
        value_bytes: feed.word() as u32,
    };
    let count = usize::from(feed.byte()) % WORDS_MAX;
    let mut words = feed.words(count);

    mark(&case, &extent);
    let found = parsed(&case, &words, &extent);
    // These are a generation and lengths that fit, and the header and checksum that belong to them.
    extent.generation.0 &= Generation::MAX;
    let room = count.saturating_sub(MAX_EXTENT_HEADER_WORDS) * 8;
    extent.key_bytes %= room as u32 + 1;
    extent.value_bytes %= (room - (extent.key_bytes as usize).next_multiple_of(8).min(room)) as u32 + 1;
    words.resize(extent.words().expect("lengths that fit"), 0);
    let [first, lengths] = identity(&extent);
    words[0] = first;
    if !is_short(&extent) {
        words[2] = lengths;
    }
    words[1] = checksum(&case, &words, &extent);
    assert_eq!(parsed(&case, &words, &extent), Answer::Accepted);
    mark(&case, &extent);
    found
}

/// Whether the first word of an extent has its lengths.
fn is_short(extent: &ExtentRef) -> bool {
    extent.key_bytes < 256 && extent.value_bytes < 255
}

/// Returns the first word of an extent and its lengths as docs/layout.md says.
fn identity(extent: &ExtentRef) -> [u64; 2] {
    let (key, value) = (u64::from(extent.key_bytes), u64::from(extent.value_bytes));
    let (short_key, short_value) = if is_short(extent) { (key, value) } else { (0, 255) };
    [extent.generation.0 | short_key << 48 | short_value << 56, key | value << 32]
}

/// Computes an extent's checksum as docs/layout.md says.
fn checksum(case: &Case, words: &[u64], extent: &ExtentRef) -> u64 {
    let place = case.superblock.checksum_seed() ^ extent.offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let keys = guira_layout::sum::NhKeys::new(case.superblock.secret.0);
    let head = guira_layout::sum::nh_at(&keys, guira_layout::sum::Level::Last, &identity(extent), place);
    guira_layout::sum::nh(&keys, &words[if is_short(extent) { 2 } else { 3 }..], head)
}

/// Parses an extent: a valid one lies inside its words and encodes to them; an invalid one has a reason. [R-READ-6]
fn parsed(case: &Case, words: &[u64], extent: &ExtentRef) -> Answer {
    let parsed = match parse_extent(words, extent, case.rows.sums()) {
        Ok(parsed) => parsed,
        Err(ExtentError::Replaced { wanted, found }) => {
            assert!(wanted == extent.generation && found.0 == words[0] & Generation::MAX && found != wanted);
            return Answer::Refused;
        }
        Err(ExtentError::Torn { generation }) => {
            assert_eq!(generation, extent.generation);
            return Answer::Refused;
        }
    };
    let (mut key, mut value) = (Vec::new(), Vec::new());
    parsed.append_key(&mut key);
    parsed.append_value(&mut value);
    let bytes = bytes_of(words);
    let key_at = if is_short(extent) { 16 } else { 24 };
    let value_at = key_at + key.len().next_multiple_of(8);
    assert_eq!((key.len(), value.len()), (extent.key_bytes as usize, extent.value_bytes as usize));
    assert_eq!((&bytes[key_at..][..key.len()], &bytes[value_at..][..value.len()]), (&key[..], &value[..]));
    assert_eq!(words.len(), extent_words(key.len(), value.len()));
    assert_eq!(words[1], checksum(case, words, extent));

    let mut other = key.clone();
    other.push(0);
    assert!(parsed.has_key(&key) && !parsed.has_key(&other));
    assert_eq!(extent_key_matches(words, extent, &key), Ok(true));
    assert_eq!(extent_key_matches(words, extent, &other), Ok(false));
    other.pop();
    if let Some(last) = other.last_mut() {
        *last ^= 1;
        assert!(!parsed.has_key(&other));
        assert_eq!(extent_key_matches(words, extent, &other), Ok(false));
    }
    assert!(parsed.has_value(&value));
    let mut other = value.clone();
    other.push(0);
    assert!(!parsed.has_value(&other), "a longer value");
    other.pop();
    if let Some(first) = other.first_mut() {
        *first ^= 1;
        assert!(!parsed.has_value(&other), "another value");
    }
    let moved = ExtentRef { offset: extent.offset ^ 8, ..*extent };
    let mut elsewhere = case.superblock.clone();
    elsewhere.incarnation = !elsewhere.incarnation;
    let sums = case.rows.sums();
    assert!(parse_extent(words, &moved, sums).is_err(), "another place");
    assert!(parse_extent(words, extent, &Sums::new(&elsewhere)).is_err(), "another incarnation");

    let mut again = Vec::new();
    encode_extent(&mut again, extent, &key, &value, sums);
    let padding_is_zero = bytes[key_at + key.len()..value_at].iter().chain(&bytes[value_at + value.len()..]);
    if padding_is_zero.copied().all(|byte| byte == 0) {
        assert_eq!(again, words);
    } else {
        assert!(parse_extent(&again, extent, sums).is_ok());
    }
    Answer::Accepted
}

/// Checks that the mark that frees an extent lies among the marks of its chunk, and the extent inside the chunks. //
/// [R-EXTENT-4]
pub(super) fn mark(case: &Case, extent: &ExtentRef) {
    let (config, geometry) = (case.config(), &case.geometry);
    let possible = extent.key_bytes as usize <= MAX_KEY_BYTES && extent.value_bytes as usize <= MAX_VALUE_BYTES;
    assert_eq!(extent.words().is_some(), possible);
    let Some(mark) = extent.mark_offset(config, geometry) else { return };
    let words = extent.words().expect("only a possible extent has a mark");
    let (chunk, within) = geometry.chunk_of(extent.offset).expect("it lies in a chunk");
    let start = geometry.chunk(chunk).offset();
    let class = ExtentClass::of(words, config.chunk_bytes);
    let slot = class.slot_of(within, config.chunk_bytes).expect("it lies in a slot");
    assert_eq!(extent.offset, start + class.slot_at(slot, config.chunk_bytes));
    assert_eq!(mark, start + class.mark_at(slot));
    let end = extent.offset + words as u64 * 8;
    assert!(mark >= start + CHUNK_HEADER_WORDS * 8 && mark + 8 <= start + class.slot_at(0, config.chunk_bytes));
    assert!(end <= start + class.chunks() * config.chunk_bytes && end <= geometry.main_bytes());
}

/// Decodes a table, a word of the chunk table, an offset in a chunk, and an extent's size.
///
/// # Panics
/// If a promise of chunks is broken.
pub fn chunk(data: &[u8]) -> Answer {
    let mut feed = Feed(data);
    let case = Case::draw(&mut feed);
    let word = feed.word();
    let offset = feed.word();
    let size = feed.word() as usize % extent_words(MAX_KEY_BYTES, MAX_VALUE_BYTES) + 1;
    let state = ChunkWord(word).decode();
    if let Some(state) = state {
        assert_eq!(ChunkWord::encode(state), ChunkWord(word), "a word means one state or none");
    }
    let class = match state {
        Some(
            ChunkState::Owned { class, .. } | ChunkState::Orphan { class, .. } | ChunkState::Claiming { class, .. },
        ) => Some(class),
        Some(ChunkState::Free | ChunkState::Tail { .. }) | None => None,
    };
    if let Some((chunk, within)) = case.geometry.chunk_of(offset) {
        assert_eq!(case.geometry.chunk(chunk).offset() + within, offset);
        assert!(within < case.config().chunk_bytes && chunk < case.config().chunks);
    }
    if !case.config().format.has_extents() {
        return Answer::of(state.is_some());
    }
    if let Some(class) = class.filter(|class| class.fits(case.config())) {
        check_division(&case, class, offset);
    }
    let chunk_bytes = case.config().chunk_bytes;
    let class = ExtentClass::of(size, chunk_bytes);
    if class.fits(case.config()) {
        check_division(&case, class, offset);
        assert!(class.slot_at(0, chunk_bytes) + size as u64 * 8 <= class.chunks() * chunk_bytes);
    } else {
        assert!(class.chunks() > case.config().chunks, "an extent is refused only for its size");
    }
    assert!(class.bytes(chunk_bytes) >= size as u64 * 8);
    Answer::of(state.is_some())
}

/// Checks that marks and slots of a chunk of `class` do not overlap, and that each offset belongs to one slot or none.
/// [R-EXTENT-2]
fn check_division(case: &Case, class: ExtentClass, offset: u64) {
    let chunk_bytes = case.config().chunk_bytes;
    let slots = class.slots(chunk_bytes);
    match class {
        ExtentClass::Slot(_) => assert!(slots >= 2 && class.chunks() == 1),
        ExtentClass::Run(chunks) => assert_eq!((slots, class.chunks()), (1, chunks.into())),
    }
    let (first, last) = (class.slot_at(0, chunk_bytes), class.slot_at(slots - 1, chunk_bytes));
    assert!(class.mark_at(0) == CHUNK_HEADER_WORDS * 8 && class.mark_at(slots - 1) + 8 == first);
    if let ExtentClass::Slot(_) = class {
        assert!(last + class.bytes(chunk_bytes) <= chunk_bytes);
    }
    let slot = offset % slots;
    assert_eq!(class.slot_of(class.slot_at(slot, chunk_bytes), chunk_bytes), Some(slot));
    let within = offset % chunk_bytes;
    if let Some(slot) = class.slot_of(within, chunk_bytes) {
        assert!(slot < slots && class.slot_at(slot, chunk_bytes) == within);
    }
}

/// Returns seeds: in each table with extents a small one, one that fills its slot, and one that is not short.
pub(super) fn extent_seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (name, head) in heads() {
        let case = Case::draw(&mut Feed(&head));
        if !case.config().format.has_extents() {
            continue;
        }
        let sizes =
            [("small", &b"key"[..], &b"a value"[..]), ("whole", &[7; 16], &[9; 224]), ("long", &[7; 9], &[9; 300])];
        for (size, key, value) in sizes {
            let class = ExtentClass::of(extent_words(key.len(), value.len()), case.config().chunk_bytes);
            let offset = case.geometry.chunk(1).offset() + class.slot_at(1, case.config().chunk_bytes);
            let (key_bytes, value_bytes) = (key.len() as u32, value.len() as u32);
            let extent = ExtentRef { digest: 1, offset, generation: Generation(9), key_bytes, value_bytes };
            let mut words = Vec::new();
            encode_extent(&mut words, &extent, key, value, case.rows.sums());
            let fields = [1, offset, 9, key_bytes.into(), value_bytes.into()].map(u64::to_le_bytes).concat();
            let input = [&head[..], &fields, &[words.len() as u8], &bytes_of(&words)].concat();
            seeds.push((format!("{name}-{size}"), input));
        }
    }
    seeds
}

/// Returns seeds: every kind of chunk word, in every table.
pub(super) fn chunk_seeds() -> Vec<Seed> {
    let (slots, run) = (ExtentClass::Slot(3), ExtentClass::Run(9));
    let states = [
        ("free", ChunkState::Free),
        ("owned", ChunkState::Owned { owner: OwnerId(5), class: slots }),
        ("owned-run", ChunkState::Owned { owner: OwnerId(5), class: run }),
        ("orphan", ChunkState::Orphan { class: slots, free: 12 }),
        ("orphan-run", ChunkState::Orphan { class: run, free: 0 }),
        ("tail", ChunkState::Tail { head: 7 }),
        ("claiming", ChunkState::Claiming { owner: OwnerId(5), class: slots }),
        ("claiming-run", ChunkState::Claiming { owner: OwnerId(5), class: run }),
    ];
    let mut seeds = Vec::new();
    for (index, (name, head)) in heads().into_iter().enumerate() {
        let case = Case::draw(&mut Feed(&head));
        let has_extents = case.config().format.has_extents();
        let offset = if has_extents { case.geometry.chunk(2).offset() + 512 } else { 512 };
        let wanted = if has_extents { &states[..] } else { &states[index % states.len()..][..1] };
        for (state_name, state) in wanted {
            let fields = [ChunkWord::encode(*state).0, offset, 1 << (index % 23)].map(u64::to_le_bytes).concat();
            seeds.push((format!("{name}-{state_name}"), [&head[..], &fields].concat()));
        }
    }
    seeds
}
