//! The header, which is the first 4096 bytes of a region's file, and the sizes that it records.
//!
//! ```text
//! byte   0  magic "GUIRASHM"
//!        8  version, u32: 2, or 3 if the main space may have holes
//!                                 12  header bytes, u32 (4096)
//!       16  main bytes            24  device bytes
//!       32  file bytes            40  boot id at creation, 16 bytes (zero: unknown)
//!       56  creator's process id  64  creation time, ns since 1970
//!       72  FNV-1a 64 of bytes 0 to 71
//!       80  lock file's identity  88  lock file's inode (both zero: there is none)
//!       96  FNV-1a 64 of bytes 0 to 95
//!      104  zero, ignored
//! ```
//! All fields are little-endian and never change. Magic number, version and the first checksum have the same offsets
//! and meaning in every version, so that another version can be distinguished from a damaged header.

use std::num::NonZeroU64;

use crate::error::{ShmError, Task};

/// Bytes of the header, before the main space.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// Bytes of a page. The device space starts at the first page boundary after the main space.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Words of the header that are in use.
pub(crate) const HEADER_WORDS: usize = 13;
/// The version of files whose bytes are all reserved.
pub(crate) const VERSION: u32 = 2;
/// The version of files with holes, for which memory is reserved when it is needed.
const VERSION_WITH_HOLES: u32 = 3;

const MAGIC: [u8; 8] = *b"GUIRASHM";
/// Bytes covered by the first checksum, which follows them in every version.
const SUMMED_BYTES: usize = 72;
/// Bytes covered by the second checksum, which follows them.
const ALL_SUMMED_BYTES: usize = 96;
/// The maximum length of a file: the address space of one process on today's 64-bit machines.
const MAX_FILE_BYTES: u64 = 1 << 47;

const _: () = assert!(ALL_SUMMED_BYTES + 8 == HEADER_WORDS * 8);
const _: () = assert!(HEADER_BYTES.is_multiple_of(PAGE_BYTES) && HEADER_BYTES >= (HEADER_WORDS * 8) as u64);

/// Checked sizes of a region: nothing computed from them overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Bytes of the main space, a multiple of the word size.
    pub(crate) main_bytes: u64,
    /// Bytes of the device space, a multiple of the word size.
    pub(crate) device_bytes: u64,
    /// Bytes of the file, a multiple of the page size.
    pub(crate) file_bytes: u64,
}

impl Sizes {
    /// Computes the sizes of a region of `main_bytes` and `device_bytes`, each rounded up to whole words, in a file
    /// whose length is a multiple of `unit_bytes`. Returns `None` if they exceed what can be mapped.
    pub(crate) fn new(main_bytes: u64, device_bytes: u64, unit_bytes: u64) -> Option<Sizes> {
        let main_bytes = main_bytes.checked_next_multiple_of(8)?;
        let device_bytes = device_bytes.checked_next_multiple_of(8)?;
        let end = device_offset(main_bytes)?.checked_add(device_bytes)?;
        let file_bytes = end.checked_next_multiple_of(unit_bytes.max(PAGE_BYTES))?;
        (file_bytes <= MAX_FILE_BYTES).then_some(Sizes { main_bytes, device_bytes, file_bytes })
    }

    /// Returns the offset of the device space in the file.
    pub(crate) fn device_offset(&self) -> u64 {
        device_offset(self.main_bytes).expect("the sizes were checked when they were made")
    }

    /// Whether these sizes, as read from a header, are consistent with each other.
    fn are_consistent(&self) -> bool {
        Sizes::new(self.main_bytes, self.device_bytes, PAGE_BYTES).is_some_and(|least| {
            (least.main_bytes, least.device_bytes) == (self.main_bytes, self.device_bytes)
                && (least.file_bytes..=MAX_FILE_BYTES).contains(&self.file_bytes)
                && self.file_bytes.is_multiple_of(PAGE_BYTES)
        })
    }
}

fn device_offset(main_bytes: u64) -> Option<u64> {
    HEADER_BYTES.checked_add(main_bytes)?.checked_next_multiple_of(PAGE_BYTES)
}

/// Whether bytes of a region's main space may have no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holes {
    /// All bytes are reserved when the region is created.
    None,
    /// Some are reserved later: [`guira_fabric::Lane::poll_reserve`].
    Some,
}

/// The identification of a region's lock file in the region's header: [`crate::liveness::lock_file`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockName {
    /// A random number, drawn when the file was created.
    pub(crate) identity: NonZeroU64,
    /// The file's inode, on the region's file system.
    pub(crate) inode: NonZeroU64,
}

/// The content of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) sizes: Sizes,
    /// Whether the file may have holes in the main space.
    pub(crate) holes: Holes,
    pub(crate) boot_id: [u8; 16],
    pub(crate) creator_pid: u64,
    pub(crate) created_unix_ns: u64,
    /// The lock file, if the bytes locked for client slots are not in the region's own file.
    pub(crate) lock_name: Option<LockName>,
}

