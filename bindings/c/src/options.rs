//! Options for opening and creating tables: structures whose first field has their size, so that they can grow.

use std::ffi::c_char;
use std::time::Duration;

use guira::{EntryFormat, OnMismatch, Preset};

use crate::call::{Failure, Outcome};
use crate::memory;

/// A flag of guira_open_options: lookups and scans only; needs neither write permission nor a client slot.
pub const GUIRA_READ_ONLY: u64 = 1;
/// A flag of guira_create_options, for guira_open_or_create: open an existing table also if it does not match the
/// options.
pub const GUIRA_ACCEPT_MISMATCH: u64 = 1;
/// A time of guira_open_options: do not wait at all.
pub const GUIRA_NO_WAIT: u64 = u64::MAX;

/// Options for guira_open. Set struct_size and everything else to 0 by GUIRA_OPEN_OPTIONS_INIT: 0 stands for the
/// default.
#[repr(C)]
pub struct OpenOptions {
    /// sizeof(guira_open_options): later versions of this library have more fields at the end.
    pub struct_size: usize,
    /// GUIRA_READ_ONLY, or 0.
    pub flags: u64,
    /// The id of the user to whom the table must belong. By default this user or root; of a table that is only read,
    /// anyone.
    pub owner: *const u32,
    /// The path of the file with the access token of a memory node. By default none.
    pub token_file: *const c_char,
    /// Milliseconds that an operation waits for other clients before it returns GUIRA_BUSY. By default 10,000;
    /// GUIRA_NO_WAIT for none.
    pub deadline_ms: u64,
    /// Milliseconds for one attempt to connect to a memory node. By default 5,000.
    pub connect_timeout_ms: u64,
    /// Milliseconds for all attempts to connect again after a connection was lost. By default 10,000; GUIRA_NO_WAIT for
    /// a single attempt.
    pub reconnect_timeout_ms: u64,
}

/// Options for guira_create and guira_open_or_create. Set struct_size and everything else to 0 by
/// GUIRA_CREATE_OPTIONS_INIT: 0 stands for the default.
#[repr(C)]
pub struct CreateOptions {
    /// sizeof(guira_create_options): later versions of this library have more fields at the end.
    pub struct_size: usize,
    /// GUIRA_ACCEPT_MISMATCH, or 0.
    pub flags: u64,
    /// The keys that the table has room for. By default it has room for 1,000 at first and grows while it is used,
    /// until the memory of the machine is in use.
    pub capacity: u64,
    /// The keys that it may grow to hold. By default a table with a capacity does not grow.
    pub max_capacity: u64,
    /// The bytes of a typical key and value together: if they do not fit in a row, the table gets space for capacity
    /// such records. By default it has hardly any such space.
    pub record_bytes: u64,
    /// The bytes of that space itself.
    pub extent_bytes: u64,
    /// "bytes:N" for keys of 0 to 64 KiB and values of 0 to 64 MiB, kept in the row if they have at most N bytes
    /// together; "fixed:K:V" for keys of K bytes and values of V bytes. By default "bytes:64".
    pub format: *const c_char,
    /// "hardened", or "paper" and "tiny" for measurements and tests. By default "hardened".
    pub preset: *const c_char,
    /// The seed of the key hash. By default it is drawn at random.
    pub seed: *const u64,
    /// The id of the user to whom an existing table must belong, for guira_open_or_create. By default this user or
    /// root.
    pub owner: *const u32,
    /// Clients at once, 1 to 32,767. By default 1,024. Readers do not count.
    pub max_clients: u32,
    /// Permission bits of the table's file, whatever the umask. By default 0600.
    pub mode: u32,
}

/// The most bytes of a structure of a later version that are looked at.
const MOST_BYTES: usize = 4096;

/// A structure whose first field has its size, which is valid if all of its bytes are 0.
trait Versioned {
    const NAME: &'static str;
    /// The size in version 0.1, the first one. It never changes, so that programs of that version keep working.
    const FIRST_BYTES: usize;
}

impl Versioned for OpenOptions {
    const NAME: &'static str = "guira_open_options";
    const FIRST_BYTES: usize = std::mem::offset_of!(OpenOptions, reconnect_timeout_ms) + size_of::<u64>();
}

impl Versioned for CreateOptions {
    const NAME: &'static str = "guira_create_options";
    const FIRST_BYTES: usize = std::mem::offset_of!(CreateOptions, mode) + size_of::<u32>();
}

