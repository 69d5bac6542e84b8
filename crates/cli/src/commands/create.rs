//! `guira create`: creates a table.

use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use guira::errors::InsufficientSpace;
use guira::{CreateOptions, CreateProgress, EntryFormat, Preset, Store, Url};
use serde::Serialize;

use super::Verdict;
use super::owner::{self, Owner};
use crate::failure::{Failure, NameHolder};
use crate::interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::units;

/// Create a table.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The new table: shm://NAME or file:///PATH. An existing file is never replaced.
    pub url: Url,
    /// Succeed if the table already exists and matches: the same format and preset, the same seed if one is given, and
    /// at least the given capacity, extent bytes and clients.
    #[arg(long)]
    pub if_missing: bool,
    /// Number of keys it must hold: 10_000, 500k, 1M. The table is sized so that they fill it to 90 %. Without it, the
    /// table begins with room for at least 1,000 and grows while it is used, until memory is full.
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    pub capacity: Option<u64>,
    /// Number of keys that it may grow to hold, while it is used: 10M, 1G. Default: with --capacity it does not grow.
    /// It takes memory as it grows.
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    pub max_capacity: Option<u64>,
    /// How keys and values are stored: fixed:K:V (exactly K and V bytes, in the row) or bytes:N (any length; in the
    /// row if key and value together are at most N bytes).
    #[arg(long, value_name = "FORMAT", default_value = "bytes:64")]
    pub entry: EntryFormat,
    /// Parameters to start from: hardened, paper (RCuckoo as published, with its flaws), or tiny (for tests).
    #[arg(long, value_name = "NAME", default_value_t)]
    pub preset: Preset,
    #[command(flatten)]
    pub space: SpaceOptions,
    /// Clients that can have the table open for changing at the same time. Default: 1024.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub max_clients: Option<u16>,
    /// Permission bits of its file, in octal. If some users may read but not write (644), a lock file beside the table
    /// keeps readers from blocking writers.
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = units::parse_mode)]
    pub mode: u32,
    /// Seed of the key hash. Default: random.
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub owner: Owner,
}

/// The options that set the memory of a new table for records that do not fit in its rows.
#[derive(Clone, Copy, Debug, Args)]
pub struct SpaceOptions {
    /// Size of a typical record, key and value together: 100, 4KiB. If it does not fit in a row, the table gets enough
    /// memory to store and update as many such records as its capacity. Default: small records.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub record_bytes: Option<u64>,
    /// Memory for records that do not fit in a row: 64MiB, 1G. Default: 4 MiB, or for large tables 1/16 of what the
    /// rows hold.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes, conflicts_with = "record_bytes")]
    pub extent_bytes: Option<u64>,
}

impl SpaceOptions {
    /// Refuses the options for a table of `format` that has no extents.
    pub fn refuse_for(self, format: EntryFormat) -> Result<(), Failure> {
        let is_given = self.record_bytes.is_some() || self.extent_bytes.is_some();
        if is_given && !format.has_extents() {
            let message = format!("tables of {format} store every record in its row");
            return Err(Failure::Misuse(format!(
                "{message}: leave out --record-bytes and --extent-bytes, or use --entry bytes:N; nothing was changed"
            )));
        }
        Ok(())
    }

    /// Returns `options` with this much memory.
    pub fn apply(self, options: CreateOptions) -> CreateOptions {
        let options = self.record_bytes.into_iter().fold(options, CreateOptions::record_bytes);
        self.extent_bytes.into_iter().fold(options, CreateOptions::extent_bytes)
    }
}

/// Attempts to create a table whose name was held by a table that is destroyed now. Each attempt but the first needs
/// another process that destroys a table in the meantime; a table that a killed destroyer left with its name ends the
/// attempts.
const MAX_CREATE_ATTEMPTS: u32 = 8;
/// The pause between two attempts: removing a name takes microseconds.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// The default size of /dev/shm in a container.
const CONTAINER_BYTES: u64 = 64 << 20;