impl Header {
    pub(crate) fn encode(&self) -> [u64; HEADER_WORDS] {
        assert!(self.sizes.are_consistent(), "a header must have sizes that a reader accepts");
        let mut bytes = [0; HEADER_WORDS * 8];
        bytes[0..8].copy_from_slice(&MAGIC);
        let version = if self.holes == Holes::None { VERSION } else { VERSION_WITH_HOLES };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[12..16].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sizes.main_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sizes.device_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.sizes.file_bytes.to_le_bytes());
        bytes[40..56].copy_from_slice(&self.boot_id);
        bytes[56..64].copy_from_slice(&self.creator_pid.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.created_unix_ns.to_le_bytes());
        let sum = fnv1a(&bytes[..SUMMED_BYTES]);
        bytes[72..80].copy_from_slice(&sum.to_le_bytes());
        if let Some(LockName { identity, inode }) = self.lock_name {
            bytes[80..88].copy_from_slice(&identity.get().to_le_bytes());
            bytes[88..96].copy_from_slice(&inode.get().to_le_bytes());
        }
        let sum = fnv1a(&bytes[..ALL_SUMMED_BYTES]);
        bytes[96..104].copy_from_slice(&sum.to_le_bytes());
        std::array::from_fn(|word| u64_at(&bytes, word * 8))
    }

    /// Parses the first bytes of a file of `file_len` bytes.
    pub(crate) fn decode(task: Task<'_>, bytes: &[u8], file_len: u64) -> Result<Header, ShmError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(task.foreign());
        }
        if bytes.len() < HEADER_WORDS * 8 {
            return Err(task.truncated(HEADER_BYTES, file_len));
        }
        if u64_at(bytes, SUMMED_BYTES) != fnv1a(&bytes[..SUMMED_BYTES]) {
            return Err(task.corrupt());
        }
        let holes = match u64_at(bytes, 8) as u32 {
            VERSION => Holes::None,
            VERSION_WITH_HOLES => Holes::Some,
            found => {
                let path = task.path.to_owned();
                return Err(ShmError::Version { attempt: task.attempt, path, found, supported: VERSION });
            }
        };
        if u64_at(bytes, ALL_SUMMED_BYTES) != fnv1a(&bytes[..ALL_SUMMED_BYTES]) {
            return Err(task.corrupt());
        }
        let sizes =
            Sizes { main_bytes: u64_at(bytes, 16), device_bytes: u64_at(bytes, 24), file_bytes: u64_at(bytes, 32) };
        if !sizes.are_consistent() || u64_at(bytes, 8) >> 32 != HEADER_BYTES {
            return Err(task.corrupt());
        }
        if file_len < sizes.file_bytes {
            return Err(task.truncated(sizes.file_bytes, file_len));
        }
        let lock_name = match [80, 88].map(|at| NonZeroU64::new(u64_at(bytes, at))) {
            [None, None] => None,
            [Some(identity), Some(inode)] => Some(LockName { identity, inode }),
            _ => return Err(task.corrupt()),
        };
        let mut boot_id = [0; 16];
        boot_id.copy_from_slice(&bytes[40..56]);
        let (creator_pid, created_unix_ns) = (u64_at(bytes, 56), u64_at(bytes, 64));
        Ok(Header { sizes, holes, boot_id, creator_pid, created_unix_ns, lock_name })
    }
}

impl Header {
    /// Returns two words that identify the content of the region during the boot `boot`, in the file with this device
    /// and inode: the creation time, and a hash of the creating process, the boot at creation, `boot` and the file.
    /// `None` if one of the boots is unknown.
    pub(crate) fn identity(&self, boot: [u8; 16], (device, inode): (u64, u64)) -> Option<[u64; 2]> {
        if boot == [0; 16] || self.boot_id == [0; 16] {
            return None;
        }
        let mut bytes = [0; 56];
        bytes[..16].copy_from_slice(&self.boot_id);
        bytes[16..32].copy_from_slice(&boot);
        bytes[32..40].copy_from_slice(&self.creator_pid.to_le_bytes());
        bytes[40..48].copy_from_slice(&device.to_le_bytes());
        bytes[48..].copy_from_slice(&inode.to_le_bytes());
        Some([self.created_unix_ns, fnv1a(&bytes)])
    }
}

