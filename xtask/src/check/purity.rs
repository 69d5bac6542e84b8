//! Purity of the deterministic core, which may not use clocks, threads, files, sockets, output or randomness; it gets
//! them as arguments.
//!
//! Therefore the layout and the protocol crates run unchanged in the simulator and in Miri. Code is read as tokens, so
//! comments and strings may contain any name; tests may use everything.

use proc_macro2::{TokenStream, TokenTree};

use crate::manifest::Manifest;
use crate::report::{Report, Violation};
use crate::rust::{self, RustFile};

/// The packages that are pure.
const PURE: [&str; 3] = ["crates/layout", "crates/rcuckoo", "crates/extents"];
/// Modules of `std` with side effects or time.
const STD_MODULES: [&str; 5] = ["time", "thread", "fs", "net", "io"];
/// Names that read a clock or draw a random number, however they are imported.
const NAMES: [&str; 3] = ["Instant", "SystemTime", "rand"];
/// Macros that print.
const MACROS: [&str; 5] = ["println", "eprintln", "print", "eprint", "dbg"];
/// Packages whose purpose is one of these.
const PACKAGES: [&str; 6] = ["fastrand", "getrandom", "log", "rand", "tokio", "tracing"];

/// Checks the sources and manifests of the pure packages.
pub fn check(rust: &[RustFile], manifests: &[Manifest]) -> Report {
    let is_pure_source = |file: &&RustFile| PURE.iter().any(|pure| file.path.starts_with(&format!("{pure}/src/")));
    let files: Vec<&RustFile> = rust.iter().filter(is_pure_source).collect();
    let mut violations: Vec<Violation> = files.iter().flat_map(|file| impurities(file)).collect();
    for manifest in manifests.iter().filter(|manifest| PURE.contains(&manifest.directory.as_str())) {
        let impure = manifest.dependencies.iter().filter(|found| PACKAGES.contains(&found.package.as_str()));
        violations.extend(impure.map(|found| impure_at(&manifest.path, found.line, &found.package)));
    }
    let looked_at = format!("{} Rust files and the manifests of {}", files.len(), PURE.join(", "));
    Report { name: "purity", looked_at, violations }
}

fn impurities(file: &RustFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    rust::walk_tokens(&file.tokens, &mut |siblings, position| {
        let Some(ident) = rust::ident_at(siblings, position) else { return };
        let line = rust::line_of(ident.span());
        if file.is_test_line(line) {
            return;
        }
        let name = ident.to_string();
        let mut report = |what: &str| violations.push(impure_at(&file.path, line, what));
        if NAMES.contains(&name.as_str()) {
            report(&name);
        } else if MACROS.contains(&name.as_str()) && rust::is_punct(siblings, position + 1, '!') {
            report(&format!("{name}!"));
        } else if name == "std" {
            std_paths(siblings, position).iter().for_each(|path| report(path));
        }
    });
    violations
}

/// The forbidden paths that start with the `std` at `position`: one path, several in braces, or `std` under another
/// name, which would hide paths from this check.
fn std_paths(siblings: &[TokenTree], position: usize) -> Vec<String> {
    if rust::ident_at(siblings, position + 1).is_some_and(|ident| ident == "as") {
        return vec!["std under another name".to_owned()];
    }
    if !(rust::is_punct(siblings, position + 1, ':') && rust::is_punct(siblings, position + 2, ':')) {
        return Vec::new();
    }
    let names = match rust::braces_at(siblings, position + 3) {
        Some(list) => first_names(list),
        None => siblings.get(position + 3).map(TokenTree::to_string).into_iter().collect(),
    };
    names
        .iter()
        .filter_map(|name| match name.as_str() {
            "self" | "*" => Some("std under another name".to_owned()),
            module if STD_MODULES.contains(&module) => Some(format!("std::{module}")),
            _ => None,
        })
        .collect()
}

/// The first token of each element of a list.
fn first_names(list: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = list.into_iter().collect();
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
    tokens.split(is_comma).filter_map(|element| element.first()).map(TokenTree::to_string).collect()
}

fn impure_at(path: &str, line: usize, what: &str) -> Violation {
    Violation::new(path, line, format!("{what} in a pure package; pass time, randomness and effects as arguments"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = RustFile::parse(path, text).expect("the sample parses");
        let violations = check(&[file], &[]).violations;
        let name = |violation: Violation| violation.reason.split(" in a pure").next().unwrap_or_default().to_owned();
        violations.into_iter().map(|violation| (violation.line, name(violation))).collect()
    }

    #[test]
    fn every_forbidden_mention_fails() {
        for (text, what) in [
            ("use std::time::Duration;", "std::time"),
            ("use std::{fmt, thread};", "std::thread"),
            ("use std::{fmt, io::{self, Read}};", "std::io"),
            ("fn a() { ::std::fs::read(b); }", "std::fs"),
            ("fn a() { c!(std::net::X); }", "std::net"),
            ("fn a(b: Instant) {}", "Instant"),
            ("type A = core::SystemTime;", "SystemTime"),
            ("fn a() { println!(); }", "println!"),
            ("fn a() { if b { eprintln!(\"x\"); } }", "eprintln!"),
            ("use rand::Rng;", "rand"),
            ("use std as s;", "std under another name"),
            ("use std::{self as s};", "std under another name"),
        ] {
            let found = lines("crates/layout/src/a.rs", &format!("\n{text}\n"));
            assert_eq!(found, [(2, what.to_owned())], "{text}");
        }
    }

    #[test]
    fn tests_comments_and_harmless_names_pass() {
        let text = "//! No std::io, no Instant.\nuse std::{fmt, collections::VecDeque};\nfn random_io() {}\n\
                    #[cfg(test)]\nmod tests {\n    use std::time::Instant;\n    fn a() { println!(); }\n}\n";
        assert_eq!(lines("crates/rcuckoo/src/a.rs", text), []);
    }

    #[test]
    fn only_the_pure_packages_are_checked() {
        assert_eq!(lines("crates/guira/src/a.rs", "use std::io;"), []);
        assert_eq!(lines("crates/layout/tests/a.rs", "use std::io;"), []);
        assert_eq!(lines("crates/rcuckoo/src/a/b.rs", "use std::io;").len(), 1);
    }

    #[test]
    fn a_dependency_that_draws_numbers_fails() {
        let text =
            "[package]\nname = \"guira-layout\"\n[dependencies]\nrand = \"1\"\n[dev-dependencies]\nlog = \"1\"\n";
        let manifest = Manifest::parse("crates/layout/Cargo.toml", text).expect("the sample parses");
        let violations = check(&[], &[manifest.expect("it has a package")]).violations;
        assert_eq!(violations, [impure_at("crates/layout/Cargo.toml", 4, "rand")]);
    }
}
