//! The functions that open, create and destroy tables.

use std::path::PathBuf;
use std::time::Duration;

use guira::{CreateOptions, EntryFormat, Error, OnMismatch, OpenOptions, Preset, Store};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::{Codec, exception, raised};
use crate::table::Table;

/// The deadline of tables that were not opened with one; the library's default is the same.
const DEADLINE: Duration = Duration::from_secs(10);

/// Open an existing table.
///
/// url is such as "shm://birds", "file:///PATH", "tcp://HOST:PORT" or "rdma://HOST:PORT". A memory node that requires
/// TLS cannot be used from Python.
///
/// read_only: lookups and scans only; needs neither write permission nor a client slot.
/// owner: the id of the user to whom the table must belong; by default this user or root, of a read-only table anyone.
/// deadline: seconds that an operation waits for other clients before it raises Busy; default 10.
/// token_file: the access token of a memory node.
/// connect_timeout, reconnect_timeout: seconds for one attempt to connect to a memory node, and for all attempts after
/// a connection was lost; defaults 5 and 10.
/// codec: an object with functions dumps(value) -> bytes and loads(bytes) -> value for all values, such as guira.json or
/// the module pickle; by default values are bytes. Use pickle only if you trust everyone who may write the table.
///
/// Raises NotFound, Misuse (a bad URL, no permission, another owner), Corrupt, Version, Gone, Fabric, Busy. Nothing was
/// changed.
#[pyfunction]
#[pyo3(signature = (url, *, read_only=false, owner=None, deadline=10.0, token_file=None, connect_timeout=5.0,
    reconnect_timeout=10.0, codec=None))]
#[expect(clippy::too_many_arguments, reason = "they have names in Python")]
pub fn open(
    py: Python<'_>,
    url: &str,
    read_only: bool,
    owner: Option<u32>,
    deadline: f64,
    token_file: Option<PathBuf>,
    connect_timeout: f64,
    reconnect_timeout: f64,
    codec: Option<Codec>,
) -> PyResult<Table> {
    let options = open_options(read_only, owner, deadline, token_file, connect_timeout, reconnect_timeout)?;
    Table::new(py, codec, seconds("deadline", deadline)?, || Store::open_with(url, &options))
}

/// Returns the options of [`open`] and of its counterpart for asyncio.
pub fn open_options(
    read_only: bool,
    owner: Option<u32>,
    deadline: f64,
    token_file: Option<PathBuf>,
    connect_timeout: f64,
    reconnect_timeout: f64,
) -> PyResult<OpenOptions> {
    let mut options = OpenOptions::new()
        .deadline(seconds("deadline", deadline)?)
        .connect_timeout(seconds("connect_timeout", connect_timeout)?)
        .reconnect_timeout(seconds("reconnect_timeout", reconnect_timeout)?);
    options = if read_only { options.read_only() } else { options };
    options = owner.into_iter().fold(options, OpenOptions::owner);
    Ok(token_file.into_iter().fold(options, OpenOptions::token_file))
}

/// Create a table and open it.
///
/// capacity: the keys that it has room for. Without it the table has room for 1,000 at first and grows while it is used,
/// until the memory of the machine is in use. Preset "paper" needs one.
/// max_capacity: the keys that it may grow to hold; without it a table with a capacity does not grow.
/// format: "bytes:N" for keys of 0 to 64 KiB and values of 0 to 64 MiB, kept in the row if they have at most N bytes
/// together; "fixed:K:V" for keys of K bytes and values of V bytes. Default "bytes:64".
/// preset: "hardened", or "paper" and "tiny" for measurements and tests.
/// record_bytes: the bytes of a typical key and value together; if they do not fit in a row, the table gets space for
/// capacity such records. extent_bytes: that space itself.
/// max_clients: clients at once, 1 to 32,767; default 1,024. A table object has one for each thread that changes the
/// table while others do, as long as there are any; they stay until it is closed.
/// mode: permission bits of the table's file, whatever the umask.
/// seed: that of the key hash; random by default.
/// codec: as for open.
///
/// Raises AlreadyExists, Misuse (impossible options, no permission), Full (no memory). Nothing is left behind.
#[pyfunction]
#[pyo3(signature = (url, *, capacity=None, max_capacity=None, format="bytes:64", preset="hardened", record_bytes=None,
    extent_bytes=None, max_clients=None, mode=0o600, seed=None, codec=None))]
