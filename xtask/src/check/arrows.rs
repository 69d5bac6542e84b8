//! The allowed dependencies between packages of the workspace. Arrows point one way: programs, the public API, the
//! protocol, the layout, the fabric.
//!
//! Every allowed arrow is a row of [`ARROWS`] with its reason; any other dependency between two packages of the
//! workspace is a violation, also of a package without a row. Dev-dependencies are not checked: they are not part of
//! published packages.

use std::collections::BTreeSet;

use crate::manifest::{Dependency, Manifest};
use crate::report::{Report, Violation};

/// Allowed dependencies: from, to, why. A name that ends in `*` stands for every package that starts so.
const ARROWS: [(&str, &str, &str); 62] = [
    ("guira-layout", "guira-fabric", "addresses and spaces are words of the fabric"),
    ("guira-layout", "guira-sum", "a row is valid only with its checksum"),
    ("guira-rcuckoo", "guira-layout", "the protocol reads and writes rows, entries and lock words"),
    ("guira-rcuckoo", "guira-fabric", "the protocol posts verbs"),
    ("guira-fabric-*", "guira-fabric", "a backend implements the lane"),
    ("guira-session", "guira-fabric", "a session holds slots of a region"),
    ("guira-fabric-tcp", "guira-session", "batches travel on the connection of a session"),
    ("guira-fabric-verbs", "guira-session", "a queue pair starts and ends with a session"),
    ("guira-check", "guira-layout", "the scanner reads every row of a table"),
    ("guira-check", "guira-fabric", "the scanner reads through a lane"),
    ("guira-rcuckoo", "guira-in-place", "what executes in place is the same text without futures"),
    ("guira-in-place", "guira-fabric", "its tests post batches"),
    ("guira-check", "guira-rcuckoo", "the scanner asks where a key belongs"),
    ("guira-check", "guira-sum", "the scanner verifies checksums"),
    ("guira-extents", "guira-rcuckoo", "a place is lost if no row refers to it"),
    ("guira-extents", "guira-layout", "chunks are words with a meaning"),
    ("guira-extents", "guira-fabric", "chunks are claimed by verbs"),
    ("guira-lock-queue", "guira-rcuckoo", "a queued change has a key, its locks and an outcome"),
    ("guira-lock-queue", "guira-fabric", "time in a queue is that of the waiting client's lane"),
    ("guira-url", "guira-fabric-*", "a URL names a backend"),
    ("guira-url", "guira-session", "a URL names the endpoint of a node"),
    ("guira", "guira-rcuckoo", "the store runs the protocol"),
    ("guira", "guira-extents", "a client has space for long values"),
    ("guira", "guira-lock-queue", "clients of a process wait in line for remote locks"),
    ("guira", "guira-url", "a store is opened by its URL"),
    ("guira", "guira-check", "a store can be checked, and counts what it holds"),
    ("guira", "guira-layout", "the store creates tables and extents"),
    ("guira", "guira-fabric", "the store opens lanes"),
    ("guira", "guira-fabric-*", "a URL names a backend, and the doctor looks at its devices"),
    ("guira", "guira-session", "a store has sessions with a node"),
    ("guira", "guira-sum", "extents carry checksums"),
    ("guira-input", "guira-layout", "a record fits an entry format or does not"),
    ("guira-lab", "guira", "experiments measure what users call"),
    ("guira-lab", "guira-rcuckoo", "figures vary what the store fixes"),
    ("guira-lab", "guira-layout", "comparison systems share rows and entries"),
    ("guira-lab", "guira-fabric", "workloads are drawn from its random numbers"),
    ("guira-lab", "guira-fabric-*", "figures run on chosen backends"),
    ("guira-lab", "guira-extents", "a simulated client has space for long values"),
    ("guira-lab", "guira-lock-queue", "clients of a simulated host wait in line, too"),
    ("guira-lab", "guira-check", "an experiment checks the table it leaves"),
    ("guira-peers", "guira", "a comparison measures what users call"),
    ("guira-peers", "guira-lab", "every system gets the same workload"),
    ("guira-peers", "guira-fabric", "the physical limit is prefetched reads"),
    ("guira-peers", "guira-fabric-shm", "the physical limit is reads of the same memory"),
    ("guira-cli", "guira", "the program is the store's first user"),
    ("guira-cli", "guira-input", "the program loads files of records and writes them"),
    ("guira-cli", "guira-check", "the program scans a table"),
    ("guira-cli", "guira-lab", "the program runs workloads"),
    ("guira-cli", "guira-peers", "the program compares itself, if it is asked to"),
    ("guira-cli", "guira-fabric-*", "the program starts a backend's memory node"),
    ("guira-instructions", "guira", "what is counted is what users call"),
    ("guira-python", "guira", "bindings show the public API"),
    ("guira-c", "guira", "bindings show the public API"),
    ("guira-conformance", "guira*", "one suite runs over every fabric and every layer"),
    ("guira-harness", "guira-url", "URLs are decoded, too"),
    ("guira-harness", "guira-fabric", "a redo record is made of verbs"),
    ("guira-harness", "guira-fabric-tcp", "batches are decoded"),
    ("guira-harness", "guira-session", "frames are decoded"),
    ("guira-harness", "guira-input", "files of records are decoded"),
    ("guira-harness", "guira-layout", "what lies in memory is decoded"),
    ("guira-harness", "guira-sum", "behind a checksum, an input needs the right one"),
    ("guira-fuzz", "guira-harness", "fuzz targets run the harnesses"),
];

