//! Sources of real data: a file given by the user, the Debian package index, or a directory of files.
//!
//! Invariant: a source can be read again, and yields the same records unless its files change; a caller that reads it
//! twice compares the digests.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use guira::EntryFormat;
use guira::admin::shell_word;
use guira::raw::layout::record_space;
use guira_input::{InputError, Notation, Record, RecordEncoder, Records};

use crate::advice;
use crate::failure::{Failure, Loaded};
use crate::input::{self, InputFormat};

/// Entry format of the table that is loaded from a source.
pub const FORMAT: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };
/// Directories that exist on most systems.
const TREES: [&str; 3] = ["/usr/share/doc", "/usr/include", "/etc"];
/// Maximum number of files taken from a directory, so that a quickstart takes only seconds.
const FILES_MAX: u64 = 50_000;
/// Maximum size of a file; larger files are skipped.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of all files together.
const TREE_BYTES_MAX: u64 = 512 << 20;

/// The records of a source.
pub type SourceRecords = Box<dyn Iterator<Item = Result<Record, Failure>>>;

/// A source of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file in a format of `guira load`.
    File(PathBuf, Option<InputFormat>),
    /// The output of `apt-cache dumpavail`.
    DebianIndex,
    /// The files of a directory: paths as keys, contents as values.
    Tree(PathBuf),
}

impl Source {
    /// Returns the name of the source for messages.
    pub fn name(&self) -> String {
        match self {
            Source::File(path, _) => path.display().to_string(),
            Source::DebianIndex => "the Debian package index (apt-cache dumpavail)".to_owned(),
            Source::Tree(path) => format!("the files in {}", path.display()),
        }
    }

    /// Returns the default source: the first one that has records.
    pub fn without_file() -> Result<Source, Failure> {
        let trees = TREES.iter().map(|path| Source::Tree(PathBuf::from(path)));
        let mut sources = std::iter::once(Source::DebianIndex).chain(trees);
        let found =
            sources.find(|source| source.records().is_ok_and(|mut records| matches!(records.next(), Some(Ok(_)))));
        found.ok_or_else(|| {
            let trees = TREES.join(", ");
            Failure::Misuse(format!("found no Debian package index, and no files in {trees}: name a FILE to load"))
        })
    }

    /// Reads the records from the first one.
    pub fn records(&self) -> Result<SourceRecords, Failure> {
        let failed = |source| Failure::Input { source, loaded: Loaded(0) };
        match self {
            Source::File(path, format) => {
                let convert = |file: &str| format!("> {}", shell_word(&format!("{file}.utf8")));
                let refused = |source| advice::of_input(failed(source), path, convert);
                let encoder = RecordEncoder::new(FORMAT, Notation::Bytes).map_err(Failure::Misuse)?;
                let (records, _) = input::open(path, *format, encoder).map_err(refused)?;
                Ok(Box::new(records.map(move |record| record.map_err(failed))))
            }
            Source::DebianIndex => Ok(Box::new(DebianIndex::start()?)),
            Source::Tree(root) => Ok(Box::new(Tree { pending: vec![root.clone()], files: 0, bytes: 0 })),
        }
    }
}

/// The size and the digest of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Number of records.
    pub records: u64,
    /// Bytes of all keys and values.
    pub bytes: u64,
    /// Bytes of extent space for the records that do not fit in a row.
    pub extent_bytes: u64,
    /// The first key.
    pub first_key: Vec<u8>,
    /// A digest of all records.
    pub digest: u64,
}

/// Builds a [`Survey`].
#[derive(Default)]
pub struct SurveyBuilder {
    survey: Survey,
    hasher: DefaultHasher,
}

impl SurveyBuilder {
    /// Adds a record.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let survey = &mut self.survey;
        if survey.records == 0 {
            survey.first_key = key.to_vec();
        }
        survey.records += 1;
        survey.bytes += (key.len() + value.len()) as u64;
        survey.extent_bytes += record_space(FORMAT, key.len(), value.len());
        for bytes in [key, value] {
            self.hasher.write_usize(bytes.len());
            self.hasher.write(bytes);
        }
    }

    /// Returns the survey of the records added.
    pub fn finish(self) -> Survey {
        Survey { digest: self.hasher.finish(), ..self.survey }
    }
}

/// A running `apt-cache dumpavail`.
struct DebianIndex {
    child: Child,
    records: Records<BufReader<ChildStdout>>,
}

