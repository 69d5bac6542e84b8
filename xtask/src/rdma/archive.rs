//! The file system of the virtual machine, as an archive that the kernel unpacks: cpio in the format `newc`, as
//! Documentation/driver-api/early-userspace/buffer-format.rst of Linux describes it.
//!
//! Invariants: a directory stands before what it contains; each path is there once.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive that grows in memory.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    paths: BTreeSet<PathBuf>,
}

impl Archive {
    /// Adds a file with its content, and the directories above it. A path that is there already is left as it is.
    pub fn add(&mut self, path: &Path, content: &[u8]) {
        let path = path.strip_prefix("/").unwrap_or(path);
        if self.paths.contains(path) {
            return;
        }
        let above: Vec<&Path> = path.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
        for directory in above.into_iter().rev() {
            if self.paths.insert(directory.to_owned()) {
                self.entry(directory, DIRECTORY, &[]);
            }
        }
        self.paths.insert(path.to_owned());
        self.entry(path, PROGRAM, content);
    }

    /// Adds a copy of the file `from`, following links.
    pub fn copy(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.add(to, &fs::read(from)?);
        Ok(())
    }

    /// Adds an empty directory.
    pub fn directory(&mut self, path: &str) {
        if self.paths.insert(PathBuf::from(path)) {
            self.entry(Path::new(path), DIRECTORY, &[]);
        }
    }

    /// Ends the archive and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }

    /// Appends a header, the name and the content, each padded to 4 bytes.
    fn entry(&mut self, path: &Path, mode: u32, content: &[u8]) {
        let name = path.to_string_lossy();
        let number = self.paths.len();
        // Magic, inode, mode, user, group, links, time, size, four numbers of devices, length of the name, checksum.
        let fields = [number, mode as usize, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name.len() + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names, modes and contents in an archive, read as the format says.
    fn entries(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut at, mut found) = (0, Vec::new());
        while at < archive.len() {
            let field = |index: usize| {
                let start = at + 6 + 8 * index;
                let text = std::str::from_utf8(&archive[start..start + 8]).expect("a number is text");
                usize::from_str_radix(text, 16).expect("a number is hexadecimal")
            };
            assert_eq!(&archive[at..at + 6], b"070701");
            let (size, name_len) = (field(6), field(11));
            let name = String::from_utf8_lossy(&archive[at + 110..at + 109 + name_len]).into_owned();
            let content = (at + 110 + name_len).next_multiple_of(4);
            found.push((name, field(1) as u32, archive[content..content + size].to_vec()));
            at = (content + size).next_multiple_of(4);
        }
        found
    }

    #[test]
    fn directories_stand_before_their_files_and_everything_is_there_once() {
        let mut archive = Archive::default();
        archive.directory("dev");
        archive.add(Path::new("/a/b/file"), b"12345");
        archive.add(Path::new("/a/b/file"), b"other");
        archive.add(Path::new("a/second"), b"");
        let expected: [(&str, u32, &[u8]); 6] = [
            ("dev", DIRECTORY, b""),
            ("a", DIRECTORY, b""),
            ("a/b", DIRECTORY, b""),
            ("a/b/file", PROGRAM, b"12345"),
            ("a/second", PROGRAM, b""),
            ("TRAILER!!!", 0, b""),
        ];
        let expected = expected.map(|(name, mode, content)| (name.to_owned(), mode, content.to_vec()));
        assert_eq!(entries(&archive.finish()), expected);
    }
}