#[expect(clippy::too_many_arguments, reason = "they have names in Python")]
pub fn create(
    py: Python<'_>,
    url: &str,
    capacity: Option<u64>,
    max_capacity: Option<u64>,
    format: &str,
    preset: &str,
    record_bytes: Option<u64>,
    extent_bytes: Option<u64>,
    max_clients: Option<u16>,
    mode: u32,
    seed: Option<u64>,
    codec: Option<Codec>,
) -> PyResult<Table> {
    let new = New { capacity, max_capacity, record_bytes, extent_bytes, max_clients, mode, seed };
    let options = new.options(py, format, preset)?;
    Table::new(py, codec, DEADLINE, || Store::create(url, &options))
}

/// Open a table, or create it if it does not exist: of several processes that start at the same time, one creates it and
/// all get the same table. Table.was_created says which.
///
/// accept_mismatch: open an existing table also if it does not match the options.
/// owner: as for open. All other options are those of create.
///
/// Raises Misuse if the table exists and does not match the options, and what open and create raise. Nothing was changed.
#[pyfunction]
#[pyo3(signature = (url, *, capacity=None, max_capacity=None, format="bytes:64", preset="hardened", record_bytes=None,
    extent_bytes=None, max_clients=None, mode=0o600, seed=None, accept_mismatch=false, owner=None, codec=None))]
#[expect(clippy::too_many_arguments, reason = "they have names in Python")]
pub fn open_or_create(
    py: Python<'_>,
    url: &str,
    capacity: Option<u64>,
    max_capacity: Option<u64>,
    format: &str,
    preset: &str,
    record_bytes: Option<u64>,
    extent_bytes: Option<u64>,
    max_clients: Option<u16>,
    mode: u32,
    seed: Option<u64>,
    accept_mismatch: bool,
    owner: Option<u32>,
    codec: Option<Codec>,
) -> PyResult<Table> {
    let new = New { capacity, max_capacity, record_bytes, extent_bytes, max_clients, mode, seed };
    let on_mismatch = if accept_mismatch { OnMismatch::Accept } else { OnMismatch::Refuse };
    let options = new.options(py, format, preset)?.on_mismatch(on_mismatch);
    let options = owner.into_iter().fold(options, CreateOptions::owner);
    Table::new(py, codec, DEADLINE, || Store::open_or_create(url, &options))
}

/// Destroy a table: its name is removed, and its memory is freed when the last process closes it. In processes that have
/// it open, every operation raises Gone from then on.
///
/// Raises NotFound, Misuse (not a table, no permission, the table of a memory node), Fabric.
#[pyfunction]
pub fn destroy(py: Python<'_>, url: &str) -> PyResult<()> {
    py.detach(|| Store::destroy(url)).map_err(|error| raised(py, &error))
}

/// The numbers that describe a new table.
struct New {
    capacity: Option<u64>,
    max_capacity: Option<u64>,
    record_bytes: Option<u64>,
    extent_bytes: Option<u64>,
    max_clients: Option<u16>,
    mode: u32,
    seed: Option<u64>,
}

impl New {
    fn options(self, py: Python<'_>, format: &str, preset: &str) -> PyResult<CreateOptions> {
        let format: EntryFormat = format.parse().map_err(|error| raised(py, &Error::from(error)))?;
        let preset: Preset = preset.parse().map_err(|error: String| exception(py, "Misuse", &error, "none"))?;
        if preset == Preset::Paper && self.capacity.is_none() && self.max_capacity.is_none() {
            let message = "preset \"paper\" needs a capacity, because its tables do not grow; nothing was created";
            return Err(exception(py, "Misuse", message, "none"));
        }
        let mut options = self.capacity.map_or_else(CreateOptions::default, CreateOptions::new);
        options = options.format(format).preset(preset).mode(self.mode);
        options = self.max_capacity.into_iter().fold(options, CreateOptions::max_capacity);
        options = self.record_bytes.into_iter().fold(options, CreateOptions::record_bytes);
        options = self.extent_bytes.into_iter().fold(options, CreateOptions::extent_bytes);
        options = self.max_clients.into_iter().fold(options, CreateOptions::max_clients);
        Ok(self.seed.into_iter().fold(options, CreateOptions::seed))
    }
}

fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    let refused = |_| PyValueError::new_err(format!("{name} must be a number of seconds from 0, not {value}"));
    Duration::try_from_secs_f64(value).map_err(refused)
}
