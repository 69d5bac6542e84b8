//! A checker of markup for tests: elements nest, attributes are quoted and unique, references are known.

/// Elements of HTML without an end.
const VOID: [&str; 2] = ["meta", "br"];
const REFERENCES: [&str; 5] = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];

/// An element's name and attributes.
pub(super) struct Element {
    pub(super) name: String,
    pub(super) attributes: Vec<(String, String)>,
}

impl Element {
    /// Returns the number in an attribute.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.attributes.iter().find(|(known, _)| known == name)?.1.parse().ok()
    }
}

/// Parses a document.
///
/// # Panics
/// If it is malformed.
pub(super) fn elements(text: &str) -> Vec<Element> {
    let mut rest = text;
    let mut open: Vec<String> = Vec::new();
    let mut found = Vec::new();
    while let Some((before, after)) = rest.split_once('<') {
        check_text(before, open.last());
        let (tag, after) = after.split_once('>').expect("a tag ends");
        rest = after;
        if tag.starts_with("!DOCTYPE") {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "before: {before}");
            continue;
        }
        let (tag, is_closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let element = element(tag);
        if !is_closed && !VOID.contains(&element.name.as_str()) {
            open.push(element.name.clone());
        }
        found.push(element);
    }
    check_text(rest, None);
    assert!(open.is_empty(), "still open: {open:?}");
    found
}

fn check_text(text: &str, parent: Option<&String>) {
    if parent.is_some_and(|parent| parent == "style") {
        return;
    }
    assert!(!text.contains('>'), "{text}");
    for (start, _) in text.match_indices('&') {
        assert!(REFERENCES.iter().any(|known| text[start..].starts_with(known)), "{text}");
    }
}

fn element(tag: &str) -> Element {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    assert!(!name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric()), "<{tag}>");
    let mut attributes: Vec<(String, String)> = Vec::new();
    while !rest.trim().is_empty() {
        let (key, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("an attribute without a value: <{tag}>"));
        let (value, after) = after.split_once('"').unwrap_or_else(|| panic!("an attribute does not end: <{tag}>"));
        let key = key.trim();
        assert!(key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-'), "{key:?} in <{tag}>");
        assert!(attributes.iter().all(|(known, _)| known != key), "two {key} in <{tag}>");
        check_text(value, None);
        attributes.push((key.to_owned(), value.to_owned()));
        rest = after;
    }
    Element { name: name.to_owned(), attributes }
}

#[test]
fn malformed_markup_is_noticed() {
    for text in ["<a><b></a></b>", "<a x=1></a>", "<a x=\"1\" x=\"2\"/>", "<a>&nbsp;</a>", "<a", "<a>", "a > b"] {
        assert!(std::panic::catch_unwind(|| elements(text)).is_err(), "{text}");
    }
    assert_eq!(elements("<a x=\"1\"><b/>&amp;</a>").len(), 2);
}