/// Returns the caller's options: those of an earlier version with zeros for the fields that it did not have, and those
/// of a later version only if they use none of its fields.
fn read<T: Versioned>(pointer: *const T) -> Outcome<T> {
    // SAFETY: both structures consist of integers and pointers.
    let mut options: T = unsafe { std::mem::zeroed() };
    if pointer.is_null() {
        return Ok(options);
    }
    // SAFETY: the caller promises a structure that begins with its size.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if !(T::FIRST_BYTES..=MOST_BYTES).contains(&size) {
        return Err(Failure::misuse(format!("struct_size of {} is {size}, not its size", T::NAME)));
    }
    let is_zero = |offset| {
        // SAFETY: the caller promises a structure of this size.
        unsafe { pointer.cast::<u8>().add(offset).read() == 0 }
    };
    if !(size_of::<T>()..size).all(is_zero) {
        return Err(Failure::misuse(format!("{} has options that this version of the library does not have", T::NAME)));
    }
    // SAFETY: as above, and all bit patterns are valid; bytes may be misaligned.
    unsafe { pointer.cast::<u8>().copy_to_nonoverlapping((&raw mut options).cast(), size.min(size_of::<T>())) };
    Ok(options)
}

fn check_flags(name: &str, flags: u64, known: u64) -> Outcome<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Failure::misuse(format!("{name} has unknown flags {unknown:#x}"))),
    }
}

/// Returns a time, unless it is the default.
fn time(milliseconds: u64) -> Option<Duration> {
    match milliseconds {
        0 => None,
        GUIRA_NO_WAIT => Some(Duration::ZERO),
        some => Some(Duration::from_millis(some)),
    }
}

/// Returns a number, unless it is the default.
fn number(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

pub fn open_options(options: *const OpenOptions) -> Outcome<guira::OpenOptions> {
    let given = read(options)?;
    check_flags(OpenOptions::NAME, given.flags, GUIRA_READ_ONLY)?;
    let mut options = guira::OpenOptions::new();
    options = if given.flags & GUIRA_READ_ONLY > 0 { options.read_only() } else { options };
    options = memory::optional(given.owner).into_iter().fold(options, guira::OpenOptions::owner);
    let token_file = memory::optional_text("token_file", given.token_file)?;
    options = token_file.into_iter().fold(options, guira::OpenOptions::token_file);
    options = time(given.deadline_ms).into_iter().fold(options, guira::OpenOptions::deadline);
    options = time(given.connect_timeout_ms).into_iter().fold(options, guira::OpenOptions::connect_timeout);
    Ok(time(given.reconnect_timeout_ms).into_iter().fold(options, guira::OpenOptions::reconnect_timeout))
}

pub fn create_options(options: *const CreateOptions) -> Outcome<guira::CreateOptions> {
    type Options = guira::CreateOptions;
    let given = read(options)?;
    check_flags(CreateOptions::NAME, given.flags, GUIRA_ACCEPT_MISMATCH)?;
    let clients = u16::try_from(given.max_clients);
    let clients = clients.map_err(|_| Failure::misuse(format!("max_clients is {}, above 32767", given.max_clients)))?;
    let mut options = number(given.capacity).map_or_else(Options::default, Options::new);
    options = number(given.max_capacity).into_iter().fold(options, Options::max_capacity);
    options = number(given.record_bytes).into_iter().fold(options, Options::record_bytes);
    options = number(given.extent_bytes).into_iter().fold(options, Options::extent_bytes);
    if let Some(format) = memory::optional_text("format", given.format)? {
        options = options.format(format.parse::<EntryFormat>().map_err(guira::Error::from)?);
    }
    if let Some(preset) = memory::optional_text("preset", given.preset)? {
        options = options.preset(preset.parse::<Preset>().map_err(Failure::Misuse)?);
    }
    options = memory::optional(given.seed).into_iter().fold(options, Options::seed);
    options = memory::optional(given.owner).into_iter().fold(options, Options::owner);
    options = (clients > 0).then_some(clients).into_iter().fold(options, Options::max_clients);
    options = (given.mode > 0).then_some(given.mode).into_iter().fold(options, Options::mode);
    let accept = given.flags & GUIRA_ACCEPT_MISMATCH > 0;
    Ok(options.on_mismatch(if accept { OnMismatch::Accept } else { OnMismatch::Refuse }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options of version 0.1, as a later version of the library sees them.
    #[repr(C)]
    struct Later {
        first: OpenOptions,
        added: u64,
    }

    impl Versioned for Later {
        const NAME: &'static str = "later";
        const FIRST_BYTES: usize = OpenOptions::FIRST_BYTES;
    }

    #[test]
    fn options_of_an_earlier_version_get_zeros() {
        let options = |struct_size| {
            let null = std::ptr::null();
            let first = OpenOptions {
                struct_size,
                flags: 1,
                owner: null,
                token_file: null.cast(),
                deadline_ms: 2,
                connect_timeout_ms: 3,
                reconnect_timeout_ms: 4,
            };
            read(&Later { first, added: 5 }).map(|read| (read.first.reconnect_timeout_ms, read.added))
        };
        assert!(matches!(options(OpenOptions::FIRST_BYTES), Ok((4, 0))));
        assert!(matches!(options(size_of::<Later>()), Ok((4, 5))));
        assert!(options(OpenOptions::FIRST_BYTES - 1).is_err());
    }
}
