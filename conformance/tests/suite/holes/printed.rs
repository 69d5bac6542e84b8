//! The behaviour that the paper prints, or leaves open, where Guira's code differs under both presets.

use guira_conformance::ScheduledLane;
use guira_fabric::{Lane, Verb, pause_until, post};
use guira_layout::{ExtentRef, RowId};
use guira_rcuckoo::Table;

/// Computes CRC-64 of ECMA-182 over `words` as printed: without a seed, from a register of 0.
pub fn crc64(words: &[u64]) -> u64 {
    const POLYNOMIAL: u64 = 0x42f0_e1eb_a9ea_3693;
    words.iter().flat_map(|word| word.to_be_bytes()).fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(byte) << 56, |crc, _| crc << 1 ^ if crc >> 63 == 1 { POLYNOMIAL } else { 0 })
    })
}

/// Whether a row has the printed checksum, which covers the entire row and nothing else.
pub fn verifies(row: &[u64]) -> bool {
    row.split_last().is_some_and(|(crc, words)| *crc == crc64(words))
}

/// Gives a row the printed checksum.
pub fn finish(row: &mut [u64]) {
    let (crc, words) = row.split_last_mut().expect("a row has a trailer");
    *crc = crc64(words);
}

/// The rows that a lookup samples again when one of them does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The torn row.
    TornRow,
    /// Both rows.
    Both,
}

/// Looks an inline key up as printed, with misses that are validated as R-READ-3 says, so that only its retry is in
/// question. The lane samples in the order of the batch.
pub async fn look_up(lane: &mut ScheduledLane, table: &Table, key: &[u8], retry: Retry) -> Option<Vec<u8>> {
    let (rows, geometry) = (table.rows(), *table.geometry());
    let pair = table.placement().rows(table.placement().digest(key));
    let (mut first, mut second) = (vec![0; rows.row_words()], vec![0; rows.row_words()]);
    let whole = |row: RowId, words: &[u64]| rows.verify(row, words).is_ok();
    let mut samples_both = true;
    for _ in 0..16 {
        let mut trailer = [0; 2];
        if samples_both || !whole(pair.first, &first) {
            let again = Verb::Read { addr: geometry.trailer(pair.first, rows), into: &mut trailer };
            let read_first = Verb::Read { addr: geometry.row(pair.first), into: &mut first };
            let read_second = Verb::Read { addr: geometry.row(pair.second), into: &mut second };
            post(lane, [read_first, read_second, again]).await.expect("the heap reads");
            if trailer != first[rows.trailer_word()..] {
                continue;
            }
        } else {
            post(lane, [Verb::Read { addr: geometry.row(pair.second), into: &mut second }]).await.expect("it reads");
        }
        let probe = rows.probe(key, table.placement().digest(key));
        for (row, words) in [(pair.first, &first), (pair.second, &second)] {
            if let Some(hit) = rows.find(words, &probe, 0).filter(|_| whole(row, words)) {
                let mut value = Vec::new();
                rows.append_inline_value(words, hit.index(), &mut value);
                return Some(value);
            }
        }
        if whole(pair.first, &first) && whole(pair.second, &second) {
            return None;
        }
        samples_both = retry == Retry::Both || !whole(pair.first, &first);
        let until_ns = lane.now_ns() + 1;
        pause_until(lane, until_ns).await;
    }
    panic!("a row stays torn for ever");
}

/// Returns what a lookup reads where an entry points, whatever it is. As printed, an entry has a pointer and a length,
/// and the value is the extent.
pub fn value_at(words: &[u64], extent: &ExtentRef) -> Vec<u8> {
    let before = extent.header_words() + (extent.key_bytes as usize).div_ceil(8);
    let bytes: Vec<u8> = words[before..].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes[..extent.value_bytes as usize].to_vec()
}
