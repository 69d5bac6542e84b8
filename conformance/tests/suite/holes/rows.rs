//! Holes in the contents of rows, and in the order in which they are written: H4, H13, H26, H27.

use std::collections::BTreeSet;

use guira_conformance::{Bench, Flaw, Granularity, ScheduledLane, Scheduler};
use guira_fabric::Profile;
use guira_layout::sum::NhKeys;
use guira_layout::{ChecksumKind, EntryKind, Preset, RowId};

use crate::holes::logged::{Log, logged};
use crate::holes::printed;
use guira_conformance::crowded::{Fixture, HOME, PRESETS, SEED, client, config, operate, value_of};

/// [R-ROW-1] H4. With a checksum over the row and nothing else, a row of zeros verifies (if the register begins at 0),
/// and so does every row at every other row's address, and one of another table.
#[test]
fn h04_a_zeroed_or_misdirected_row_verifies() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, RowId(HOME.0 + 5));
        let other = Bench::of_config(config(preset, "fixed:8:8"), Profile::Tcp, SEED + 1);
        let (rows, zeros) = (fixture.bench.table.rows(), vec![0; fixture.bench.table.rows().row_words()]);
        assert!(printed::verifies(&zeros) && rows.verify(HOME, &zeros).is_err());
        let (mut printed_accepts, mut ours) = (0, 0);
        for row in (0..fixture.bench.table.config().rows).map(RowId) {
            let words = fixture.bench.row_words(row);
            assert!(rows.verify(row, &words).is_ok());
            assert!(other.table.rows().verify(row, &words).is_err(), "a row of another table");
            let mut as_printed = words.clone();
            printed::finish(&mut as_printed);
            // A client that reads any row and gets this one, by a wrong address or from an old mapping, accepts it.
            printed_accepts += u64::from(printed::verifies(&as_printed)) * (fixture.bench.table.config().rows - 1);
            let elsewhere = (0..fixture.bench.table.config().rows).map(RowId).filter(|place| *place != row);
            ours += elsewhere.filter(|place| rows.verify(*place, &words).is_ok()).count();
            as_printed[0] ^= 1;
            assert!(!printed::verifies(&as_printed), "it is a checksum nevertheless");
        }
        println!(
            "H4 {preset}: of 64 × 63 rows in wrong places the printed checksum accepts {printed_accepts}, ours {ours}"
        );
        assert_eq!((printed_accepts, ours), (64 * 63, 0));
    }
}

/// Keys tried for H13.
const KEYS: u64 = 100_000;

/// [R-HASH-2] H13. Under the printed rule one key in ten has L1 = L2. The printed repair looks for each entry in both
/// rows of its key, and clears the one in L2 if it finds it in both: of such a key it clears the only one.
#[test]
fn h13_a_key_with_one_row_is_its_own_duplicate() {
    for preset in PRESETS {
        let bench = Bench::of_config(config(preset, "fixed:8:8"), Profile::Tcp, SEED);
        let placement = bench.table.placement();
        let single = |key: &[u8]| placement.rows(placement.digest(key)).is_single();
        let singles = (0..KEYS).filter(|key| single(&key.to_le_bytes())).count();
        let mut writer = bench.client(0);
        let stored: Vec<[u8; 8]> = (0..300u64).map(u64::to_le_bytes).collect();
        for key in &stored {
            writer.put(key, &value_of(key, 1)).expect("room");
        }
        let cleared = clear_printed_duplicates(&bench);
        let lost: BTreeSet<[u8; 8]> = stored.iter().copied().filter(|key| writer.get(key) == Ok(None)).collect();
        println!("H13 {preset}: {singles} of {KEYS} keys have one row; of 300 sound keys repair loses {}", lost.len());
        match preset {
            Preset::Paper => {
                assert!((9_000..12_000).contains(&singles), "a tenth: {singles}");
                assert!(lost.iter().all(|key| single(key)), "and no others");
                assert!(lost.len() > 15 && cleared == lost.len(), "{cleared} cleared, {} lost", lost.len());
            }
            _ => assert_eq!((singles, cleared, lost.len()), (0, 0, 0)),
        }
    }
}

