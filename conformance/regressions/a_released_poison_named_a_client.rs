//! Cause: a table could have a client for each value of a lock except free and poison. Destroying a table sets all bits
//! of its locks, and a holder's release then leaves all ones less its id: with so many clients, another client's id.
//!
//! Effect: a client that waited for such a lock of a destroyed table waited for that other client until its deadline,
//! and got `Busy` instead of `Destroyed`.
//!
//! Fix: a table has fewer clients than half the values of its locks. [R-DESTROY-1]

use guira_layout::{LockId, LockLayout, OwnerId, Preset, PresetOptions};

#[test]
fn released_poison_names_no_client() {
    let mut options = PresetOptions {
        capacity: 1_000,
        format: "fixed:8:8".parse().unwrap(),
        extent_bytes: None,
        max_clients: Some(32_767),
        hash_seed: 1,
        device_bytes: u64::MAX,
    };
    let config = Preset::Hardened.config(&options).unwrap();
    let locks = LockLayout::new(&config);
    let mask = locks.mask(LockId(1)).mask;
    for owner in 1..=config.max_clients {
        let left = locks.poison().wrapping_add(locks.release_addend(OwnerId(owner), mask));
        let (_, named) = locks.first_held(0, left, mask).unwrap();
        assert!(locks.is_poison(named), "{} released poison: {named}", OwnerId(owner));
    }
    options.max_clients = Some(32_768);
    assert!(Preset::Hardened.config(&options).is_err());
}
