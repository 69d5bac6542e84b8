//! Parsed Rust files for the checks: text, tokens, syntax tree, and which lines are test code.
//!
//! Test code is a file under a `tests/` directory or in `conformance/`; an item under `#[cfg(test)]`, `#[cfg(all(test,
//! ..))]` or `#[test]`; and the file of a module that its parent declares under such an attribute. An item under
//! `#[cfg(any(test, ..))]` also exists outside tests and counts as code.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Meta};

use crate::report::Violation;
use crate::tree::SourceFile;

/// One parsed file.
pub struct RustFile {
    pub path: String,
    pub text: String,
    pub tokens: TokenStream,
    pub syntax: syn::File,
    /// Whether the whole file is test code.
    is_test: bool,
    test_lines: Vec<RangeInclusive<usize>>,
}

impl RustFile {
    /// Parses one file by itself. A module file whose parent marks it as test code is not recognized as such.
    pub fn parse(path: &str, text: &str) -> Result<Self, Violation> {
        // The lexer counts lines from 1, as do all reports.
        let unreadable = |line: usize, error: String| Violation::new(path, line, format!("does not parse: {error}"));
        let without_shebang = blank_shebang(text);
        let tokens: TokenStream = without_shebang
            .parse()
            .map_err(|error: proc_macro2::LexError| unreadable(line_of(error.span()), error.to_string()))?;
        let syntax: syn::File =
            syn::parse2(tokens.clone()).map_err(|error| unreadable(line_of(error.span()), error.to_string()))?;
        let mut finder = TestFinder { lines: Vec::new() };
        finder.visit_file(&syntax);
        let is_test = is_test_path(path) || syntax.attrs.iter().any(is_test_attribute);
        Ok(Self { path: path.to_owned(), text: text.to_owned(), tokens, syntax, is_test, test_lines: finder.lines })
    }

    /// Whether `line` is test code.
    pub fn is_test_line(&self, line: usize) -> bool {
        self.is_test || self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// Whether the whole file is test code.
    pub fn is_test_file(&self) -> bool {
        self.is_test
    }

    /// The possible paths of the out-of-line modules that this file declares as tests.
    fn test_module_paths(&self) -> Vec<String> {
        let (directory, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let inner = match name {
            "lib.rs" | "main.rs" | "mod.rs" => directory.to_owned(),
            _ => self.path.trim_end_matches(".rs").to_owned(),
        };
        let modules = self.syntax.items.iter().filter_map(|item| match item {
            syn::Item::Mod(module) if module.content.is_none() && module.attrs.iter().any(is_test_attribute) => {
                Some(module.ident.to_string())
            }
            _ => None,
        });
        modules.flat_map(|module| [format!("{inner}/{module}.rs"), format!("{inner}/{module}/mod.rs")]).collect()
    }
}

/// Parses every file, marks the modules that parents declare as tests, and reports the files that do not parse.
pub fn parse_all<'a>(files: impl Iterator<Item = &'a SourceFile>) -> (Vec<RustFile>, Vec<Violation>) {
    let mut parsed = Vec::new();
    let mut unparsed = Vec::new();
    for file in files {
        match RustFile::parse(&file.path, &file.text) {
            Ok(file) => parsed.push(file),
            Err(violation) => unparsed.push(violation),
        }
    }
    let test_modules: Vec<String> = parsed.iter().flat_map(RustFile::test_module_paths).collect();
    for file in &mut parsed {
        file.is_test |= test_modules.contains(&file.path);
    }
    (parsed, unparsed)
}

/// Whether the file is test code by its path.
pub fn is_test_path(path: &str) -> bool {
    path.starts_with("conformance/") || path.starts_with("tests/") || path.contains("/tests/")
}

/// The line on which a span starts, from 1.
pub fn line_of(span: Span) -> usize {
    span.start().line
}

/// Calls `see` with every list of sibling tokens and each position in it, in the order of the source. The depth of the
/// recursion is the nesting of the source, which the parser has already walked.
pub fn walk_tokens(stream: &TokenStream, see: &mut dyn FnMut(&[TokenTree], usize)) {
    let siblings: Vec<TokenTree> = stream.clone().into_iter().collect();
    for (position, token) in siblings.iter().enumerate() {
        see(&siblings, position);
        if let TokenTree::Group(group) = token {
            walk_tokens(&group.stream(), see);
        }
    }
}

/// The identifier at `position`, if there is one.
pub fn ident_at(siblings: &[TokenTree], position: usize) -> Option<&Ident> {
    match siblings.get(position) {
        Some(TokenTree::Ident(ident)) => Some(ident),
        _ => None,
    }
}

/// Whether the token at `position` is the punctuation `character`.
pub fn is_punct(siblings: &[TokenTree], position: usize, character: char) -> bool {
    matches!(siblings.get(position), Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

/// The contents of the braces at `position`, if there are any.
pub fn braces_at(siblings: &[TokenTree], position: usize) -> Option<TokenStream> {
    match siblings.get(position) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => Some(group.stream()),
        _ => None,
    }
}

/// Blanks a shebang, which is not Rust, unlike an inner attribute.
fn blank_shebang(text: &str) -> &str {
    if text.starts_with("#!") && !text[2..].trim_start().starts_with('[') {
        // The newline stays, so that lines keep their numbers.
        text.find('\n').map_or("", |end| &text[end..])
    } else {
        text
    }
}

/// Collects the lines of every item that exists only in tests.
struct TestFinder {
    lines: Vec<RangeInclusive<usize>>,
}

impl TestFinder {
    fn note(&mut self, attributes: &[Attribute], span: Span) {
        if attributes.iter().any(is_test_attribute) {
            self.lines.push(span.start().line..=span.end().line);
        }
    }
}

macro_rules! note_each {
    ($($visit:ident: $node:ident),* $(,)?) => {
        impl<'ast> Visit<'ast> for TestFinder {
            $(fn $visit(&mut self, node: &'ast syn::$node) {
                self.note(&node.attrs, node.span());
                visit::$visit(self, node);
            })*
        }
    };
}

note_each! {
    visit_field: Field,
    visit_impl_item_const: ImplItemConst,
    visit_impl_item_fn: ImplItemFn,
    visit_item_const: ItemConst,
    visit_item_enum: ItemEnum,
    visit_item_fn: ItemFn,
    visit_item_impl: ItemImpl,
    visit_item_macro: ItemMacro,
    visit_item_mod: ItemMod,
    visit_item_static: ItemStatic,
    visit_item_struct: ItemStruct,
    visit_item_trait: ItemTrait,
    visit_item_type: ItemType,
    visit_item_use: ItemUse,
    visit_local: Local,
    visit_variant: Variant,
}

fn is_test_attribute(attribute: &Attribute) -> bool {
    if attribute.path().segments.last().is_some_and(|segment| segment.ident == "test") {
        return true;
    }
    match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => demands_test(&list.tokens),
        _ => false,
    }
}

/// Whether a `cfg` predicate holds only in tests: `test`, or `all(..)` with `test` among its direct terms.
fn demands_test(predicate: &TokenStream) -> bool {
    let tokens: Vec<TokenTree> = predicate.clone().into_iter().collect();
    match tokens.as_slice() {
        [TokenTree::Ident(ident)] => ident == "test",
        [TokenTree::Ident(ident), TokenTree::Group(terms)] if ident == "all" => {
            let terms: Vec<TokenTree> = terms.stream().into_iter().collect();
            terms
                .split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','))
                .any(|term| matches!(term, [TokenTree::Ident(ident)] if ident == "test"))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str, text: &str) -> RustFile {
        RustFile::parse(path, text).expect("the sample parses")
    }

