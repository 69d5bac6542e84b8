//! Words for unfinished work, and attributes that disable a test: neither may be in the repository.
//!
//! The words are assembled from halves here, so that this file does not contain them.

use crate::report::{Report, Violation};
use crate::tree::{self, SourceFile};

/// The way in which a banned word is matched in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    /// Anywhere, with the same case.
    Exact,
    /// As a whole word, with the same case.
    Word,
    /// As a whole word, in any case.
    AnyCaseWord,
}

const BANNED: [(&str, Match); 9] = [
    (concat!("to", "do!"), Match::Word),
    (concat!("unimple", "mented!"), Match::Word),
    (concat!("TO", "DO"), Match::Word),
    (concat!("FIX", "ME"), Match::Word),
    (concat!("XX", "X"), Match::Word),
    (concat!("HA", "CK"), Match::Word),
    (concat!("for ", "now"), Match::AnyCaseWord),
    (concat!("place", "holder"), Match::AnyCaseWord),
    (concat!("#[", "ignore"), Match::Exact),
];

/// Extensions of the files that are searched, besides everything in `.ci`.
const EXTENSIONS: [&str; 5] = ["rs", "md", "py", "sh", "toml"];

/// Searches every source, document, script and manifest.
pub fn check(files: &[SourceFile]) -> Report {
    let is_searched = |path: &str| {
        path.starts_with(".ci/") || EXTENSIONS.iter().any(|extension| tree::has_extension(path, extension))
    };
    let searched: Vec<&SourceFile> = files.iter().filter(|file| is_searched(&file.path)).collect();
    let violations = searched.iter().flat_map(|file| banned_in(file)).collect();
    let looked_at = format!("{} banned words in {} files", BANNED.len(), searched.len());
    Report { name: "words", looked_at, violations }
}

fn banned_in(file: &SourceFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let found = BANNED.iter().filter(|(word, how)| has(line, word, *how));
        violations.extend(found.map(|(word, _)| Violation::new(&file.path, index + 1, format!("banned: {word}"))));
    }
    violations
}

fn has(line: &str, word: &str, how: Match) -> bool {
    let lowered = (how == Match::AnyCaseWord).then(|| line.to_ascii_lowercase());
    let line = lowered.as_deref().unwrap_or(line);
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let end = start + word.len();
        how == Match::Exact || !(line[..start].ends_with(is_part) || line[end..].starts_with(is_part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        let violations = check(&[file]).violations;
        violations.into_iter().map(|violation| (violation.line, violation.reason)).collect()
    }

    #[test]
    fn every_banned_word_fails_in_every_kind_of_file() {
        for (word, _) in BANNED {
            for path in ["a/b.rs", "docs/a.md", "a.py", "a.sh", "Cargo.toml", ".ci/run"] {
                let text = format!("fine\n{word}");
                assert_eq!(found(path, &text), [(2, format!("banned: {word}"))], "{path}");
            }
            assert_eq!(found("LICENSE-MIT", word), []);
        }
    }

    #[test]
    fn prose_is_matched_in_any_case_and_only_as_whole_words() {
        assert_eq!(found("a.md", concat!("For ", "now")).len(), 1);
        assert_eq!(found("a.md", concat!("for ", "nowhere")), []);
        assert_eq!(found("a.sh", &format!("mktemp a.{}", "X".repeat(6))), []);
        assert_eq!(found("Cargo.toml", &format!("{} = \"deny\"", concat!("to", "do"))), []);
    }
}
