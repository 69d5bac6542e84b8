//! Harness `debian` under libFuzzer.
#![no_main]
#![forbid(unsafe_code)]

use guira_harness as harness;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    harness::debian(data);
});
