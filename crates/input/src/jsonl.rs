//! JSON lines: one object per record, whose key and value are strings (`key`, `value`) or base64 (`key_b64`,
//! `value_b64`), in any combination. The writer uses strings for UTF-8 and base64 for other bytes.

use std::io::{self, Write};

use serde::de::IgnoredAny;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use super::encoder::{Notation, RecordEncoder};
use super::lines::Pair;
use crate::text::{JsonBytes, from_base64};

/// Maximum number of characters of a reason that quotes the input.
const REASON_CHARS: usize = 200;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Option<Text>,
    key_b64: Option<String>,
    value: Option<Text>,
    value_b64: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    String(String),
    Number(serde_json::Number),
    Other(IgnoredAny),
}

/// The expected form of a line, for errors.
const FORM: &str = "expected {\"key\": \"TEXT\", \"value\": \"TEXT\"}, or key_b64 and value_b64 with base64";

/// Parses a line, given without its line end.
pub(crate) fn read(line: &[u8], encoder: &RecordEncoder) -> Pair {
    // The parser would also accept an array.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err(format!("it is not a JSON object: {FORM}"));
    }
    let line: Line = serde_json::from_slice(line).map_err(|error| {
        let reason = one_line(&error.to_string().replace(" at line 1", ""));
        format!("it is not a JSON object with a key and a value ({reason}): {FORM}")
    })?;
    let key = bytes("key", line.key, line.key_b64, encoder)?;
    Ok((key, bytes("value", line.value, line.value_b64, encoder)?))
}

