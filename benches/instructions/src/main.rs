//! Carries out every operation in every case that has a price of its own, one after the other, for a counter of
//! instructions to watch: `cargo xtask instructions` runs this program under callgrind.
//!
//! What is counted happens inside [`counted_operations`] and nowhere else: making and filling the tables is not. Each
//! case that changes its table has a fresh one, so a new case changes no other's count, and keys and table seeds are
//! fixed, so each run does the same. For each call of [`counted_operations`] one line is printed, in the same order:
//! the number of operations, a space, and the case's name.
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

/// Does `work`, and everything that is counted. The counter knows it by its name.
#[inline(never)]
pub fn counted_operations(work: &mut dyn FnMut() -> Result<(), guira::Error>) -> Result<(), guira::Error> {
    let result = work();
    // Something to do after the work: a call at the very end might be a jump, by which the counter sees us leave.
    std::hint::black_box(&result);
    result
}
