//! `guira get`, `put`, `insert`, `update` and `del`: one operation on one key.

use clap::Args;
use guira::blocking::Client;
use guira::{OpenOptions, Put, Store, Url};
use guira_input::{JsonBytes, printable};
use serde::Serialize;

use super::Verdict;
use crate::failure::Failure;
use crate::output::{Format, Output};
use crate::text::{Notation, to_hex};

/// Characters of a key that answers show.
const KEY_CHARS: usize = 80;

/// Print the value of a key: its bytes as they are, and a line end only on a terminal.
#[derive(Debug, Args)]
pub struct GetArguments {
    /// The table.
    pub url: Url,
    /// The key, as text. Write -- before a key that starts with a dash.
    #[arg(allow_negative_numbers = true)]
    pub key: String,
    /// Key and value are hexadecimal digits, two a byte.
    #[arg(long)]
    pub hex: bool,
}

/// Store a value.
#[derive(Debug, Args)]
pub struct ChangeArguments {
    /// The table.
    pub url: Url,
    /// The key, as text. Write -- before a key that starts with a dash.
    #[arg(allow_negative_numbers = true)]
    pub key: String,
    /// The value, as text; @FILE stores a file's bytes, @- those of standard input, and @@ starts a text with an @.
    #[arg(allow_negative_numbers = true)]
    pub value: String,
    /// Key and value are hexadecimal digits, two a byte. Files are stored as they are.
    #[arg(long)]
    pub hex: bool,
}

/// Remove a key.
#[derive(Debug, Args)]
pub struct DelArguments {
    /// The table.
    pub url: Url,
    /// The key, as text. Write -- before a key that starts with a dash.
    #[arg(allow_negative_numbers = true)]
    pub key: String,
    /// The key is hexadecimal digits, two a byte.
    #[arg(long)]
    pub hex: bool,
}

/// Carries out `get`.
pub fn get(arguments: &GetArguments, output: &Output) -> Result<Verdict, Failure> {
    let store = Store::open_with(&arguments.url, &OpenOptions::default().read_only())?;
    let notation = Notation::of_flag(arguments.hex);
    let key = notation.key(&arguments.key, store.table().config().format)?;
    let value = store.reader().get(&key)?;
    match output.format() {
        Format::Json => output.answer(&found(&key, value.as_deref(), notation), String::new)?,
        Format::Human => match (&value, notation) {
            (Some(value), Notation::Text) => output.bytes(value)?,
            (Some(value), Notation::Hex) => output.line(&to_hex(value))?,
            (None, _) => output.remark(&format!("guira: {} has no key {}", arguments.url, printable(&key, KEY_CHARS))),
        },
    }
    Ok(if value.is_some() { Verdict::Fine } else { Verdict::Negative })
}

/// What `get` answers.
#[derive(Serialize)]
struct Found<'b> {
    found: bool,
    #[serde(flatten)]
    key: Field<'b>,
    #[serde(flatten)]
    value: Option<Field<'b>>,
}

/// Key or value in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Field<'b> {
    Bytes(JsonBytes<'b>),
    HexKey { key: String },
    HexValue { value: String },
}

fn found<'b>(key: &'b [u8], value: Option<&'b [u8]>, notation: Notation) -> Found<'b> {
    let (key_field, value_field) = match notation {
        Notation::Text => (Field::Bytes(JsonBytes::key(key)), value.map(|value| Field::Bytes(JsonBytes::value(value)))),
        Notation::Hex => {
            (Field::HexKey { key: to_hex(key) }, value.map(|value| Field::HexValue { value: to_hex(value) }))
        }
    };
    Found { found: value.is_some(), key: key_field, value: value_field }
}

/// Carries out `put`.
pub fn put(arguments: &ChangeArguments, output: &Output) -> Result<Verdict, Failure> {
    change(arguments, output, |client, key, value| {
        Ok(match client.put(key, value)? {
            Put::Inserted => Outcome::Inserted,
            Put::Replaced => Outcome::Replaced,
        })
    })
}

/// Carries out `insert`.
pub fn insert(arguments: &ChangeArguments, output: &Output) -> Result<Verdict, Failure> {
    change(arguments, output, |client, key, value| {
        Ok(if client.insert(key, value)? { Outcome::Inserted } else { Outcome::Exists })
    })
}

/// Carries out `update`.
pub fn update(arguments: &ChangeArguments, output: &Output) -> Result<Verdict, Failure> {
    change(arguments, output, |client, key, value| {
        Ok(if client.update(key, value)? { Outcome::Replaced } else { Outcome::Missing })
    })
}

/// Carries out `del`.
pub fn del(arguments: &DelArguments, output: &Output) -> Result<Verdict, Failure> {
    let store = Store::open(&arguments.url)?;
    let key = Notation::of_flag(arguments.hex).key(&arguments.key, store.table().config().format)?;
    let outcome = if store.client()?.remove(&key)? { Outcome::Removed } else { Outcome::Missing };
    conclude(outcome, &arguments.url, &key, output)
}

/// What became of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Inserted,
    Replaced,
    Removed,
    Exists,
    Missing,
}

fn change(
    arguments: &ChangeArguments,
    output: &Output,
    change: impl FnOnce(&mut Client, &[u8], &[u8]) -> Result<Outcome, guira::Error>,
) -> Result<Verdict, Failure> {
    let store = Store::open(&arguments.url)?;
    let format = store.table().config().format;
    let notation = Notation::of_flag(arguments.hex);
    let key = notation.key(&arguments.key, format)?;
    let value = notation.value(&arguments.value, format)?;
    let outcome = change(&mut store.client()?, &key, &value)?;
    conclude(outcome, &arguments.url, &key, output)
}

fn conclude(outcome: Outcome, url: &Url, key: &[u8], output: &Output) -> Result<Verdict, Failure> {
    #[derive(Serialize)]
    struct Answer {
        outcome: Outcome,
    }

    let shown = printable(key, KEY_CHARS);
    let verdict = match outcome {
        Outcome::Inserted | Outcome::Replaced | Outcome::Removed => Verdict::Fine,
        Outcome::Exists | Outcome::Missing => Verdict::Negative,
    };
    match output.format() {
        Format::Json => output.answer(&Answer { outcome }, String::new)?,
        Format::Human => match outcome {
            Outcome::Inserted => output.line(&format!("inserted {shown}"))?,
            Outcome::Replaced => output.line(&format!("replaced the value of {shown}"))?,
            Outcome::Removed => output.line(&format!("removed {shown}"))?,
            Outcome::Exists => output.remark(&format!("guira: {url} has a key {shown} already; nothing was changed")),
            Outcome::Missing => output.remark(&format!("guira: {url} has no key {shown}; nothing was changed")),
        },
    }
    Ok(verdict)
}