/// Shortens a reason that quotes the input, and escapes its control characters.
fn one_line(reason: &str) -> String {
    let mut shown = String::new();
    for c in reason.chars().take(REASON_CHARS) {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    let cut = if reason.chars().nth(REASON_CHARS).is_some() { "…" } else { "" };
    shown + cut
}

fn bytes(name: &str, text: Option<Text>, base64: Option<String>, encoder: &RecordEncoder) -> Result<Vec<u8>, String> {
    let notation = encoder.notation();
    match (text, base64) {
        (Some(_), Some(_)) => Err(format!("it has both \"{name}\" and \"{name}_b64\": expected one of them")),
        (None, None) => Err(format!("it has neither \"{name}\" nor \"{name}_b64\": {FORM}")),
        (Some(Text::Other(_)), None) => Err(format!("its {name} is not text: expected a string")),
        (Some(Text::String(text)), None) => Ok(text.into_bytes()),
        (Some(Text::Number(number)), None) => match notation {
            Notation::Numbers => Ok(number.to_string().into_bytes()),
            Notation::Bytes | Notation::Hex => {
                let option = if encoder.has_numbers() { ", or load with --numbers" } else { "" };
                Err(format!("its {name} is a number: write a string, as in \"{number}\"{option}"))
            }
        },
        (None, Some(_)) if notation == Notation::Numbers => Err(format!("its {name} is base64, not a number")),
        (None, Some(_)) if notation == Notation::Hex => Err(format!("its {name} is base64, not hexadecimal digits")),
        (None, Some(text)) => from_base64(&text).ok_or_else(|| {
            format!(
                "its {name}_b64 is not base64: expected letters, digits, + and /, with = at the end, as in \"/wA=\""
            )
        }),
    }
}

/// Writes a record as a line.
///
/// # Errors
/// The error of the writer.
pub fn write(key: &[u8], value: &[u8], to: &mut impl Write) -> io::Result<()> {
    struct Object<'b>(JsonBytes<'b>, JsonBytes<'b>);

    impl Serialize for Object<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(Some(2))?;
            self.0.add_to(&mut map)?;
            self.1.add_to(&mut map)?;
            map.end()
        }
    }

    serde_json::to_writer(&mut *to, &Object(JsonBytes::key(key), JsonBytes::value(value)))?;
    to.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use guira_layout::EntryFormat;

    use super::*;

    const BYTES: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };
    const FIXED: EntryFormat = EntryFormat::Fixed { key_bytes: 8, value_bytes: 8 };

    fn encoder(format: EntryFormat, notation: Notation) -> RecordEncoder {
        RecordEncoder::new(format, notation).unwrap()
    }

    fn pair(line: &str) -> Pair {
        read(line.as_bytes(), &encoder(BYTES, Notation::Bytes))
    }

    #[test]
    fn text_and_base64_mix() {
        let expected = Ok((b"a".to_vec(), vec![255, 0]));
        assert_eq!(pair(r#"{"key":"a","value_b64":"/wA="}"#), expected);
        assert_eq!(pair(r#" { "value_b64" : "/wA=", "key_b64" : "YQ==" } "#), expected);
        assert_eq!(pair(r#"{"key":"","value":"\u0000ü"}"#), Ok((vec![], "\0ü".as_bytes().to_vec())));
    }

    #[test]
    fn mistakes_are_explained() {
        for (line, reason) in [
            (r#"{"key":"a"}"#, "neither \"value\" nor"),
            (r#"{"value":"a"}"#, "neither \"key\" nor"),
            (r#"{"key":"a","key_b64":"","value":""}"#, "both \"key\" and"),
            (r#"{"key":"a","vlaue":"b"}"#, "unknown field `vlaue`"),
            (r#"{"key":"a","value":"b""#, "EOF while parsing"),
            (r#"{"key":"a","value":7}"#, "its value is a number: write a string, as in \"7\""),
            (r#"{"key":"a","value_b64":"!"}"#, "not base64: expected letters"),
            (r#"{"key":"a","value":[1]}"#, "its value is not text: expected a string"),
            (r#"{"key":{},"value":"b"}"#, "its key is not text: expected a string"),
            (r#"{"key":true,"value":"b"}"#, "its key is not text: expected a string"),
            (r#"["a",null,"b",null]"#, "not a JSON object: expected {\"key\": \"TEXT\""),
            (r#"{"key":"a"}"#, "expected {\"key\": \"TEXT\""),
            (r#"{"key":"a","vlaue":"b"}"#, "expected one of `key`, `key_b64`, `value`, `value_b64`"),
            (r#"{"key":"a","value":null}"#, "neither \"value\" nor"),
            ("[]", "not a JSON object"),
        ] {
            let found = pair(line).unwrap_err();
            assert!(found.contains(reason), "{line}: {found}");
        }
    }

    #[test]
    fn names_in_an_error_are_escaped() {
        let found = pair("{\"\\u001b[2J\\n\":1}").unwrap_err();
        assert!(found.contains("unknown field `\\u{1b}[2J\\n`"), "{found}");
        let found = pair(&format!("{{\"{}\":1}}", "x".repeat(10_000))).unwrap_err();
        assert!(found.contains("x…") && found.len() < 500, "{found}");
    }

    #[test]
    fn numbers_are_accepted_with_the_option() {
        let line = br#"{"key":"a","value":7}"#;
        assert!(!pair(std::str::from_utf8(line).unwrap()).unwrap_err().contains("--numbers"), "the table has none");
        assert!(read(line, &encoder(FIXED, Notation::Bytes)).unwrap_err().ends_with("or load with --numbers"));
        let read = |line: &str| read(line.as_bytes(), &encoder(FIXED, Notation::Numbers));
        assert_eq!(read(r#"{"key":12,"value":"34"}"#), Ok((b"12".to_vec(), b"34".to_vec())));
        assert!(read(r#"{"key":12,"value_b64":"YQ=="}"#).unwrap_err().contains("base64"));
    }

    #[test]
    fn digits_are_strings() {
        let read = |line: &str| read(line.as_bytes(), &encoder(BYTES, Notation::Hex));
        assert_eq!(read(r#"{"key":"00ff","value":""}"#), Ok((b"00ff".to_vec(), vec![])));
        assert!(read(r#"{"key":12,"value":""}"#).unwrap_err().contains("write a string"));
        assert!(read(r#"{"key":"","value_b64":"YQ=="}"#).unwrap_err().contains("base64, not hexadecimal"));
    }

    #[test]
    fn text_is_written_as_text() {
        let mut line = Vec::new();
        write(b"a\n", b"\xff", &mut line).unwrap();
        assert_eq!(String::from_utf8(line).unwrap(), "{\"key\":\"a\\n\",\"value_b64\":\"/w==\"}\n");
    }
}
