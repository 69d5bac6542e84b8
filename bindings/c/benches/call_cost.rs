//! The price of a call through C: gets and puts of values of 8 bytes, by the Rust API and by the functions of guira.h,
//! through pointers and with lengths that the compiler does not know. Rounds of both take turns; printed are the
//! medians, and the median of the differences of neighbours: `cargo bench -p guira-c`.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::time::Instant;

use guira::{CreateOptions, Store};
use guira_c::{
    Client, Error, guira_client_close, guira_client_open, guira_get, guira_open, guira_put, guira_store_close,
};

const KEYS: usize = 100_000;
const ROUNDS: usize = 41;

type Get = unsafe extern "C" fn(*mut Client, *const c_void, usize, *mut c_void, usize, *mut usize, *mut Error) -> c_int;
type Put = unsafe extern "C" fn(*mut Client, *const c_void, usize, *const c_void, usize, *mut Error) -> c_int;

fn main() {
    let url = format!("shm://{}", guira_testing::unique_name());
    let c_url = CString::new(url.as_str()).expect("no zero");
    // Both sides open it: the memory of the process that creates a table is mapped in another way.
    let created = Store::create(url.as_str(), &CreateOptions::new(2 * KEYS as u64)).expect("there is memory");
    let (mut c_store, mut c_client) = (null_mut(), null_mut());
    // SAFETY: the pointers are those of living objects.
    unsafe {
        let error = null_mut();
        assert_eq!(guira_open(c_url.as_ptr(), null(), &mut c_store, error), 0);
        assert_eq!(guira_client_open(c_store, &mut c_client, error), 0);
    }
    let store = Store::open(url.as_str()).expect("it was created");
    let mut client = store.client().expect("a free slot");
    let (get, put): (Get, Put) = (black_box(guira_get), black_box(guira_put));
    // A permutation: 7,919 is prime.
    for (name, spread) in [("one key", 0), ("random keys", 7_919)] {
        let keys: Vec<[u8; 8]> = (0..KEYS).map(|i| ((i * spread % KEYS) as u64).to_le_bytes()).collect();
        for key in &keys {
            client.put(key, key).expect("there is room");
        }
        let mut into = Vec::with_capacity(64);
        let mut buffer = [0_u8; 64];
        compare(
            &format!("get, {name}"),
            &keys,
            |key| assert!(client.get_into(key, &mut into).is_ok_and(|found| found)),
            |key| {
                let (mut length, into) = (0, buffer.as_mut_ptr().cast::<c_void>());
                // SAFETY: key and buffer have these lengths, and the handle is open.
                let found = unsafe { get(c_client, key.as_ptr().cast(), key.len(), into, 64, &mut length, null_mut()) };
                assert!(found == 1 && length == 8);
            },
        );
        compare(
            &format!("put, {name}"),
            &keys,
            |key| assert!(client.put(key, key).is_ok()),
            |key| {
                // SAFETY: the key has this length, and the handle is open.
                let put = unsafe {
                    put(c_client, key.as_ptr().cast(), key.len(), key.as_ptr().cast(), key.len(), null_mut())
                };
                assert!(put == 0);
            },
        );
    }
    drop((client, created));
    // SAFETY: the handles are not used any more.
    unsafe {
        guira_client_close(c_client, null_mut());
        guira_store_close(c_store);
    }
    Store::destroy(url.as_str()).expect("it exists");
}

/// Prints the medians of rounds of `rust` and `c` that take turns.
fn compare(name: &str, keys: &[[u8; 8]], mut rust: impl FnMut(&[u8]), mut c: impl FnMut(&[u8])) {
    let round = |call: &mut dyn FnMut(&[u8])| {
        let began = Instant::now();
        keys.iter().for_each(|key| call(black_box(&key[..])));
        began.elapsed().as_nanos() as f64 / keys.len() as f64
    };
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for number in 0..ROUNDS {
        let (rust, c) = if number % 2 == 0 {
            let rust = round(&mut rust);
            (rust, round(&mut c))
        } else {
            let c = round(&mut c);
            (round(&mut rust), c)
        };
        [rust, c, c - rust].into_iter().zip(&mut times).for_each(|(time, times)| times.push(time));
    }
    let [rust, c, more] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    println!("{name:<18} Rust {rust:6.1} ns, C {c:6.1} ns, difference {more:+5.1} ns");
}