impl DebianIndex {
    fn start() -> Result<DebianIndex, Failure> {
        const ATTEMPT: &str = "run apt-cache dumpavail";
        let mut command = Command::new("apt-cache");
        command.arg("dumpavail").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(Failure::host(ATTEMPT))?;
        let Some(stdout) = child.stdout.take() else {
            return Err(Failure::host(ATTEMPT)(std::io::Error::other("it has no output")));
        };
        let encoder = RecordEncoder::new(FORMAT, Notation::Bytes).map_err(Failure::Misuse)?;
        let reader = BufReader::with_capacity(256 << 10, stdout);
        let records = Records::new(reader, "apt-cache dumpavail", Some(guira_input::InputFormat::Debian), encoder);
        let records = records.map_err(|source| Failure::Input { source, loaded: Loaded(0) })?;
        Ok(DebianIndex { child, records })
    }
}

impl Iterator for DebianIndex {
    type Item = Result<Record, Failure>;

    /// Returns the next package. Unreadable records are skipped: the user cannot repair the index.
    fn next(&mut self) -> Option<Result<Record, Failure>> {
        // Bounded by the input: each iteration consumes a record.
        loop {
            match self.records.next()? {
                Ok(record) => return Some(Ok(record)),
                Err(InputError::Bad(_)) => {}
                Err(source) => return Some(Err(Failure::Input { source, loaded: Loaded(0) })),
            }
        }
    }
}

impl Drop for DebianIndex {
    fn drop(&mut self) {
        // The rest of the output is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The regular files below a directory, in the order of their names. Links are not followed; unreadable files are
/// skipped.
struct Tree {
    /// The paths to visit, the next one last.
    pending: Vec<PathBuf>,
    files: u64,
    bytes: u64,
}

impl Iterator for Tree {
    type Item = Result<Record, Failure>;

    fn next(&mut self) -> Option<Result<Record, Failure>> {
        // Bounded by the number of files.
        while let Some(path) = self.pending.pop() {
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                self.enter(&path);
            } else if metadata.is_file() && metadata.len() <= FILE_BYTES_MAX {
                if self.files == FILES_MAX || self.bytes > TREE_BYTES_MAX {
                    return None;
                }
                let Some(value) = content(&path) else { continue };
                self.files += 1;
                self.bytes += value.len() as u64;
                return Some(Ok(Record { key: path.as_os_str().as_bytes().to_vec(), value, line: self.files }));
            }
        }
        None
    }
}

impl Tree {
    fn enter(&mut self, directory: &Path) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        paths.sort_unstable_by(|one, two| two.cmp(one));
        self.pending.append(&mut paths);
    }
}

/// Reads a file, unless it is unreadable or has grown beyond the maximum in the meantime.
fn content(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= FILE_BYTES_MAX).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(records: &[(&[u8], &[u8])]) -> Survey {
        let mut surveyor = SurveyBuilder::default();
        records.iter().for_each(|(key, value)| surveyor.add(key, value));
        surveyor.finish()
    }

    #[test]
    fn different_records_have_different_digests() {
        let one = survey(&[(b"a", b"bc"), (b"d", b"")]);
        assert_eq!((one.records, one.bytes, one.first_key.as_slice(), one.extent_bytes), (2, 4, &b"a"[..], 0));
        assert_eq!(one, survey(&[(b"a", b"bc"), (b"d", b"")]));
        assert_ne!(one.digest, survey(&[(b"ab", b"c"), (b"d", b"")]).digest);
        assert_ne!(one.digest, survey(&[(b"d", b""), (b"a", b"bc")]).digest);
    }

    #[test]
    fn a_tree_yields_its_files_in_order() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| fs::write(root.path().join(name), content).unwrap();
        fs::create_dir(root.path().join("b")).unwrap();
        write("c", b"3");
        write("b/x", b"2");
        write("a", b"1");
        write("large", &vec![0; FILE_BYTES_MAX as usize + 1]);
        std::os::unix::fs::symlink(root.path(), root.path().join("loop")).unwrap();
        let source = Source::Tree(root.path().to_owned());
        let read = || source.records().unwrap().map(Result::unwrap).collect::<Vec<_>>();
        let names: Vec<_> = read().into_iter().map(|record| record.value).collect();
        assert_eq!(names, [b"1", b"2", b"3"]);
        assert_eq!(read(), read());
        assert!(read()[1].key.ends_with(b"b/x"));
    }
}
