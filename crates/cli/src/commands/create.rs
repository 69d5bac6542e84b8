//! `guira create`.

use clap::Args;
use guira::{CreateOptions, EntryFormat, Preset, Store, Url};
use serde::Serialize;

use super::Verdict;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::units;

/// Create a table.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The new table: shm://NAME or file:///PATH. Nothing that exists is ever replaced.
    pub url: Url,
    /// Keys it must hold: 10_000, 500k, 1M. It is sized so that they fill it to 90 %.
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    pub capacity: u64,
    /// How keys and values are stored: fixed:K:V (exactly K and V bytes, in the row) or bytes:N (any length; in the
    /// row if key and value together have at most N bytes).
    #[arg(long, value_name = "FORMAT", default_value = "bytes:64")]
    pub entry: EntryFormat,
    /// Parameters to start from: hardened, paper (as RCuckoo was printed, with its holes), or tiny (for tests).
    #[arg(long, value_name = "NAME", default_value_t)]
    pub preset: Preset,
    /// Memory for values that do not fit in a row: 64MiB, 1G. Default: four times what the rows hold inline, 64 MiB
    /// at least.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub extent_bytes: Option<u64>,
    /// Clients that can have the table open for changing at once. Default 1024.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub max_clients: Option<u16>,
    /// Permission bits of its file, in octal.
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = units::parse_mode)]
    pub mode: u32,
    /// Seed of the key hash. Default: random.
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
}

/// What was created.
#[derive(Debug, Serialize)]
pub struct Created {
    url: String,
    preset: String,
    entry: String,
    capacity: u64,
    slots: u64,
    rows: u64,
    row_bytes: u32,
    entries_per_row: u8,
    extent_bytes: u64,
    max_clients: u16,
    main_bytes: u64,
    device_bytes: u64,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let mut options =
        CreateOptions::new(arguments.capacity).format(arguments.entry).preset(arguments.preset).mode(arguments.mode);
    if let Some(bytes) = arguments.extent_bytes {
        options = options.extent_bytes(bytes);
    }
    if let Some(clients) = arguments.max_clients {
        options = options.max_clients(clients);
    }
    if let Some(seed) = arguments.seed {
        options = options.seed(seed);
    }
    let store = create(&arguments.url, &options, output)?;
    let created = Created::of(&store, arguments.preset, arguments.capacity);
    let said = output.answer(&created, || created.human());
    said.map_err(Failure::after(format!("created {}", arguments.url)))?;
    Ok(Verdict::Fine)
}

/// Creates a table and shows how far it got. It has its name when it is complete: Ctrl-C lets it get there and destroys
/// it.
pub fn create(url: &Url, options: &CreateOptions, output: &Output) -> Result<Store, Failure> {
    interrupt::note();
    let mut progress = Progress::new(output, "formatting", None);
    let store = Store::create_with_progress(url, options, &mut |done, total| {
        progress.set_total(total);
        progress.tick(done, || format!("{} of {} rows", units::count(done), units::count(total)));
    });
    progress.finish();
    let store = store.map_err(Failure::of_creation(url))?;
    if interrupt::requested() {
        // What has no name is gone with this process.
        if !url.is_unnamed() {
            Store::destroy(url)?;
        }
        return Err(Failure::Abandoned(url.clone()));
    }
    Ok(store)
}

impl Created {
    /// The table behind `store`.
    pub fn of(store: &Store, preset: Preset, capacity: u64) -> Created {
        let (config, geometry) = (store.table().config(), store.table().geometry());
        Created {
            url: store.url().to_string(),
            preset: preset.to_string(),
            entry: config.format.to_string(),
            capacity,
            slots: config.slots(),
            rows: config.rows,
            row_bytes: config.row_bytes,
            entries_per_row: config.entries_per_row,
            extent_bytes: config.chunks * config.chunk_bytes,
            max_clients: config.max_clients,
            main_bytes: geometry.main_bytes(),
            device_bytes: geometry.device_bytes(),
        }
    }

    /// The answer for people.
    pub fn human(&self) -> String {
        let Created { rows, entries_per_row, row_bytes, .. } = self;
        let extents = match self.extent_bytes {
            0 => String::new(),
            bytes => format!(", {} of them for large values", units::bytes(bytes)),
        };
        format!(
            "created {} ({}, {}): {} rows of {entries_per_row} entries in {row_bytes} bytes, room for {}\n\
             {} of memory{extents}; up to {} clients",
            self.url,
            self.preset,
            self.entry,
            units::count(*rows),
            units::counted(self.capacity, "key"),
            units::bytes(self.main_bytes + self.device_bytes),
            units::count(self.max_clients.into()),
        )
    }
}