/// Programs, which nothing may depend on, even if a pattern above matches.
const PROGRAMS: [&str; 3] = ["guira-cli", "guira-instructions", "xtask"];

/// Checks the dependencies of every package of the workspace on the others.
pub fn check(manifests: &[Manifest]) -> Report {
    let packages: BTreeSet<&str> = manifests.iter().map(|manifest| manifest.name.as_str()).collect();
    let mut violations = Vec::new();
    let mut arrows = 0;
    for manifest in manifests {
        let internal = manifest.dependencies.iter().filter(|found| packages.contains(found.package.as_str()));
        for dependency in internal {
            arrows += 1;
            violations.extend(forbidden(manifest, dependency));
        }
    }
    let looked_at = format!("{arrows} dependencies between {} packages, {} rows allow", manifests.len(), ARROWS.len());
    Report { name: "arrows", looked_at, violations }
}

fn forbidden(manifest: &Manifest, dependency: &Dependency) -> Option<Violation> {
    let (from, to) = (manifest.name.as_str(), dependency.package.as_str());
    let is_row = |(row_from, row_to, _): &(&str, &str, &str)| matches(row_from, from) && matches(row_to, to);
    let is_allowed = from != to && !PROGRAMS.contains(&to) && ARROWS.iter().any(is_row);
    let reason = format!("{from} must not depend on {to}: no row of xtask/src/check/arrows.rs allows it");
    (!is_allowed).then(|| Violation::new(&manifest.path, dependency.line, reason))
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGES: [&str; 13] = [
        "guira",
        "guira-check",
        "guira-cli",
        "guira-conformance",
        "guira-fabric",
        "guira-fabric-shm",
        "guira-fabric-tcp",
        "guira-input",
        "guira-lab",
        "guira-layout",
        "guira-rcuckoo",
        "guira-session",
        "guira-sum",
    ];

    /// The violations of a workspace in which only `from` has a dependency, on `to`.
    fn violations(from: &str, to: &str) -> Vec<Violation> {
        let manifests = PACKAGES.map(|name| {
            let dependency = if name == from { format!("[dependencies]\n{to} = \"1\"\n") } else { String::new() };
            let text = format!("[package]\nname = \"{name}\"\n{dependency}");
            Manifest::parse("x/Cargo.toml", &text).expect("the sample parses").expect("it has a package")
        });
        check(&manifests).violations
    }

    #[test]
    fn arrows_against_the_order_fail() {
        for (from, to) in [
            ("guira-fabric", "guira-layout"),
            ("guira-fabric", "guira-fabric-shm"),
            ("guira-fabric-tcp", "guira-fabric-shm"),
            ("guira-session", "guira-fabric-tcp"),
            ("guira-fabric-shm", "guira-session"),
            ("guira-fabric-shm", "guira-layout"),
            ("guira-layout", "guira-rcuckoo"),
            ("guira-rcuckoo", "guira-fabric-shm"),
            ("guira-rcuckoo", "guira"),
            ("guira-check", "guira"),
            ("guira-check", "guira-fabric-shm"),
            ("guira", "guira-lab"),
            ("guira", "guira-cli"),
            ("guira", "guira"),
            ("guira-lab", "guira-cli"),
            ("guira-conformance", "guira-cli"),
            ("guira-sum", "guira-fabric"),
            ("guira-input", "guira"),
        ] {
            let found = violations(from, to);
            assert_eq!(found.len(), 1, "{from} to {to}");
            assert_eq!((found[0].path.as_str(), found[0].line), ("x/Cargo.toml", 4));
        }
    }

    #[test]
    fn arrows_along_the_order_pass() {
        for (from, to) in [
            ("guira-cli", "guira"),
            ("guira-cli", "guira-input"),
            ("guira-lab", "guira"),
            ("guira", "guira-rcuckoo"),
            ("guira", "guira-fabric-tcp"),
            ("guira-fabric-tcp", "guira-session"),
            ("guira-rcuckoo", "guira-layout"),
            ("guira-layout", "guira-sum"),
            ("guira-fabric-shm", "guira-fabric"),
            ("guira-check", "guira-sum"),
            ("guira-conformance", "guira-fabric-shm"),
            ("guira-sum", "crc-fast"),
        ] {
            assert_eq!(violations(from, to), [], "{from} to {to}");
        }
    }

    #[test]
    fn the_table_has_no_cycle_and_gives_every_reason() {
        for (from, to, reason) in ARROWS {
            assert!(!reason.is_empty(), "{from} to {to}");
            assert!(!ARROWS.iter().any(|(back, forth, _)| *back == to && *forth == from), "{from} and {to}");
        }
    }
}
