//! Input files of records: their formats on the command line, how they are opened, and how reading is watched.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, StdinLock};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use clap::ValueEnum;
use guira_fabric::StandardFile;
use guira_input::{InputError, RecordEncoder, Records};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Bytes buffered between a file and the reader of lines.
const BUFFER_BYTES: usize = 256 << 10;

/// The format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    /// One line per record: key, TAB, value, with \t \n \r \\ \xHH as escapes.
    Tsv,
    /// One JSON object per record: {"key" or "key_b64", "value" or "value_b64"}.
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

/// The records of any kind of input.
pub type AnyRecords = Records<Box<dyn BufRead>>;

/// Monitors the reading of an input that may pause, such as a pipe, a terminal or a socket.
pub trait InputWatcher {
    /// Called before each read. While there is nothing to read, it is called again after each returned time.
    ///
    /// # Errors
    /// Reading must stop: the reader gets this error.
    fn check(&mut self) -> io::Result<Duration>;
}

/// Opens a file, and returns its records and its size, if it has one.
///
/// If `format` is `None`, it is detected from the first bytes.
pub fn open(
    path: &Path,
    format: Option<InputFormat>,
    encoder: RecordEncoder,
) -> Result<(AnyRecords, Option<u64>), InputError> {
    let opened = Opened::new(path, File::options().read(true))?;
    let reader: Box<dyn BufRead> = Box::new(BufReader::with_capacity(BUFFER_BYTES, opened.file));
    Ok((Records::new(reader, &opened.name, format.map(Into::into), encoder)?, opened.size_bytes))
}

/// Same as [`open`], with `watcher` called before each read and in pauses; `-` is standard input.
pub fn open_watched(
    path: &Path,
    format: Option<InputFormat>,
    encoder: RecordEncoder,
    watcher: Rc<RefCell<dyn InputWatcher>>,
) -> Result<(AnyRecords, Option<u64>), InputError> {
    let opened = if path == Path::new("-") {
        Opened::stdin()?
    } else {
        // A named pipe without a writer opens at once: `watcher` is called while there is none.
        Opened::new(path, File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32))?
    };
    let watched = Watched { file: opened.file, waits: opened.waits, watcher };
    let reader: Box<dyn BufRead> = Box::new(BufReader::with_capacity(BUFFER_BYTES, watched));
    Ok((Records::new(reader, &opened.name, format.map(Into::into), encoder)?, opened.size_bytes))
}

/// Returns standard input.
///
/// # Errors
/// It was closed when the program started.
pub fn stdin() -> io::Result<StdinLock<'static>> {
    open_at_start(StandardFile::Input)?;
    Ok(io::stdin().lock())
}

/// Refuses a standard file that was closed when the program started.
pub fn open_at_start(file: StandardFile) -> io::Result<()> {
    if file.was_closed() { Err(io::Error::other("it is closed")) } else { Ok(()) }
}

/// An open input, with its properties.
struct Opened {
    file: File,
    /// The name of the input in errors.
    name: String,
    size_bytes: Option<u64>,
    waits: Waits,
}

/// Whether reading an input may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Reading never blocks, as in a regular file.
    Never,
    /// Reading waits for the writer.
    ForWriter,
}

impl Opened {
    fn new(path: &Path, options: &OpenOptions) -> Result<Opened, InputError> {
        let name = path.display().to_string();
        match options.open(path) {
            Ok(file) => Opened::of(file, name),
            Err(source) => Err(InputError::Read { name, source }),
        }
    }

    fn stdin() -> Result<Opened, InputError> {
        let name = "standard input".to_owned();
        match stdin().and_then(|stdin| stdin.as_fd().try_clone_to_owned()) {
            // No size, because a file may be read from the middle.
            Ok(file) => Ok(Opened { size_bytes: None, ..Opened::of(file.into(), name)? }),
            Err(source) => Err(InputError::Read { name, source }),
        }
    }

    fn of(file: File, name: String) -> Result<Opened, InputError> {
        let metadata = match file.metadata() {
            Ok(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            metadata => metadata,
        };
        match metadata {
            Ok(metadata) if metadata.is_file() => {
                Ok(Opened { file, name, size_bytes: Some(metadata.len()), waits: Waits::Never })
            }
            Ok(_) => Ok(Opened { file, name, size_bytes: None, waits: Waits::ForWriter }),
            Err(source) => Err(InputError::Read { name, source }),
        }
    }
}

/// A file whose reading is watched.
struct Watched {
    file: File,
    waits: Waits,
    watcher: Rc<RefCell<dyn InputWatcher>>,
}

impl Read for Watched {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // Until there is something to read, or `watcher` stops it.
        loop {
            let timeout = self.watcher.borrow_mut().check()?;
            if self.waits == Waits::ForWriter && !is_readable(&self.file, timeout)? {
                continue;
            }
            match self.file.read(into) {
                // Another process read it first, or a non-blocking terminal has no whole line.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// Waits up to `timeout` until `file` can be read without blocking, or has ended.
fn is_readable(file: &File, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use guira::EntryFormat;
    use guira_input::Notation;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let encoder = RecordEncoder::new(EntryFormat::Bytes { inline_bytes: 64 }, Notation::Bytes).unwrap();
        let error = open(Path::new("/no/such/file"), None, encoder).err().unwrap();
        assert!(error.to_string().starts_with("cannot read /no/such/file: "), "{error}");
        assert!(open(Path::new("/tmp"), None, encoder).is_err());
    }

    #[test]
    fn names_are_those_of_the_library() {
        for format in InputFormat::value_variants() {
            let name = format.to_possible_value().expect("no format is hidden");
            assert_eq!(name.get_name(), guira_input::InputFormat::from(*format).to_string());
        }
    }

    /// Stops the reading after `left` checks.
    struct Checks {
        left: u32,
    }

    impl InputWatcher for Checks {
        fn check(&mut self) -> io::Result<Duration> {
            self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("enough"))?;
            Ok(Duration::from_millis(1))
        }
    }

    #[test]
    fn reading_an_idle_pipe_can_be_stopped() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let watcher = Rc::new(RefCell::new(Checks { left: 3 }));
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        let opened = Opened::of(file, "a pipe".to_owned()).unwrap();
        assert_eq!((opened.waits, opened.size_bytes), (Waits::ForWriter, None));
        let mut watched = Watched { file: opened.file, waits: opened.waits, watcher: watcher.clone() };
        writer.write_all(b"some").unwrap();
        let mut into = [0; 8];
        assert_eq!((watched.read(&mut into).unwrap(), watcher.borrow().left), (4, 2));
        assert_eq!(watched.read(&mut into).unwrap_err().to_string(), "enough");
        watcher.borrow_mut().left = 1;
        drop(writer);
        assert_eq!(watched.read(&mut into).unwrap(), 0, "the end needs no second check");
    }

    #[test]
    fn a_file_is_read_without_waiting() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"a\t1\nb\t2\n").unwrap();
        let encoder = RecordEncoder::new(EntryFormat::Bytes { inline_bytes: 64 }, Notation::Bytes).unwrap();
        // One check before the content, and one before the end.
        let watcher = Rc::new(RefCell::new(Checks { left: 2 }));
        let (records, size_bytes) = open_watched(file.path(), None, encoder, watcher.clone()).unwrap();
        assert_eq!((records.map(Result::unwrap).count(), size_bytes, watcher.borrow().left), (2, Some(8), 0));
    }
}
