//! The `guira` program: create, load, read, change, check and measure a key/value table in shared memory.
//!
//! It uses only the public API and implements no protocol: it turns arguments and files into calls, and answers into
//! text for people or JSON for programs.
//!
//! Invariants: only a command's answer goes to standard output; a failure is one line on standard error and an exit
//! code of [`failure::EXIT_CODES`]; a reader that closes standard output ends the program without an error.

#![forbid(unsafe_code)]

mod advice;
mod arguments;
mod capacity;
mod commands;
mod failure;
mod input;
mod interrupt;
mod loader;
mod memory;
mod output;
mod progress;
mod signals;
mod text;
mod units;
mod users;
mod workers;

use std::process::ExitCode;

use crate::failure::Failure;

fn main() -> ExitCode {
    memory::prepare();
    signals::survive_file_limits();
    let parsed = match arguments::parse() {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    memory::report_in(parsed.format);
    let output = output::Output::new(parsed.format);
    let mut ended = commands::run(&parsed.command, &output);
    if let Some(refusal) = memory::refusal() {
        ended = Err(Failure::OutOfMemory { refusal, ended: ended.err().map(Box::new) });
    }
    match ended {
        Ok(commands::Verdict::Fine) => ExitCode::SUCCESS,
        Ok(commands::Verdict::Negative) => ExitCode::from(failure::EXIT_NEGATIVE),
        Err(failure) => output.fail(&failure),
    }
}