/// Whether a file that begins with `bytes` was created by this crate, in any state and version.
pub(crate) fn is_region(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// FNV-1a, 64 bits: every step is a bijection of the state, so a change of one byte always changes the sum.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(OFFSET_BASIS, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::error::Attempt;

    fn task() -> Task<'static> {
        Task::new(Attempt::Open, Path::new("/somewhere"))
    }

    fn sample() -> (Header, Vec<u8>) {
        let sizes = Sizes::new(12_345, 100, PAGE_BYTES).unwrap();
        let number = |number| NonZeroU64::new(number).unwrap();
        let lock_name = Some(LockName { identity: number(0x0123_4567_89ab_cdef), inode: number(77) });
        let holes = Holes::None;
        let header = Header { sizes, holes, boot_id: [7; 16], creator_pid: 42, created_unix_ns: 1 << 60, lock_name };
        (header, bytes_of(&header))
    }

    fn bytes_of(header: &Header) -> Vec<u8> {
        header.encode().iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Recomputes both checksums.
    fn seal(bytes: &mut [u8]) {
        for summed in [SUMMED_BYTES, ALL_SUMMED_BYTES] {
            let sum = fnv1a(&bytes[..summed]);
            bytes[summed..summed + 8].copy_from_slice(&sum.to_le_bytes());
        }
    }

    #[test]
    fn a_header_survives_the_round_trip() {
        let (header, bytes) = sample();
        assert_eq!(Header::decode(task(), &bytes, header.sizes.file_bytes).unwrap(), header);
        let longer = header.sizes.file_bytes + 1;
        assert_eq!(Header::decode(task(), &bytes, longer).unwrap(), header, "bytes after the end are ignored");
        for holes in [Holes::None, Holes::Some] {
            let without = Header { holes, lock_name: None, ..header };
            assert_eq!(Header::decode(task(), &bytes_of(&without), longer).unwrap(), without);
        }
    }

    #[test]
    fn the_checksum_is_fnv1a() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let (header, bytes) = sample();
        for bit in 0..HEADER_WORDS * 64 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = Header::decode(task(), &damaged, header.sizes.file_bytes).unwrap_err();
            match bit / 8 {
                0..8 => assert!(matches!(error, ShmError::Foreign { .. }), "bit {bit}: {error}"),
                _ => assert!(matches!(error, ShmError::HeaderCorrupt { .. }), "bit {bit}: {error}"),
            }
        }
    }

    #[test]
    fn other_versions_are_reported() {
        let (header, mut bytes) = sample();
        for found in [1, 4] {
            bytes[8..12].copy_from_slice(&u32::to_le_bytes(found));
            // The second checksum is defined by that version.
            let sum = fnv1a(&bytes[..SUMMED_BYTES]);
            bytes[SUMMED_BYTES..SUMMED_BYTES + 8].copy_from_slice(&sum.to_le_bytes());
            let error = Header::decode(task(), &bytes, header.sizes.file_bytes).unwrap_err();
            assert!(matches!(error, ShmError::Version { found: seen, .. } if seen == found), "{error}");
        }
    }

    #[test]
    fn impossible_sizes_are_corrupt_even_under_a_good_checksum() {
        let (header, good) = sample();
        let file_bytes = header.sizes.file_bytes;
        for (at, value) in [
            (16, u64::MAX),
            (16, 9),
            (24, 1 << 63),
            (32, file_bytes - 4096),
            (32, file_bytes + 1),
            (8, u64::from(VERSION)),
            (80, 0),
            (88, 0),
        ] {
            let mut bytes = good.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            seal(&mut bytes);
            let error = Header::decode(task(), &bytes, u64::MAX).unwrap_err();
            assert!(matches!(error, ShmError::HeaderCorrupt { .. }), "{at} {value}: {error}");
        }
    }

    #[test]
    fn the_identity_depends_on_creation_and_boot_and_file() {
        let (header, _) = sample();
        let file = (3, 77);
        let name = header.identity([9; 16], file).unwrap();
        assert_eq!(header.identity([9; 16], file), Some(name));
        let others = [
            Header { created_unix_ns: header.created_unix_ns + 1, ..header },
            Header { creator_pid: header.creator_pid + 1, ..header },
            Header { boot_id: [8; 16], ..header },
        ];
        assert!(others.iter().all(|other| other.identity([9; 16], file).unwrap() != name));
        assert_ne!(header.identity([10; 16], file).unwrap(), name, "another boot");
        for copy in [(3, 78), (4, 77)] {
            assert_ne!(header.identity([9; 16], copy).unwrap(), name, "another file");
        }
        assert_eq!(header.identity([0; 16], file), None);
        assert_eq!(Header { boot_id: [0; 16], ..header }.identity([9; 16], file), None);
    }

    #[test]
    fn sizes_are_rounded_and_bounded() {
        let sizes = Sizes::new(1, 0, PAGE_BYTES).unwrap();
        assert_eq!((sizes.main_bytes, sizes.device_bytes, sizes.file_bytes), (8, 0, 8192));
        assert_eq!(Sizes::new(4096, 8, PAGE_BYTES).unwrap().device_offset(), 8192);
        assert_eq!(Sizes::new(4096, 8, 2 << 20).unwrap().file_bytes, 2 << 20);
        for (main_bytes, device_bytes) in [(u64::MAX, 0), (0, u64::MAX), (1 << 63, 1 << 63), (1 << 47, 0)] {
            assert_eq!(Sizes::new(main_bytes, device_bytes, PAGE_BYTES), None);
        }
    }
}
