//! The public API of crate guira as text, one line for each item, method, field, variant and implementation.
//!
//! The text is on record in `crates/guira/public-api.txt`. `cargo xtask check` compares it with the sources, so that a
//! change of the API is a change of that file, which a reviewer sees. `cargo xtask public-api --record` writes it.
//!
//! The listing is made from the sources alone, without a compiler: re-exports are followed through the crates of the
//! workspace ([`names`]), and methods that a macro of the same crate writes are read from the macro ([`listing`]).

mod listing;
mod names;
mod text;

use std::fs;

use anyhow::{Context, Result};

use self::names::Crates;
use crate::report::{Format, Report, Verdict, Violation};
use crate::rust::{self, RustFile};
use crate::tree::{self, Tree};

/// The file that has the listing on record.
pub const RECORD: &str = "crates/guira/public-api.txt";
/// The crate whose API it is, as other crates name it.
const CRATE: &str = "guira";
/// Differences that are reported; the command that writes the file shows all of them.
const REPORTED: usize = 10;

/// The options of `cargo xtask public-api`.
#[derive(clap::Args)]
pub struct Options {
    /// Write the listing to crates/guira/public-api.txt.
    #[arg(long)]
    record: bool,
}

/// Runs `cargo xtask public-api`.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    let root = tree::workspace_root()?;
    let tree = Tree::load(&root)?;
    let (rust, _) = rust::parse_all(tree.with_extension("rs"));
    let lines = lines_of(&rust);
    if options.record {
        fs::write(root.join(RECORD), lines.join("\n") + "\n").with_context(|| format!("writing {RECORD}"))?;
    }
    match format {
        Format::Human if options.record => println!("{} lines written to {RECORD}", lines.len()),
        Format::Human => println!("{}", lines.join("\n")),
        Format::Json => println!("{}", serde_json::to_string_pretty(&lines)?),
    }
    Ok(Verdict::Passed)
}

/// Compares the API with its record.
pub fn check(rust: &[RustFile], record: Option<&str>) -> Report {
    let lines = lines_of(rust);
    let recorded: Vec<&str> = record.unwrap_or_default().lines().collect();
    let differences = differences(&lines, &recorded);
    let advice = "`cargo xtask public-api --record` writes it down";
    let violations = differences
        .iter()
        .take(REPORTED)
        .map(|(line, text)| Violation::new(RECORD, *line, format!("{text}; {advice}")));
    let at_root = lines.iter().filter(|line| is_at_root(line)).count();
    let looked_at = format!("{} lines of the public API of {CRATE}, {at_root} items at its root", lines.len());
    Report { name: "api", looked_at, violations: violations.collect() }
}

/// The listing, sorted.
fn lines_of(rust: &[RustFile]) -> Vec<String> {
    let crates = Crates::new(rust);
    let mut lines = listing::list(&crates, CRATE);
    lines.sort();
    lines.dedup();
    lines
}

/// Lines that only one side has, with their line of the record: where they are, or where they would be.
fn differences(lines: &[String], recorded: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in recorded.iter().enumerate() {
        if lines.binary_search_by(|known| known.as_str().cmp(line)).is_err() {
            found.push((index + 1, format!("no longer in the API: {line}")));
        }
    }
    for line in lines {
        if !recorded.contains(&line.as_str()) {
            let before = recorded.iter().take_while(|known| **known < line.as_str()).count();
            found.push((before + 1, format!("not on record: {line}")));
        }
    }
    found.sort();
    found
}