/// The answer: the table that was created, or that existed.
#[derive(Debug, Serialize)]
pub struct Created {
    url: String,
    /// Whether this command created it.
    created: bool,
    preset: String,
    entry: String,
    capacity: u64,
    /// Keys that it may grow to hold.
    max_capacity: u64,
    slots: u64,
    rows: u64,
    row_bytes: u32,
    entries_per_row: u8,
    extent_bytes: u64,
    max_extent_bytes: u64,
    max_clients: u16,
    /// Bytes of addresses, and those of them that have memory at first.
    main_bytes: u64,
    device_bytes: u64,
    memory_bytes: u64,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let options = arguments.capacity.map_or_else(CreateOptions::default, CreateOptions::new);
    let mut options = options.format(arguments.entry).preset(arguments.preset).mode(arguments.mode);
    options = arguments.space.apply(options);
    if let Some(clients) = arguments.max_clients {
        options = options.max_clients(clients);
    }
    if let Some(seed) = arguments.seed {
        options = options.seed(seed);
    }
    if let Some(keys) = arguments.max_capacity {
        options = options.max_capacity(keys);
    }
    if let Some(uid) = owner::named()? {
        options = options.owner(uid);
    }
    arguments.space.refuse_for(arguments.entry)?;
    if arguments.preset == Preset::Paper && arguments.capacity.is_none() {
        let message = "tables of preset paper do not grow: give the number of keys with --capacity N";
        return Err(Failure::Misuse(format!("{message}; nothing was changed")));
    }
    let make: Make = if arguments.if_missing {
        |url, options, progress| Store::open_or_create_with_progress(url, options, progress)
    } else {
        CREATE
    };
    let store = create_by(make, &arguments.url, &options, output)?;
    let room = arguments.capacity.filter(|_| store.was_created());
    let room = room.unwrap_or_else(|| store.table().config().capacity());
    let created = Created::of(&store, arguments.preset, room);
    let said = output.answer(&created, || created.human());
    if store.was_created() {
        if let Some(warning) = access_by_others(arguments.mode) {
            output.warn(&warning);
        }
        said.map_err(Failure::after(format!("created {}", arguments.url)))?;
    } else {
        said?;
    }
    Ok(Verdict::Fine)
}

/// Returns a warning if the permission bits give access to users outside the owner and the group.
fn access_by_others(mode: u32) -> Option<String> {
    let what = match mode & 0o007 {
        0 => return None,
        bits if bits & 0o002 != 0 => "read, change and damage",
        _ => "read",
    };
    Some(format!(
        "mode {mode:03o} lets every user of this host {what} the table; use 600 for yourself, 660 for your group"
    ))
}

/// Creates a table and shows the progress. Ctrl-C ends it between two steps, and then nothing is left.
pub fn create(url: &Url, options: &CreateOptions, output: &Output) -> Result<Store, Failure> {
    create_by(CREATE, url, options, output)
}

/// A function that creates a table and reports its progress.
type Make = fn(&Url, &CreateOptions, &mut dyn FnMut(CreateProgress) -> ControlFlow<()>) -> Result<Store, guira::Error>;

const CREATE: Make = |url, options, progress| Store::create_with_progress(url, options, progress);

