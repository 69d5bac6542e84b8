//! Swarms from the command line, for `cargo xtask soak` and `cargo xtask replay`:
//!
//! ```sh
//! cargo run --release -p guira-conformance --example swarm -- soak --from 0 --seeds 1000
//! cargo run --release -p guira-conformance --example swarm -- replay 17
//! ```
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    guira_conformance::swarm::command(std::env::args().skip(1))
}
