//! Cause: the distance between a key's rows was drawn as h2 x m >> 32 in 64 bits: 32 bits of hash, and m, which can
//! be half the number of rows.
//!
//! Effect: in tables of more than 2^33 rows the product lost its high bits (a panic in debug builds): keys were put
//! nearer to their first row than the locality factor says, and another build looked for them elsewhere.
//!
//! Fix: the product has 128 bits. [R-HASH-2]

use guira_layout::{Preset, PresetOptions};
use guira_rcuckoo::Placement;

const ROWS: u64 = 1 << 40;
const KEYS: u64 = 100_000;
/// The bound of every distance if the product is cut to 64 bits.
const CUT: u64 = 1 << 33;

#[test]
fn distances_reach_across_a_table_of_2_to_the_40_rows() {
    let options = PresetOptions {
        capacity: 1,
        format: "fixed:8:8".parse().unwrap(),
        extent_bytes: Some(0),
        max_clients: None,
        hash_seed: 7,
        device_bytes: u64::MAX,
    };
    let mut config = Preset::Hardened.config_of_rows(ROWS, &options).unwrap();
    // Every key draws from the whole table, as the rarest keys do under the table's own factor.
    config.offsets = [ROWS; 33];
    config.check().unwrap();
    let placement = Placement::new(&config);
    let (mut far, mut sum) = (0, 0_u128);
    for key in 0..KEYS {
        let pair = placement.rows(placement.digest(&key.to_le_bytes()));
        assert!(pair.first.0 < ROWS && pair.second.0 < ROWS);
        let distance = pair.second.0.wrapping_sub(pair.first.0) % ROWS;
        assert_eq!(distance % 2, 1);
        far += u64::from(distance >= CUT);
        sum += u128::from(distance);
    }
    // One distance in 128 is below 2^33; their mean is half the table.
    assert!(far > KEYS * 98 / 100, "{far} of {KEYS} distances are beyond 2^33 rows");
    let mean = (sum / u128::from(KEYS)) as u64;
    assert!((ROWS * 49 / 100..ROWS * 51 / 100).contains(&mean), "the mean distance is {mean} of {ROWS} rows");
}