fn create_by(make: Make, url: &Url, options: &CreateOptions, output: &Output) -> Result<Store, Failure> {
    interrupt::catch();
    let mut attempts = 1;
    let store = loop {
        let mut shown = Creation::new(output);
        let store = make(url, options, &mut |progress| {
            shown.show(progress);
            if interrupt::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        shown.finish();
        let is_already_exists = store.as_ref().is_err_and(guira::Error::is_already_exists);
        // Retry only if the table that had the name has been destroyed since.
        if !is_already_exists
            || attempts == MAX_CREATE_ATTEMPTS
            || !matches!(NameHolder::of(url), NameHolder::Free | NameHolder::Destroyed)
        {
            break store;
        }
        attempts += 1;
        std::thread::sleep(RETRY_PAUSE);
    };
    let store = store.map_err(|error| too_large(url, options, error))?;
    if store.was_created() && interrupt::requested() {
        // The signal came after the table got its name.
        // A table without a name ends with this process.
        if !url.is_unnamed() {
            Store::destroy(url)?;
        }
        return Err(Failure::TableDiscarded(url.clone()));
    }
    Ok(store)
}

/// Returns the failure to create a table; if there is not enough memory, with advice on a size that fits.
fn too_large(url: &Url, options: &CreateOptions, error: guira::Error) -> Failure {
    let insufficient_space = error.insufficient_space();
    let failure = Failure::of_creation(url)(error);
    let Some(InsufficientSpace { available_bytes, .. }) = insufficient_space else { return failure };
    let is_small = url.to_string().starts_with("shm://") && available_bytes <= CONTAINER_BYTES;
    let container = if is_small { "; a container has 64 MB unless it is started with --shm-size" } else { "" };
    let less = match options.capacity_within(available_bytes) {
        Some(capacity) => format!("there is room for {} keys", units::count(units::rounded_down(capacity))),
        None => "a table for fewer clients or smaller records needs less memory".to_owned(),
    };
    Failure::Advised { source: Box::new(failure), advice: format!("{less}{container}") }
}

/// The progress display of a creation, stage by stage.
struct Creation<'o> {
    output: &'o Output,
    stage: Option<(&'static str, Progress)>,
}

impl<'o> Creation<'o> {
    fn new(output: &'o Output) -> Creation<'o> {
        Creation { output, stage: None }
    }

    fn show(&mut self, progress: CreateProgress) {
        match progress {
            CreateProgress::Reserving { done_bytes, total_bytes } => {
                let text = || format!("{} of {}", units::bytes(done_bytes), units::bytes(total_bytes));
                self.stage("reserving memory", total_bytes).tick(done_bytes, text);
            }
            CreateProgress::Formatting { done_rows, total_rows } => {
                let text = || format!("{} of {} rows", units::count(done_rows), units::count(total_rows));
                self.stage("formatting", total_rows).tick(done_rows, text);
            }
            _ => {}
        }
    }

    fn stage(&mut self, name: &'static str, total: u64) -> &mut Progress {
        if self.stage.as_ref().is_none_or(|(shown, _)| *shown != name) {
            self.finish();
            self.stage = None;
        }
        &mut self.stage.get_or_insert_with(|| (name, Progress::new(self.output, name, Some(total)))).1
    }

    fn finish(&mut self) {
        if let Some((_, progress)) = &mut self.stage {
            progress.finish();
        }
    }
}

impl Created {
    /// Describes the table behind `store`.
    pub fn of(store: &Store, preset: Preset, capacity: u64) -> Created {
        let (config, geometry) = (store.table().config(), store.table().geometry());
        let solid: u64 = geometry.solid(config).iter().map(|bytes| bytes.end - bytes.start).sum();
        Created {
            url: store.url().to_string(),
            created: store.was_created(),
            preset: preset.to_string(),
            entry: config.format.to_string(),
            capacity,
            max_capacity: config.max_capacity(),
            slots: config.initial_rows() * u64::from(config.entries_per_row),
            rows: config.initial_rows(),
            row_bytes: config.row_bytes,
            entries_per_row: config.entries_per_row,
            extent_bytes: config.initial_chunks.unwrap_or(config.chunks) * config.chunk_bytes,
            max_extent_bytes: config.extent_bytes(),
            max_clients: config.max_clients,
            main_bytes: geometry.main_bytes(),
            device_bytes: geometry.device_bytes(),
            memory_bytes: solid + geometry.device_bytes(),
        }
    }

    /// Returns the answer as text.
    pub fn human(&self) -> String {
        let Created { rows, entries_per_row, row_bytes, .. } = self;
        let extents = match self.extent_bytes {
            0 => String::new(),
            bytes => format!(", {} of it for records that do not fit in a row (--record-bytes)", units::bytes(bytes)),
        };
        let grows = match (self.main_bytes + self.device_bytes > self.memory_bytes, self.max_extent_bytes) {
            (false, _) => String::new(),
            (true, 0) => format!("\ngrows to room for {}", units::counted(self.max_capacity, "key")),
            (true, bytes) => {
                let (keys, bytes) = (units::counted(self.max_capacity, "key"), units::bytes(bytes));
                format!("\ngrows to room for {keys}, and {bytes} for records that do not fit in a row")
            }
        };
        let said = if self.created { "created " } else { "" };
        let existed = if self.created { "" } else { " already exists and matches" };
        format!(
            "{said}{}{existed} ({}, {}): {} rows of {entries_per_row} entries in {row_bytes} bytes, room for {}\n\
             {} of memory{extents}; up to {}{grows}",
            self.url,
            self.preset,
            self.entry,
            units::count(*rows),
            units::counted(self.capacity, "key"),
            units::bytes(self.memory_bytes),
            units::counted(self.max_clients.into(), "client"),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::output::Format;

    thread_local! {
        /// The number of calls of [`lose_the_race`], and how many of them another creator wins.
        static CALLS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }

    /// Simulates another creator that takes the name first, and whose table is destroyed before this one inspects it:
    /// the name is gone, or about to go.
    fn lose_the_race(
        url: &Url,
        options: &CreateOptions,
        progress: &mut dyn FnMut(CreateProgress) -> ControlFlow<()>,
    ) -> Result<Store, guira::Error> {
        let (calls, lost) = CALLS.get();
        CALLS.set((calls + 1, lost));
        let path = url.to_string().replace("shm://", "/dev/shm/");
        let aside = format!("{path}-aside");
        let _ = std::fs::remove_file(&path);
        if calls < lost {
            drop(Store::create(url, options)?);
            let taken = Store::create_with_progress(url, options, progress);
            if calls % 2 == 1 {
                // The destroyed mark is set right after the name is removed, so an earlier opener sees it.
                std::fs::hard_link(&path, &aside).expect("the file belongs to this test");
            }
            Store::destroy(url)?;
            if calls % 2 == 1 {
                std::fs::rename(&aside, &path).expect("the file belongs to this test");
            }
            return taken;
        }
        Store::create_with_progress(url, options, progress)
    }

    /// Creation is retried a few times if the name belongs to a destroyed table.
    #[test]
    fn a_name_of_a_destroyed_table_is_tried_again() {
        let url: Url = format!("shm://{}", guira_testing::unique_name()).parse().expect("a URL");
        let output = Output::new(Format::Json);
        for (lost, calls) in [(0, 1), (1, 2), (4, 5), (u32::MAX, MAX_CREATE_ATTEMPTS)] {
            CALLS.set((0, lost));
            let created = create_by(lose_the_race, &url, &CreateOptions::new(10), &output);
            assert_eq!(CALLS.get().0, calls, "{lost} lost");
            match created {
                Ok(store) => assert!(lost < u32::MAX && store.was_created()),
                Err(failure) => {
                    assert!(lost == u32::MAX && matches!(failure, Failure::AlreadyExists { .. }), "{failure}")
                }
            }
            let _ = Store::destroy(&url);
        }
    }
}
