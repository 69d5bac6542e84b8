//! Files of records: how a user names a format, and how a file is opened.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use clap::ValueEnum;
use guira_input::{Fit, InputError, Records};

/// Bytes buffered between a file and the reader of lines.
const BUFFER_BYTES: usize = 256 << 10;

/// How records are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    /// A line each: key, TAB, value, with \t \n \r \\ \xHH escaped.
    Tsv,
    /// A JSON object each: {"key" or "key_b64", "value" or "value_b64"}.
    Jsonl,
    /// Debian control records, as `apt-cache dumpavail` prints them: key is the package's name, value the whole record.
    Debian,
}

impl From<InputFormat> for guira_input::InputFormat {
    fn from(format: InputFormat) -> guira_input::InputFormat {
        match format {
            InputFormat::Tsv => guira_input::InputFormat::Tsv,
            InputFormat::Jsonl => guira_input::InputFormat::Jsonl,
            InputFormat::Debian => guira_input::InputFormat::Debian,
        }
    }
}

/// The records of an input chosen at run time.
pub type AnyRecords = Records<Box<dyn BufRead>>;

/// The records of a file, or of standard input if `path` is `-`; and the file's size, if it has one.
///
/// `format` is recognised from the first bytes if it is `None`.
pub fn open(path: &Path, format: Option<InputFormat>, fit: Fit) -> Result<(AnyRecords, Option<u64>), InputError> {
    let format = format.map(Into::into);
    if path == Path::new("-") {
        let stdin: Box<dyn BufRead> = Box::new(io::stdin().lock());
        return Ok((Records::new(stdin, "standard input", format, fit)?, None));
    }
    let name = path.display().to_string();
    let failed = |source| InputError::Read { name: name.clone(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let total = metadata.is_file().then_some(metadata.len());
    let reader: Box<dyn BufRead> = Box::new(BufReader::with_capacity(BUFFER_BYTES, file));
    Ok((Records::new(reader, &name, format, fit)?, total))
}

#[cfg(test)]
mod tests {
    use guira::EntryFormat;
    use guira_input::Notation;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let fit = Fit::new(EntryFormat::Bytes { inline_bytes: 64 }, Notation::Bytes).unwrap();
        let error = open(Path::new("/no/such/file"), None, fit).err().unwrap();
        assert!(error.to_string().starts_with("cannot read /no/such/file: "), "{error}");
        assert!(open(Path::new("/tmp"), None, fit).is_err());
    }

    #[test]
    fn names_are_those_of_the_library() {
        for format in InputFormat::value_variants() {
            let name = format.to_possible_value().expect("no format is hidden");
            assert_eq!(name.get_name(), guira_input::InputFormat::from(*format).to_string());
        }
    }
}