    #[test]
    fn items_under_cfg_test_are_test_lines_and_others_are_not() {
        let text = "fn code() {}\n#[cfg(test)]\nmod tests {\n    fn inner() {}\n}\nfn more() {}\n";
        let file = parsed("crates/a/src/lib.rs", text);
        assert_eq!(
            (1..=6).map(|line| file.is_test_line(line)).collect::<Vec<_>>(),
            [false, true, true, true, true, false]
        );
    }

    #[test]
    fn all_with_test_is_test_code_and_any_with_test_is_not() {
        let text = "#[cfg(all(test, not(loom)))]\nfn a() {}\n#[cfg(any(test, loom))]\nfn b() {}\n#[test]\nfn c() {}\n";
        let file = parsed("crates/a/src/lib.rs", text);
        assert_eq!([2, 4, 6].map(|line| file.is_test_line(line)), [true, false, true]);
    }

    #[test]
    fn files_in_test_directories_are_test_code() {
        assert!(parsed("crates/a/tests/b.rs", "fn a() {}").is_test_line(1));
        assert!(parsed("conformance/src/lib.rs", "fn a() {}").is_test_line(1));
        assert!(!parsed("crates/a/src/lib.rs", "fn a() {}").is_test_line(1));
    }

    #[test]
    fn a_module_file_is_test_code_where_its_parent_says_so() {
        let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
        let files = [
            file("crates/a/src/lib.rs", "#[cfg(test)]\nmod checks;\nmod code;\n"),
            file("crates/a/src/checks.rs", "fn a() {}"),
            file("crates/a/src/code.rs", "#[cfg(test)]\nmod inner;\n"),
            file("crates/a/src/code/inner.rs", "fn a() {}"),
        ];
        let (parsed, unparsed) = parse_all(files.iter());
        assert_eq!(parsed.iter().map(RustFile::is_test_file).collect::<Vec<_>>(), [false, true, false, true]);
        assert!(unparsed.is_empty());
    }

    #[test]
    fn a_file_that_does_not_parse_is_reported_with_its_line() {
        let violation = RustFile::parse("a.rs", "fn a() {}\nfn 3() {}\n").err().expect("a number is not a name");
        assert_eq!((violation.path.as_str(), violation.line), ("a.rs", 2));
        assert!(RustFile::parse("a.rs", "fn a() {\n").is_err());
    }

    #[test]
    fn blanking_a_shebang_keeps_line_numbers_and_inner_attributes() {
        assert_eq!(blank_shebang("#!/bin/x\nfn a() {}"), "\nfn a() {}");
        assert_eq!(blank_shebang("#![forbid(unsafe_code)]"), "#![forbid(unsafe_code)]");
    }
}
