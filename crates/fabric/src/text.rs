//! Untrusted text, made safe for terminals.

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

/// Whether `c` is invisible and changes how other characters are shown.
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}
