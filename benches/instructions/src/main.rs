//! Runs every operation in every case with a cost of its own, one after the other: `cargo xtask instructions` runs this
//! program under callgrind and counts its instructions.
//!
//! Only what happens inside [`counted_operations`] is counted; creating and filling the tables is not. Each case that
//! changes its table has a fresh one, so a new case does not change the counts of others, and keys and table seeds are
//! fixed, so all runs do the same. For each call of [`counted_operations`] the program prints one line, in the same
//! order: the number of operations, a space, and the name of the case.
#![forbid(unsafe_code)]

mod bench;
mod cases;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cases::run_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guira-instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `work`. Only instructions inside this function are counted; callgrind finds it by its name.
#[inline(never)]
pub fn counted_operations(work: &mut dyn FnMut() -> Result<(), guira::Error>) -> Result<(), guira::Error> {
    let result = work();
    // The work must not be in tail position: callgrind takes the jump of a tail call for the function's end.
    std::hint::black_box(&result);
    result
}
