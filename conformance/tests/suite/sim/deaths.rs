//! One put that moves other entries, and its client's death at every verb and inside every WRITE: a later reader finds
//! every key as it was, or gets `Busy`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use guira_conformance::Bench;
use guira_fabric::{Profile, Region, WORD_BYTES};
use guira_fabric_sim::{ClientFault, ClientId, Fault, FaultPlan, Network, Sim, SimOptions, SimRegion, Stopped};
use guira_layout::Preset;
use guira_rcuckoo::{Change, Client, ClientConfig, Error, ErrorKind, NewValue, Reader, SlotClient, Table, claim_slot};

use crate::sim::scenario::key_bytes;

const SEED: u64 = 5;
const NEW_VALUE: [u8; 8] = *b"new here";

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// Creates a table, and finds a key whose put moves at least one entry.
fn crowded(preset: Preset) -> (Bench, [u8; 8]) {
    let bench = Bench::of_rows(preset, "fixed:8:8", 64, Profile::Shm, SEED);
    let mut filler = bench.client(0);
    let slots = bench.table.config().max_entries() as usize;
    for key in 0..slots * 88 / 100 {
        filler.put(&key_bytes(key), &key_bytes(key)).expect("room");
    }
    let moves = |key: &usize| {
        let mut client = bench.fork().client(1);
        client.put(&key_bytes(*key), &NEW_VALUE).is_ok() && client.client.counters().moves > 0
    };
    let key = (slots..slots * 100).find(moves).expect("a put that moves entries");
    (bench, key_bytes(key))
}

/// The state of the table after a put and the planned death.
struct Aftermath {
    /// Whether the put was acknowledged.
    is_acknowledged: bool,
    /// The answer of each key: none if its row is half written.
    answers: BTreeMap<Vec<u8>, Option<Option<Vec<u8>>>>,
    /// Verbs of the putting client.
    verbs: u64,
}

fn put_and_read(bench: &Bench, key: [u8; 8], before: &Contents, faults: FaultPlan, profile: Profile) -> Aftermath {
    let options = SimOptions { faults, ..SimOptions::new(SEED, Network::of(profile)) };
    let mut sim = Sim::new(bench.region.clone(), &options);
    let acknowledged = Rc::new(RefCell::new(false));
    let (table, told) = (Arc::clone(&bench.table), Rc::clone(&acknowledged));
    let client = sim.spawn(|region| put(region, table, key, told));
    assert_eq!(sim.run(), Stopped::Ended);
    let answers = Rc::new(RefCell::new(BTreeMap::new()));
    let keys: Vec<Vec<u8>> = before.keys().cloned().chain([key.to_vec()]).collect();
    let (table, told) = (Arc::clone(&bench.table), Rc::clone(&answers));
    sim.spawn(|region| look(region, table, keys, told));
    assert_eq!(sim.run(), Stopped::Ended);
    let verbs = sim.verbs_of(client);
    drop(sim);
    let is_acknowledged = *acknowledged.borrow();
    Aftermath { is_acknowledged, answers: answers.take(), verbs }
}

async fn put(region: SimRegion, table: Arc<Table>, key: [u8; 8], acknowledged: Rc<RefCell<bool>>) {
    let mut lane = region.lane();
    let _hold = region.hold(1).expect("the model holds").expect("a free slot");
    let owner = claim_slot(&mut lane, &table, 1, &SlotClient::default())
        .await
        .expect("nothing fails here")
        .expect("a free slot");
    let config = ClientConfig::for_table(&table);
    let put = Change::Put(NewValue::Inline(&NEW_VALUE));
    Client::new(table, owner, config).change(&mut lane, &key, put).await.expect("room");
    *acknowledged.borrow_mut() = true;
}

type Answers = Rc<RefCell<BTreeMap<Vec<u8>, Option<Option<Vec<u8>>>>>>;

async fn look(region: SimRegion, table: Arc<Table>, keys: Vec<Vec<u8>>, answers: Answers) {
    let mut lane = region.lane();
    let config = ClientConfig { deadline_ns: 100_000, ..ClientConfig::for_table(&table) };
    let mut reader = Reader::new(table, config);
    for key in keys {
        let mut value = Vec::new();
        let answer = match reader.get(&mut lane, &key, &mut value).await {
            Ok(found) => Some(found.map(|_| value)),
            Err(Error { kind: ErrorKind::Busy { .. }, .. }) => None,
            Err(error) => panic!("{error}"),
        };
        answers.borrow_mut().insert(key, answer);
    }
}

/// [R-INSERT-4] [R-COMMIT-1] [R-READ-3] [R-READ-9] A client dies before each verb of a put, and inside each of its
/// WRITEs after every multiple of the region's atomic unit.
#[test]
fn a_put_that_dies_at_any_step_corrupts_nothing() {
    for preset in [Preset::Hardened, Preset::Tiny] {
        let (bench, key) = crowded(preset);
        let before = bench.audit().unwrap_or_else(|wrong| panic!("{wrong}"));
        let row_bytes = bench.table.rows().row_words() as u64 * WORD_BYTES;
        for profile in Profile::ALL {
            let run = |faults| put_and_read(&bench.fork().under(profile), key, &before, faults, profile);
            let whole = run(FaultPlan::default());
            assert!(whole.is_acknowledged && whole.answers[&key[..]] == Some(Some(NEW_VALUE.to_vec())));
            let (mut old, mut new, mut waits) = (0, 0, 0);
            for (after_verbs, units) in (0..whole.verbs).flat_map(|verb| {
                let units = row_bytes.div_ceil(profile.caps().atomic_write_unit);
                (0..=units).map(move |units| (verb, units))
            }) {
                let fault = ClientFault { client: ClientId(0), after_verbs, fault: Fault::Die { units } };
                let after = run(FaultPlan { clients: vec![fault], ..FaultPlan::default() });
                let context = format!("{preset} {profile}: died after {after_verbs} verbs and {units} units");
                assert_eq!((after.verbs, after.is_acknowledged), (after_verbs, false), "{context}");
                for (other, value) in &before {
                    let answer = &after.answers[other];
                    assert!(answer.is_none() || answer.as_ref() == Some(&Some(value.clone())), "{context}: {answer:?}");
                    waits += u64::from(answer.is_none());
                }
                match &after.answers[&key[..]] {
                    Some(None) => old += 1,
                    Some(Some(value)) if *value == NEW_VALUE => new += 1,
                    None => waits += 1,
                    other => panic!("{context}: the new key is {other:x?}"),
                }
            }
            println!("{preset} {profile}: {old} deaths without effect, {new} with, {waits} keys half written");
            // A torn row is read through its owner's record. // [R-READ-9]
            assert!(old > 0 && new > 0 && waits == 0, "{preset} {profile}: {old} {new} {waits}");
        }
    }
}
