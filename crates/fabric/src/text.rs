//! Untrusted text, made safe for terminals and shells.

/// Returns `text`, which may be untrusted, with every character escaped, in Rust's notation, that controls a terminal
/// or hides text: control characters, line ends, and characters that change the direction of writing.
#[must_use]
pub fn printable(text: &str) -> String {
    let is_harmless = |c: char| c == ' ' || !(c.is_control() || c.is_whitespace() || is_format(c));
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if is_harmless(c) {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
        out
    })
}

/// Returns a word of a command as a shell takes it.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-._/:@%+,=".contains(c);
    if word.is_empty() || !word.chars().all(is_plain) {
        format!("'{}'", word.replace('\'', r"'\''"))
    } else {
        word.into()
    }
}

/// Whether `c` is invisible and changes how other characters are shown.
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, shown) in [
            ("shm://birds", "shm://birds"),
            ("für", "für"),
            ("", "''"),
            ("my tables", "'my tables'"),
            ("it's", r"'it'\''s'"),
            ("rdma://h:1?dev=d&gid=1", "'rdma://h:1?dev=d&gid=1'"),
            ("$(x)", "'$(x)'"),
        ] {
            assert_eq!(shell_word(word), shown);
        }
    }
}