/// The printed repair of state 2 on every row (paper 4.3): "proceeds one-by-one through each entry within the rows,
/// checking both hash locations for the corresponding key for duplicates", "clearing the duplicate entry in the second
/// location". Returns how many entries it cleared.
fn clear_printed_duplicates(bench: &Bench) -> usize {
    let (rows, placement) = (bench.table.rows(), bench.table.placement());
    let mut cleared = 0;
    for row in (0..bench.table.config().rows).map(RowId) {
        let words = bench.row_words(row);
        for slot in rows.occupied_entries(&words) {
            let mut key = Vec::new();
            rows.append_inline_key(&words, slot, &mut key);
            let digest = placement.digest(&key);
            let (pair, probe) = (placement.rows(digest), rows.probe(&key, digest));
            let find = |row: RowId| rows.find(&bench.row_words(row), &probe, 0);
            if let (Some(_), Some(second)) = (find(pair.first), find(pair.second)) {
                let mut words = bench.row_words(pair.second);
                rows.clear_entry(&mut words, second.index());
                rows.finish(pair.second, &mut words);
                bench.store(bench.table.geometry().row(pair.second), &words);
                cleared += 1;
            }
        }
    }
    cleared
}

/// [R-INSERT-4] H26. An insert moves a key from a row to the next one: two WRITEs, the key's new row first. Executed as
/// one, they come in ascending order, and a death in the middle leaves the key nowhere. With one row per WRITE, it is
/// in a valid row at every moment.
#[test]
fn h26_writes_of_two_rows_are_merged() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, RowId(HOME.0 + 1));
        for flaw in [Flaw::MergedWrites, Flaw::None] {
            let (mut deaths, mut lost) = (0, 0);
            // This runs until the insert ends.
            while !dies_after(&fixture, deaths, &flaw, &mut lost) {
                deaths += 1;
            }
            println!("H26 {preset} {flaw:?}: {deaths} deaths, {lost} of which lose a key that existed before");
            assert!(deaths > 40, "every word of two rows");
            match flaw {
                Flaw::None => assert_eq!(lost, 0),
                _ => assert!(lost > 0),
            }
        }
    }
}

/// Lets an insert die after `turns` steps, and counts in `lost` whether the key it moves is then in no row that
/// verifies. Returns true if the insert ended before.
fn dies_after(fixture: &Fixture, turns: u32, flaw: &Flaw, lost: &mut u32) -> bool {
    let (bench, turn) = (fixture.bench.fork(), Scheduler::default());
    let lane = ScheduledLane::new(&bench.region, &turn, Granularity::Words, flaw.clone());
    let (mut task, _) = operate(client(&bench, 0, lane), vec![fixture.moving_put()]);
    let ended = (0..turns).any(|_| turn.give_turn(&mut task));
    drop(task);
    let (rows, placement) = (bench.table.rows(), bench.table.placement());
    let digest = placement.digest(&fixture.moved);
    let probe = rows.probe(&fixture.moved, digest);
    let stands = [HOME, fixture.away].iter().any(|row| {
        let words = bench.row_words(*row);
        rows.verify(*row, &words).is_ok() && rows.find(&words, &probe, 0).is_some()
    });
    *lost += u32::from(!stands);
    ended
}

/// [R-INSERT-4] H26, the other way to merge: a path that visits a row twice would write it twice, and one WRITE of its
/// last image, at its first turn, would remove a key before it is stored elsewhere. While a table is filled, no commit
/// writes a row twice, or two rows at once.
#[test]
fn h26_no_commit_writes_a_row_twice() {
    for preset in PRESETS {
        let bench = Bench::of_rows(preset, "fixed:8:8", 256, Profile::Tcp, SEED);
        let log = Log::default();
        let mut writer = client(&bench, 0, logged(&bench.region, log.clone()));
        let keys = (0u64..).take_while(|key| writer.put(&key.to_le_bytes(), &[7; 8]).is_ok()).count() as u64;
        let moves = writer.client.counters().moves;
        let (geometry, row_words) = (*bench.table.geometry(), bench.table.rows().row_words());
        let (mut commits, mut longest) = (0, 0);
        for batch in log.take() {
            let written: Vec<_> = batch.iter().filter(|verb| verb.writes_row(&geometry, 256)).collect();
            let distinct: BTreeSet<u64> = written.iter().map(|verb| verb.addr.offset()).collect();
            assert!(written.iter().all(|verb| verb.words == row_words), "{preset}: a WRITE is one row");
            assert_eq!(distinct.len(), written.len(), "{preset}: a row is written once");
            commits += u64::from(!written.is_empty());
            longest = longest.max(written.len());
        }
        println!("H26 {preset}: {commits} commits, {moves} moves, at most {longest} rows");
        assert!(commits == keys && moves > 100 && longest > 3, "{commits} {moves} {longest}");
    }
}

