//! The text of messages: untrusted text, made safe for terminals and shells, and amounts of memory.

use std::fmt;

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

/// A number of bytes that is displayed with a unit: `847 B`, `34.9 MiB`.
///
/// ```
/// use guira_fabric::ByteCount;
///
/// assert_eq!([847, 65_536, 36_597_760].map(|bytes| ByteCount(bytes).to_string()), ["847 B", "64.0 KiB", "34.9 MiB"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut unit = 0;
        let mut unit_bytes = 1024_u64;
        // 1023.95 and more would be shown as 1024.0.
        while self.0 as f64 / unit_bytes as f64 >= 1023.95 && unit + 1 < UNITS.len() {
            unit_bytes *= 1024;
            unit += 1;
        }
        write!(f, "{:.1} {}", self.0 as f64 / unit_bytes as f64, UNITS[unit])
    }
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

    #[test]
    fn counts_are_shown_in_the_largest_unit() {
        let shown = |bytes| ByteCount(bytes).to_string();
        assert_eq!([0, 1023, 1024, 1536].map(shown), ["0 B", "1023 B", "1.0 KiB", "1.5 KiB"]);
        assert_eq!([(1 << 20) - 1, 1 << 20, 3 << 29].map(shown), ["1.0 MiB", "1.0 MiB", "1.5 GiB"]);
        assert_eq!([1 << 60, u64::MAX].map(shown), ["1.0 EiB", "16.0 EiB"]);
    }
}
