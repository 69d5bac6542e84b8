//! The size limits of files, lines and functions.
//!
//! Files and functions are counted in lines with comments and blanks, lines in characters. Tests obey the same limits
//! as code, except that a test file may be longer. Functions inside a macro's tokens are counted too.

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};

use crate::report::{Report, Violation};
use crate::rust::{self, RustFile};

/// Most lines of a file of code, so that it can be read in one sitting.
const CODE_FILE_LINES: usize = 800;
/// Most lines of a file of tests, which are read one by one.
const TEST_FILE_LINES: usize = 1200;
/// Most columns of a line, so that two panes fit beside each other.
const LINE_COLUMNS: usize = 120;
/// Most lines of a function, from its signature to its closing brace: one screen.
const FUNCTION_LINES: usize = 70;

const _: () = assert!(FUNCTION_LINES < CODE_FILE_LINES && CODE_FILE_LINES < TEST_FILE_LINES);

/// Checks every Rust file against the limits.
pub fn check(rust: &[RustFile]) -> Report {
    let mut violations = Vec::new();
    let mut functions = 0;
    for file in rust {
        violations.extend(file_length(file));
        violations.extend(line_lengths(file));
        let found = functions_of(file);
        functions += found.len();
        violations.extend(found.iter().filter_map(|function| function_length(file, function)));
    }
    let lines: usize = rust.iter().map(|file| file.text.lines().count()).sum();
    let looked_at = format!("{lines} lines and {functions} functions in {} Rust files", rust.len());
    Report { name: "style", looked_at, violations }
}

fn file_length(file: &RustFile) -> Option<Violation> {
    let limit = if file.is_test_file() { TEST_FILE_LINES } else { CODE_FILE_LINES };
    let lines = file.text.lines().count();
    let reason = format!("the file has {lines} lines; the limit is {limit}");
    (lines > limit).then(|| Violation::new(&file.path, limit + 1, reason))
}

fn line_lengths(file: &RustFile) -> Vec<Violation> {
    let columns = file.text.lines().map(|line| line.chars().count()).enumerate();
    columns
        .filter(|(_, columns)| *columns > LINE_COLUMNS)
        .map(|(index, columns)| {
            let reason = format!("the line has {columns} columns; the limit is {LINE_COLUMNS}");
            Violation::new(&file.path, index + 1, reason)
        })
        .collect()
}

fn function_length(file: &RustFile, function: &Function) -> Option<Violation> {
    let lines = function.last_line + 1 - function.first_line;
    let reason = format!("fn {} has {lines} lines; the limit is {FUNCTION_LINES}", function.name);
    (lines > FUNCTION_LINES).then(|| Violation::new(&file.path, function.first_line, reason))
}

struct Function {
    name: String,
    first_line: usize,
    last_line: usize,
}

fn functions_of(file: &RustFile) -> Vec<Function> {
    let mut finder = FunctionFinder { found: Vec::new() };
    finder.visit_file(&file.syntax);
    finder.found
}

struct FunctionFinder {
    found: Vec<Function>,
}

impl FunctionFinder {
    fn note(&mut self, signature: &syn::Signature, body: &syn::Block) {
        self.found.push(Function {
            name: signature.ident.to_string(),
            first_line: rust::line_of(signature.fn_token.span),
            last_line: body.brace_token.span.close().end().line,
        });
    }

    /// Finds functions in a macro's tokens, which have no syntax tree: `fn name`, up to the next sibling braces.
    fn note_in_macro(&mut self, tokens: &TokenStream) {
        rust::walk_tokens(tokens, &mut |siblings, position| {
            let is_fn = rust::ident_at(siblings, position).is_some_and(|ident| ident == "fn");
            let name = rust::ident_at(siblings, position + 1).filter(|_| is_fn);
            let ends = |at: &usize| rust::is_punct(siblings, *at, ';') || rust::braces_at(siblings, *at).is_some();
            let Some((name, end)) = name.zip((position..siblings.len()).find(ends)) else { return };
            if rust::braces_at(siblings, end).is_some() {
                self.found.push(Function {
                    name: name.to_string(),
                    first_line: rust::line_of(siblings[position].span()),
                    last_line: siblings[end].span().end().line,
                });
            }
        });
    }
}

impl<'ast> Visit<'ast> for FunctionFinder {
    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.note(&node.sig, &node.block);
        visit::visit_item_fn(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.note(&node.sig, &node.block);
        visit::visit_impl_item_fn(self, node);
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if let Some(body) = &node.default {
            self.note(&node.sig, body);
        }
        visit::visit_trait_item_fn(self, node);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        self.note_in_macro(&node.tokens);
        visit::visit_macro(self, node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(path: &str, text: &str) -> Vec<String> {
        let file = RustFile::parse(path, text).expect("the sample parses");
        check(&[file]).violations.iter().map(Violation::to_string).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_file_fails_and_a_test_file_may_be_longer() {
        let text = |lines: usize| "// x\n".repeat(lines);
        assert_eq!(reasons("crates/a/src/a.rs", &text(CODE_FILE_LINES)), [""; 0]);
        assert_eq!(
            reasons("crates/a/src/a.rs", &text(CODE_FILE_LINES + 1)),
            ["crates/a/src/a.rs:801: the file has 801 lines; the limit is 800"]
        );
        assert_eq!(reasons("crates/a/tests/a.rs", &text(TEST_FILE_LINES)), [""; 0]);
        assert_eq!(
            reasons("conformance/src/a.rs", &text(TEST_FILE_LINES + 1)),
            ["conformance/src/a.rs:1201: the file has 1201 lines; the limit is 1200"]
        );
    }

    #[test]
    fn a_long_line_fails_and_is_counted_in_characters() {
        assert_eq!(reasons("a.rs", &format!("//{}", "é".repeat(118))), [""; 0]);
        assert_eq!(
            reasons("a.rs", &format!("\n//{}", "x".repeat(119))),
            ["a.rs:2: the line has 121 columns; the limit is 120"]
        );
    }

    #[test]
    fn a_long_function_fails_in_every_context() {
        assert_eq!(reasons("a.rs", &function(FUNCTION_LINES)), [""; 0]);
        let long = function(FUNCTION_LINES + 1);
        for (before, after) in [
            ("", ""),
            ("impl A {", "}"),
            ("trait A {", "}"),
            ("mod a {", "}"),
            ("fn outer() { ", "}"),
            ("macro_rules! a { () => {", "} }"),
            ("proptest! { #![config(x)] #[test]", "}"),
            ("#[cfg(test)] mod tests { #[test]", "}"),
        ] {
            let found = reasons("a.rs", &format!("\n{before}\n{long}{after}\n"));
            assert!(found.contains(&"a.rs:3: fn long has 71 lines; the limit is 70".to_owned()), "{before}: {found:?}");
        }
    }

    #[test]
    fn attributes_and_comments_above_a_function_do_not_count() {
        let text = format!("{}#[inline]\n{}", "/// x\n".repeat(30), function(FUNCTION_LINES));
        assert_eq!(reasons("a.rs", &text), [""; 0]);
    }
}