/// The fixtures do what they are made for, under both presets.
#[test]
fn an_insert_moves_the_key_it_is_made_to_move() {
    for preset in PRESETS {
        for away in [HOME.0 - 5, HOME.0 + 1, HOME.0 + 5, HOME.0 + 13].map(RowId) {
            let fixture = Fixture::new(preset, away);
            let mut writer = fixture.bench.client(0);
            writer.apply(&fixture.moving_put()).expect("room");
            assert_eq!(writer.client.counters().moves, 1, "{preset} {away}");
            let (rows, words) = (fixture.bench.table.rows(), fixture.bench.row_words(away));
            let digest = fixture.bench.table.placement().digest(&fixture.moved);
            assert!(rows.find(&words, &rows.probe(&fixture.moved, digest), 0).is_some(), "{preset} {away}");
        }
    }
}

/// Returns the bits of one word whose change has the same effect on a CRC as a change of another word by `bits`. The
/// CRC is linear: the effect of a change depends on nothing else, neither the seed nor the other words.
fn undoes(crc: impl Fn(&[u64; 8]) -> u64, changed: (usize, u64), word: usize) -> u64 {
    let effect = |word: usize, bits: u64| {
        let mut image = [0; 8];
        image[word] = bits;
        crc(&image) ^ crc(&[0; 8])
    };
    // These are effects with different leading bits, the largest first, and the bits that have them.
    let mut basis: Vec<(u64, u64)> = Vec::new();
    let reduce = |basis: &[(u64, u64)], start: (u64, u64)| {
        basis.iter().fold(
            start,
            |(effect, bits), (other, of)| {
                if effect ^ other < effect { (effect ^ other, bits ^ of) } else { (effect, bits) }
            },
        )
    };
    for bit in 0..64 {
        basis.push(reduce(&basis, (effect(word, 1 << bit), 1 << bit)));
        basis.sort_unstable_by(|one, other| other.cmp(one));
    }
    let (left, bits) = reduce(&basis, (effect(changed.0, changed.1), 0));
    assert_eq!(left, 0, "every change of one word is undone by one of another");
    bits
}

/// [R-ROW-1] H27. A value of four words is changed in all of them, in pairs that leave the printed checksum as it was.
/// A reader that meets the row with the first pair written finds a value that was never written; with a checksum that
/// depends on a secret, it detects that the row is half written.
#[test]
fn h27_chosen_bytes_verify_half_written() {
    for preset in PRESETS {
        let bench = Bench::of_config(config(preset, "fixed:8:32"), Profile::Tcp, SEED);
        let rows = bench.table.rows();
        // This CRC is that of any seed, without the table's secret.
        let crc = |image: &[u64; 8]| ChecksumKind::Crc64.checksum(&NhKeys::new([0; 4]), image, 0);
        let mut old = vec![0; rows.row_words()];
        rows.format(HOME, &mut old);
        rows.put_entry(&mut old, 0, &[1, 10, 11, 12, 13], EntryKind::Inline);
        rows.finish(HOME, &mut old);
        let mut torn = old.clone();
        torn[1] ^= 0xdead;
        // The words behind them in the row change both effects alike.
        torn[2] ^= undoes(crc, (1, 0xdead), 2);
        let verifies = rows.verify(HOME, &torn).is_ok();
        println!("H27 {preset}: a half-written row {}", if verifies { "verifies" } else { "does not verify" });
        assert_eq!(verifies, preset == Preset::Paper);
    }
}
