//! `guira get`, `put`, `insert`, `update` and `del`: one operation on one key.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use guira::Client;
use guira::{EntryFormat, Put, Store, Url};
use guira_input::JsonBytes;
use serde::Serialize;

use super::owner::Owner;
use super::{Verdict, WaitOptions, tls};
use crate::failure::Failure;
use crate::output::{Format, Output};
use crate::text::{Notation, NotationOptions};

/// A key of a table.
#[derive(Debug, Args)]
pub struct KeyArguments {
    /// The table.
    pub url: Url,
    /// The key, as text; any bytes are allowed. Write -- before a key that starts with a dash.
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// Notation of key and value.
    #[command(flatten)]
    pub notation: NotationOptions,
    #[command(flatten)]
    pub wait: WaitOptions,
    #[command(flatten)]
    pub owner: Owner,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

/// A key of a table, and a value for it.
#[derive(Debug, Args)]
pub struct ValueArguments {
    #[command(flatten)]
    pub key: KeyArguments,
    /// The value, as text. Write -- before the key if the value starts with a dash.
    #[arg(allow_negative_numbers = true, required_unless_present = "value_file", conflicts_with = "value_file")]
    pub value: Option<OsString>,
    /// Store the bytes of this file instead of VALUE; - is standard input.
    #[arg(long, value_name = "FILE")]
    pub value_file: Option<PathBuf>,
}

impl ValueArguments {
    /// Returns the bytes to store.
    fn bytes(&self, notation: Notation, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        match (&self.value, &self.value_file) {
            (Some(text), None) => notation.value(text, format),
            (None, Some(path)) => notation.value_of_file(path, format),
            _ => Err(Failure::Misuse("give either VALUE or --value-file FILE; nothing was changed".to_owned())),
        }
    }
}

/// An open table and the key to operate on.
pub struct Subject {
    pub store: Store,
    pub notation: Notation,
    pub key: Vec<u8>,
}

impl KeyArguments {
    /// Opens the table and parses the key for its format.
    pub fn open(&self, open: impl FnOnce(WaitOptions, &Url) -> Result<Store, Failure>) -> Result<Subject, Failure> {
        let store = open(self.wait, &self.url)?;
        let format = store.table().config().format;
        let notation = self.notation.notation(format)?;
        let key = notation.key(&self.key, format)?;
        Ok(Subject { store, notation, key })
    }
}

/// Carries out `get`.
pub fn get(arguments: &KeyArguments, output: &Output) -> Result<Verdict, Failure> {
    let Subject { store, notation, key } = arguments.open(WaitOptions::open_read_only)?;
    let value = store.reader().get(&key)?;
    match output.format() {
        Format::Json => output.answer(&found(&key, value.as_deref(), notation)?, String::new)?,
        Format::Human => match (&value, notation) {
            (Some(value), Notation::Text) => output.bytes(value)?,
            (Some(value), _) => output.line(&String::from_utf8_lossy(&notation.written(value)?))?,
            (None, _) => output.note(&format!("guira: {} has no key {}", arguments.url, notation.shown(&key))),
        },
    }
    Ok(if value.is_some() { Verdict::Fine } else { Verdict::Negative })
}

/// The answer of `get`.
#[derive(Serialize)]
struct Found<'b> {
    found: bool,
    #[serde(flatten)]
    key: Field<'b>,
    #[serde(flatten)]
    value: Option<Field<'b>>,
}

/// A key or value in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Field<'b> {
    Bytes(JsonBytes<'b>),
    Key { key: String },
    Value { value: String },
}

fn found<'b>(key: &'b [u8], value: Option<&'b [u8]>, notation: Notation) -> Result<Found<'b>, Failure> {
    let found = value.is_some();
    if notation == Notation::Text {
        let (key, value) = (JsonBytes::key(key), value.map(JsonBytes::value));
        return Ok(Found { found, key: Field::Bytes(key), value: value.map(Field::Bytes) });
    }
    let written = |bytes: &[u8]| Ok::<_, Failure>(String::from_utf8_lossy(&notation.written(bytes)?).into_owned());
    let value = value.map(written).transpose()?.map(|value| Field::Value { value });
    Ok(Found { found, key: Field::Key { key: written(key)? }, value })
}

/// Carries out `put`.
pub fn put(arguments: &ValueArguments, output: &Output) -> Result<Verdict, Failure> {
    change(arguments, output, |client, key, value| {
        Ok(match client.put(key, value)? {
            Put::Inserted => Outcome::Inserted,
            Put::Replaced => Outcome::Replaced,
        })
    })
}

/// Carries out `insert`.
pub fn insert(arguments: &ValueArguments, output: &Output) -> Result<Verdict, Failure> {
    change(arguments, output, |client, key, value| {
        Ok(if client.try_insert(key, value)? { Outcome::Inserted } else { Outcome::Exists })
    })
}

/// Carries out `update`.
pub fn update(arguments: &ValueArguments, output: &Output) -> Result<Verdict, Failure> {
    change(arguments, output, |client, key, value| {
        Ok(if client.update(key, value)? { Outcome::Replaced } else { Outcome::Missing })
    })
}

/// Carries out `del`.
pub fn del(arguments: &KeyArguments, output: &Output) -> Result<Verdict, Failure> {
    let subject = arguments.open(WaitOptions::open)?;
    let outcome = if subject.store.client()?.remove(&subject.key)? { Outcome::Removed } else { Outcome::Missing };
    conclude(outcome, &subject, output)
}

/// The outcome of an operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Inserted,
    Replaced,
    Swapped,
    Removed,
    Different,
    Exists,
    Missing,
}

fn change(
    arguments: &ValueArguments,
    output: &Output,
    change: impl FnOnce(&mut Client, &[u8], &[u8]) -> Result<Outcome, guira::Error>,
) -> Result<Verdict, Failure> {
    let subject = arguments.key.open(WaitOptions::open)?;
    let value = arguments.bytes(subject.notation, subject.store.table().config().format)?;
    let outcome = change(&mut subject.store.client()?, &subject.key, &value)?;
    conclude(outcome, &subject, output)
}

/// Reports the outcome.
pub fn conclude(outcome: Outcome, subject: &Subject, output: &Output) -> Result<Verdict, Failure> {
    #[derive(Serialize)]
    struct Answer {
        outcome: Outcome,
    }

    let (url, shown) = (subject.store.url(), subject.notation.shown(&subject.key));
    let (verdict, done) = match outcome {
        Outcome::Inserted => (Verdict::Fine, format!("inserted {shown}")),
        Outcome::Replaced => (Verdict::Fine, format!("replaced the value of {shown}")),
        Outcome::Swapped => (Verdict::Fine, format!("swapped the value of {shown}")),
        Outcome::Different => {
            (Verdict::Negative, format!("the value of {shown} in {url} is not the expected one; nothing was changed"))
        }
        Outcome::Removed => (Verdict::Fine, format!("removed {shown}")),
        Outcome::Exists => (Verdict::Negative, format!("{url} already has the key {shown}; nothing was changed")),
        Outcome::Missing => (Verdict::Negative, format!("{url} has no key {shown}; nothing was changed")),
    };
    let said = match (output.format(), verdict) {
        (Format::Json, _) => output.answer(&Answer { outcome }, String::new),
        (Format::Human, Verdict::Fine) => output.line(&done),
        (Format::Human, Verdict::Negative) => {
            output.note(&format!("guira: {done}"));
            Ok(())
        }
    };
    match verdict {
        Verdict::Fine => said.map_err(Failure::after(done))?,
        Verdict::Negative => said?,
    }
    Ok(verdict)
}
