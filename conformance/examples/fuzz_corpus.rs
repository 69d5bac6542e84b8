//! Writes the seeds of every harness to `fuzz/corpus`; run it after a change of the layout, or of a harness.
//!
//! ```text
//! cargo run -p guira-conformance --example fuzz_corpus
//! ```
//! Other files of the corpora, which are inputs that once broke a promise, stay unchanged. Review `git diff` for files
//! whose bytes have changed their meaning.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{fs, io};

use guira_conformance::harness::HARNESSES;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for harness in &HARNESSES {
        let directory = corpus.join(harness.name);
        fs::create_dir_all(&directory)?;
        let seeds = (harness.seeds)();
        for (name, bytes) in &seeds {
            fs::write(directory.join(name), bytes)?;
        }
        println!("{}: {} seeds", harness.name, seeds.len());
    }
    Ok(())
}
