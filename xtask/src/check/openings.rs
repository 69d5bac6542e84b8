//! The first words of doc comments: a doc comment opens with what the item is or does, not with a clause whose subject
//! comes later.
//!
//! A doc comment is a run of `///`, of `//!`, of `/** */` or of `#[doc = ".."]` attributes on one item. The lexer turns
//! all of them into attributes, so strings that look like comments are not taken for them, and those inside a macro's
//! tokens are found as well.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::report::{Report, Violation};
use crate::rust::{self, RustFile};

/// Words that no doc comment opens with. What follows one of them is not part of a longer word.
const BANNED: [&str; 8] = ["What", "Who", "Whose", "Whoever", "Whatever", "Those", "How it", "As there"];

/// Checks every doc comment of every Rust file.
pub fn check(rust: &[RustFile]) -> Report {
    let mut violations = Vec::new();
    let mut count = 0;
    for file in rust {
        let comments = doc_comments(file);
        count += comments.len();
        violations.extend(comments.iter().filter_map(|comment| {
            let word = banned_opening(&comment.text)?;
            let reason = format!("a doc comment opens with \"{word}\"; say what the item is or does");
            Some(Violation::new(&file.path, comment.line, reason))
        }));
    }
    let looked_at = format!("{count} doc comments in {} Rust files", rust.len());
    Report { name: "openings", looked_at, violations }
}

/// One doc comment: its text, and the line where it starts.
#[derive(Debug, PartialEq, Eq)]
struct DocComment {
    line: usize,
    text: String,
}

fn doc_comments(file: &RustFile) -> Vec<DocComment> {
    let mut comments = Vec::new();
    collect(&file.tokens, &mut comments);
    comments
}

/// Adds the doc comments among the tokens of `stream`. The depth of the recursion is the nesting of the source, which
/// the parser has already walked.
fn collect(stream: &TokenStream, comments: &mut Vec<DocComment>) {
    let siblings: Vec<TokenTree> = stream.clone().into_iter().collect();
    // The position behind the last attribute, and whether that attribute is an inner one.
    let mut last: Option<(usize, bool)> = None;
    for (position, token) in siblings.iter().enumerate() {
        if let Some(attribute) = doc_attribute(&siblings, position) {
            match comments.last_mut().filter(|_| last == Some((position, attribute.is_inner))) {
                Some(comment) => comment.text = format!("{}\n{}", comment.text, attribute.text),
                None => comments.push(DocComment { line: rust::line_of(token.span()), text: attribute.text }),
            }
            last = Some((attribute.end, attribute.is_inner));
        } else if let TokenTree::Group(group) = token {
            collect(&group.stream(), comments);
        }
    }
}

/// One `#[doc = ".."]` or `#![doc = ".."]`.
struct DocAttribute {
    is_inner: bool,
    text: String,
    /// The position behind it.
    end: usize,
}

fn doc_attribute(siblings: &[TokenTree], position: usize) -> Option<DocAttribute> {
    if !rust::is_punct(siblings, position, '#') {
        return None;
    }
    let is_inner = rust::is_punct(siblings, position + 1, '!');
    let end = position + 2 + usize::from(is_inner);
    let TokenTree::Group(group) = siblings.get(end - 1)? else { return None };
    if group.delimiter() != Delimiter::Bracket {
        return None;
    }
    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
    let is_doc = rust::ident_at(&inside, 0).is_some_and(|ident| ident == "doc") && rust::is_punct(&inside, 1, '=');
    let [_, _, TokenTree::Literal(literal)] = &inside[..] else { return None };
    let text = syn::parse_str::<syn::LitStr>(&literal.to_string()).ok().filter(|_| is_doc)?.value();
    Some(DocAttribute { is_inner, text, end })
}

/// The banned word that a doc comment opens with, if it does. White space and Markdown's marks of a heading, a list
/// item or emphasis may stand before it.
fn banned_opening(text: &str) -> Option<&'static str> {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || "#*_-".contains(c));
    let words = text.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    BANNED.into_iter().find(|banned| {
        words.strip_prefix(banned).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        let file = RustFile::parse("conformance/src/a.rs", text).expect("the sample parses");
        let word = |reason: &str| reason.split('"').nth(1).unwrap_or_default().to_owned();
        let violations = check(&[file]).violations;
        violations.into_iter().map(|violation| (violation.line, word(&violation.reason))).collect()
    }

    #[test]
    fn every_banned_opening_fails_in_every_kind_of_doc_comment() {
        for word in BANNED {
            for comment in [
                format!("/// {word} it is.\nstruct A;"),
                format!("///\n/// {word}, that is.\nstruct A;"),
                format!("//! {word}\n//! more"),
                format!("/** {word} it is. */\nstruct A;"),
                format!("#[doc = \"{word} it is.\"]\nstruct A;"),
                format!("#![doc = r\"{word}\"]"),
                format!("/// **{word}** it is.\nstruct A;"),
            ] {
                assert_eq!(found(&format!("\n{comment}\n")), [(2, word.to_owned())], "{comment}");
            }
        }
    }

    #[test]
    fn an_opening_that_goes_on_in_the_next_line_fails() {
        assert_eq!(found("/// How\n/// it stands.\nstruct A;\n"), [(1, "How it".to_owned())]);
    }

    #[test]
    fn doc_comments_fail_on_fields_on_variants_in_functions_and_in_macros() {
        for text in [
            "struct A {\n/// Whose it is.\nb: u8 }",
            "enum A {\n/// Whose it is.\nB }",
            "impl A {\n/// Whose it is.\nfn b() {} }",
            "fn a() {\n/// Whose it is.\nstruct B; }",
            "macro_rules! a { () => {\n/// Whose it is.\nstruct B; } }",
            "a! {\n/// Whose it is.\nb: u8 }",
        ] {
            assert_eq!(found(text), [(2, "Whose".to_owned())], "{text}");
        }
    }

    #[test]
    fn a_second_comment_is_judged_by_its_own_opening() {
        assert_eq!(found("//! Good.\n\n/// What it is.\nstruct A;\n"), [(3, "What".to_owned())]);
        assert_eq!(found("/// Good.\nstruct A;\n/// Who asks.\nstruct B;\n"), [(3, "Who".to_owned())]);
        assert_eq!(found("struct A {\n/// Good.\nb: u8,\n/// Those of c.\nc: u8 }"), [(4, "Those".to_owned())]);
    }

    #[test]
    fn later_lines_longer_words_comments_and_strings_pass() {
        let text = "//! Whole words.\n//! What follows is free.\n\n// What this does.\n/// Howitzers.\n///\n\
                    /// Whoever comes later.\nconst A: &str = \"\n/// What\n\";\n/// How long it takes.\nstruct B;\n\
                    /// `What` in code.\n#[doc = include_str!(\"a.md\")]\n#[doc(hidden)]\nfn c() {}\n//// What\n";
        assert_eq!(found(text), []);
    }
}
