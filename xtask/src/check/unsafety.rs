//! The packages that may contain `unsafe`: the few that access memory, hardware or C, each with a reason.
//!
//! Every other crate root forbids it by attribute, so the compiler checks it as well. This check also reads tests,
//! build scripts, and code that the current configuration excludes.

use crate::manifest::Manifest;
use crate::report::{Report, Violation};
use crate::rust::{self, RustFile};

/// The directories whose code may be unsafe, each with its reason.
const UNSAFE_ALLOWED: [(&str, &str); 5] = [
    ("crates/fabric", "the heap backend hands out memory that lanes share"),
    ("crates/fabric-shm", "it maps memory that other processes change"),
    ("crates/fabric-verbs", "it calls rdma-core"),
    ("crates/sum", "it uses the processor's checksum instructions"),
    ("bindings/c", "it is called from C"),
];

/// Checks that only these packages contain `unsafe`, and that every other crate root forbids it.
pub fn check(rust: &[RustFile], manifests: &[Manifest]) -> Report {
    let mut violations = Vec::new();
    let safe: Vec<&RustFile> = rust.iter().filter(|file| !may_be_unsafe(&file.path)).collect();
    for file in &safe {
        violations.extend(unsafe_lines(file));
    }
    let is_root = |file: &&&RustFile| manifests.iter().any(|manifest| manifest.is_crate_root(&file.path));
    let roots: Vec<&RustFile> = safe.iter().filter(is_root).copied().collect();
    let unforbidden = roots.iter().filter(|file| !forbids_unsafe(&file.syntax));
    violations.extend(unforbidden.map(|file| Violation::new(&file.path, 1, "lacks #![forbid(unsafe_code)]")));
    let allowed: Vec<&str> = UNSAFE_ALLOWED.iter().map(|(directory, _)| *directory).collect();
    let looked_at = format!("{} Rust files and {} crate roots outside {}", safe.len(), roots.len(), allowed.join(", "));
    Report { name: "unsafe", looked_at, violations }
}

fn may_be_unsafe(path: &str) -> bool {
    let inside = |directory: &str| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
    UNSAFE_ALLOWED.iter().any(|(directory, _)| inside(directory))
}

fn unsafe_lines(file: &RustFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    rust::walk_tokens(&file.tokens, &mut |siblings, position| {
        if let Some(ident) = rust::ident_at(siblings, position).filter(|ident| *ident == "unsafe") {
            let line = rust::line_of(ident.span());
            violations.push(Violation::new(&file.path, line, "unsafe code outside the packages that may have it"));
        }
    });
    violations
}

fn forbids_unsafe(syntax: &syn::File) -> bool {
    syntax.attrs.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("forbid") => {
            let mut found = false;
            rust::walk_tokens(&list.tokens, &mut |siblings, position| {
                found |= rust::ident_at(siblings, position).is_some_and(|ident| ident == "unsafe_code");
            });
            found
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(path: &str, text: &str) -> Vec<String> {
        let manifest = Manifest::parse("crates/guira/Cargo.toml", "[package]\nname = \"guira\"\n");
        let manifest = manifest.expect("the sample parses").expect("it has a package");
        let file = RustFile::parse(path, text).expect("the sample parses");
        check(&[file], &[manifest]).violations.iter().map(Violation::to_string).collect()
    }

    #[test]
    fn unsafe_outside_the_allowed_packages_fails_in_code_macros_and_tests() {
        let reason = "unsafe code outside the packages that may have it";
        let text = "fn a() {\n    unsafe { b() }\n}\nmacro_rules! c { () => {\n    unsafe fn d() {}\n} }\n";
        assert_eq!(
            reasons("crates/guira/src/a.rs", text),
            [format!("crates/guira/src/a.rs:2: {reason}"), format!("crates/guira/src/a.rs:5: {reason}"),]
        );
        assert_eq!(reasons("crates/fabricated/src/a.rs", text).len(), 2);
        assert_eq!(reasons("crates/guira/tests/a.rs", text).len(), 2);
        assert_eq!(reasons("crates/fabric/src/a.rs", text), [""; 0]);
        assert_eq!(reasons("crates/sum/src/lib.rs", text), [""; 0]);
    }

    #[test]
    fn words_in_comments_and_strings_are_not_unsafe_code() {
        assert_eq!(reasons("crates/guira/src/a.rs", "/// unsafe\nconst A: &str = \"unsafe\"; // unsafe\n"), [""; 0]);
    }

    #[test]
    fn a_crate_root_without_the_attribute_fails() {
        let expected = ["crates/guira/src/lib.rs:1: lacks #![forbid(unsafe_code)]"];
        assert_eq!(reasons("crates/guira/src/lib.rs", "//! Docs.\n#![deny(unsafe_code)]\n"), expected);
        assert_eq!(reasons("crates/guira/src/lib.rs", "//! Docs.\n#![forbid(unsafe_code)]\n"), [""; 0]);
        assert_eq!(reasons("crates/guira/src/main.rs", "fn main() {}\n").len(), 1);
        assert_eq!(reasons("crates/guira/src/bin/tool.rs", "fn main() {}\n").len(), 1);
        assert_eq!(reasons("crates/guira/src/row.rs", ""), [""; 0]);
    }
}
