//! `guira cas`: compare-and-swap of one key.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;
use guira::{EntryFormat, Swap};

use super::single::{KeyArguments, Outcome, conclude};
use super::{Verdict, WaitOptions};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::Notation;

/// Replace a value if it is the expected one.
///
/// If several clients swap the same value at once, exactly one succeeds. If the value is not the expected one, or the
/// key does not exist, nothing is changed and the exit code is 1.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub key: KeyArguments,
    /// The expected value, as text; with --expected-file, this is the new value. Write -- before the key if a value
    /// starts with a dash.
    #[arg(allow_negative_numbers = true)]
    pub expected: Option<OsString>,
    /// The new value, as text.
    #[arg(allow_negative_numbers = true)]
    pub new: Option<OsString>,
    /// Expect the bytes of this file instead of EXPECTED; - is standard input.
    #[arg(long, value_name = "FILE")]
    pub expected_file: Option<PathBuf>,
    /// Store the bytes of this file instead of NEW; - is standard input.
    #[arg(long, value_name = "FILE")]
    pub value_file: Option<PathBuf>,
}

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source<'a> {
    Text(&'a OsStr),
    File(&'a Path),
}

impl Source<'_> {
    fn bytes(self, notation: Notation, format: EntryFormat) -> Result<Vec<u8>, Failure> {
        match self {
            Source::Text(text) => notation.value(text, format),
            Source::File(path) => notation.value_of_file(path, format),
        }
    }
}

impl Arguments {
    /// Returns the sources of the expected value and of the new one.
    fn sources(&self) -> Result<(Source<'_>, Source<'_>), Failure> {
        let mut texts = [&self.expected, &self.new].into_iter().flatten();
        let expected = match &self.expected_file {
            Some(path) => Some(Source::File(path)),
            None => texts.next().map(|text| Source::Text(text)),
        };
        let new = match &self.value_file {
            Some(path) => Some(Source::File(path)),
            None => texts.next().map(|text| Source::Text(text)),
        };
        let is_stdin = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
        match (expected, new, texts.next()) {
            _ if is_stdin(&self.expected_file) && is_stdin(&self.value_file) => Err(Failure::Misuse(
                "standard input can supply only one of the two values; nothing was changed".to_owned(),
            )),
            (Some(expected), Some(new), None) => Ok((expected, new)),
            _ => Err(Failure::Misuse(
                "give the expected value and the new one: EXPECTED or --expected-file FILE, and NEW or --value-file \
                 FILE; nothing was changed"
                    .to_owned(),
            )),
        }
    }
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let (expected, new) = arguments.sources()?;
    let subject = arguments.key.open(WaitOptions::open)?;
    let format = subject.store.table().config().format;
    let (expected, new) = (expected.bytes(subject.notation, format)?, new.bytes(subject.notation, format)?);
    let outcome = match subject.store.client()?.compare_and_swap(&subject.key, &expected, &new)? {
        Swap::Done => Outcome::Swapped,
        Swap::Different => Outcome::Different,
        Swap::Missing => Outcome::Missing,
    };
    conclude(outcome, &subject, output)
}
