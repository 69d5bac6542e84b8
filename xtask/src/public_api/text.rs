//! Tokens as a person writes them.

use proc_macro2::TokenStream;
use quote::ToTokens;

/// The source of `node` on one line, with the spaces of rustfmt, as far as signatures need them.
pub fn of(node: &impl ToTokens) -> String {
    tidy(node.to_token_stream())
}

fn tidy(tokens: TokenStream) -> String {
    // The lexer joins what closes several lists at once.
    let spaced = tokens.to_string().replace('>', " > ").replace("- >", "->").replace("= >", "=>");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut text = String::with_capacity(spaced.len());
    for (index, word) in words.iter().enumerate() {
        let before = index.checked_sub(1).map_or("", |index| words[index]);
        if !text.is_empty() && wants_space(before, word) {
            text.push(' ');
        }
        text.push_str(word);
    }
    text.replace(",)", ")").replace(", >", ">").replace(",>", ">").replace(" ,", ",")
}

/// Whether a space stands between two words.
fn wants_space(before: &str, word: &str) -> bool {
    let closes = |text: &str| text.starts_with([',', ';', ')', ']', '.', '?', ':']) || text == ">" || text == "::";
    let opens = |text: &str| text.ends_with(['(', '[', '&', '.', '\'', '*']) || text.ends_with("::");
    if word.starts_with(['(', '[']) {
        let is_operator = matches!(before, "->" | "=" | "+" | ":" | "mut" | "where") || before.ends_with(',');
        return is_operator || before.contains('\'');
    }
    if word == "<" || before == "<" {
        return false;
    }
    // A macro's name, and what is not: both are written without a space.
    if word == "!" || before == "!" {
        return false;
    }
    !closes(word) && !opens(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_read_as_rustfmt_writes_them() {
        for text in [
            "fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error>",
            "fn open<U>(url: U) -> Result<Store, Error> where U: TryInto<Url>, Error: From<U::Error>",
            "fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])>",
            "fn with(&self, visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>)",
            "fn from<const N: usize>(value: &'v [u8; N]) -> Self",
        ] {
            let parsed: TokenStream = text.parse().expect("it has tokens");
            assert_eq!(tidy(parsed), text);
        }
    }
}