/// Whether a line is that of an item directly in the crate.
fn is_at_root(line: &str) -> bool {
    let Some(rest) = line.split_once(&format!(" {CRATE}::")).map(|(_, rest)| rest) else { return false };
    let kind = line.trim_start_matches("#[non_exhaustive] ").split(' ').nth(1).unwrap_or_default();
    let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let is_item = matches!(kind, "struct" | "enum" | "fn" | "trait" | "type" | "const" | "static" | "mod" | "use");
    is_item && line.starts_with(['p', '#']) && !rest[name.len()..].starts_with("::")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> RustFile {
        RustFile::parse(path, text).expect("the sample parses")
    }

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<RustFile> = files.iter().map(|(path, text)| file(path, text)).collect();
        lines_of(&files)
    }

    #[test]
    fn items_methods_fields_and_variants_are_listed() {
        let root = "mod client; pub use client::Client;\n\
                    /// One.\n#[derive(Clone)]\n#[non_exhaustive]\npub enum Put { Inserted, Replaced { old: u8 } }\n\
                    pub struct Stat { pub rows: u64, secret: u8 }\nstruct Hidden;\n\
                    pub const MOST: usize = 3;\npub fn list(of: &str) -> Result<(), Error> { loop {} }\n";
        let client = "pub struct Client(u8);\nimpl Client { pub fn get<'a>(&mut self, key: &'a [u8]) -> Option<&'a u8> \
                      { None } fn own(&self) {} }\nimpl Drop for Client { fn drop(&mut self) {} }\n";
        assert_eq!(
            of(&[("crates/guira/src/lib.rs", root), ("crates/guira/src/client.rs", client)]),
            [
                "#[non_exhaustive] pub enum guira::Put",
                "impl Clone for guira::Put",
                "impl Drop for guira::Client",
                "pub const guira::MOST: usize",
                "pub field guira::Put::Replaced::old: u8",
                "pub field guira::Stat::rows: u64",
                "pub fn guira::Client::get<'a>(&mut self, key: &'a [u8]) -> Option<&'a u8>",
                "pub fn guira::list(of: &str) -> Result<(), Error>",
                "pub struct guira::Client",
                "pub struct guira::Stat",
                "pub variant guira::Put::Inserted",
                "pub variant guira::Put::Replaced",
            ]
        );
    }

    #[test]
    fn re_exports_are_followed_through_crates_and_types_of_one_name_are_told_apart() {
        let root = "pub mod aio; mod client; pub use client::Client; pub use guira_fabric::Effect as Outcome;\n\
                    pub mod raw { pub use guira_fabric as fabric; pub use other::Thing; }\n";
        let files = [
            ("crates/guira/src/lib.rs", root),
            ("crates/guira/src/client.rs", "pub struct Client;\nimpl Client { pub fn close(self) {} }\n"),
            ("crates/guira/src/aio/mod.rs", "mod client;\npub use self::client::Client;\n"),
            (
                "crates/guira/src/aio/client.rs",
                "pub struct Client;\nimpl Client { pub async fn close(self) {} }\n\
                 impl From<crate::Client> for Client { fn from(_: crate::Client) -> Client { Client } }\n",
            ),
            ("crates/fabric/src/lib.rs", "mod effect;\npub use effect::Effect;\n"),
            ("crates/fabric/src/effect.rs", "pub enum Effect { None }\n"),
        ];
        assert_eq!(
            of(&files),
            [
                "impl From<crate::Client> for guira::aio::Client",
                "pub async fn guira::aio::Client::close(self)",
                "pub enum guira::Outcome",
                "pub fn guira::Client::close(self)",
                "pub mod guira::aio",
                "pub mod guira::raw",
                "pub struct guira::Client",
                "pub struct guira::aio::Client",
                "pub use guira::raw::Thing = other::Thing",
                "pub use guira::raw::fabric = guira_fabric",
                "pub variant guira::Outcome::None",
            ]
        );
    }

    #[test]
    fn what_macros_write_is_listed() {
        let root = "macro_rules! lookups { ($face:ident, $open:literal) => { impl $face { \
                    pub fn get(&mut self) -> u8 { 0 } fn own() {} } } }\n\
                    pub struct Reader;\nlookups!(Reader, \"x\");\n\
                    macro_rules! id { ($name:ident) => { pub struct $name(pub u64); } }\nid!(\n/// A row.\nRowId);\n\
                    pub mod raw { pub use crate::RowId; }\n";
        assert_eq!(
            of(&[("crates/guira/src/lib.rs", root)]),
            [
                "pub fn guira::Reader::get(&mut self) -> u8",
                "pub mod guira::raw",
                "pub struct guira::Reader",
                "pub use guira::raw::RowId = id!(RowId)",
            ]
        );
    }

    #[test]
    fn code_of_tests_is_not_listed() {
        let root = "#[cfg(test)]\npub mod tests { pub struct A; }\n#[doc(hidden)]\npub struct B;\n";
        assert!(of(&[("crates/guira/src/lib.rs", root)]).is_empty());
    }

    #[test]
    fn each_difference_from_the_record_is_a_violation() {
        let files = [file("crates/guira/src/lib.rs", "pub struct A;\npub struct C;\n")];
        let clean = check(&files, Some("pub struct guira::A\npub struct guira::C\n"));
        assert!(clean.violations.is_empty() && clean.looked_at.ends_with("2 items at its root"), "{clean}");
        let report = check(&files, Some("pub struct guira::A\npub struct guira::B\n"));
        let found: Vec<(usize, bool, bool)> = report
            .violations
            .iter()
            .map(|it| {
                (it.line, it.reason.contains("no longer in the API: pub struct guira::B"), it.reason.contains("::C"))
            })
            .collect();
        assert_eq!(found, [(2, true, false), (3, false, true)]);
        assert_eq!(check(&files, None).violations.len(), 2);
    }
}
