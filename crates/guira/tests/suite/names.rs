//! A program that depends on `guira` alone can name every type that it gets: it can match on every kind of error, down
//! to the innermost, and keep a table's parameters. This file names no other crate of the workspace.

use std::path::PathBuf;

use guira::admin::Stage;
use guira::errors::{
    Attempt, CheckError, ConfigError, DamagedItem, FabricError, FileKind, ShmError, SuperblockError, TableError,
    UrlError,
};
use guira::raw::layout::{Geometry, LockLayout, RowFormat, Rules, Superblock, TableConfig};
use guira::raw::{Addr, Generation, LockId, OwnerId, Placement, RowId, RowPair, Space, VerbCounts};
use guira::{
    AdminError, Blame, CreateOptions, Effect, EntryFormat, Error, OpenError, OpenOptions, Operation, OperationError,
    OperationErrorKind, Store, Url,
};

use crate::common::Table;

/// Describes an error as a program might: the innermost kind and its subject, as one text.
fn kind(error: &Error) -> String {
    match error {
        Error::Open(OpenError::Url(error)) => url(error),
        Error::Open(OpenError::Region(error)) => region(error),
        Error::Open(OpenError::Create { source, .. }) => format!("create: {}", config(source)),
        Error::Open(OpenError::Table { source: TableError::Superblock(source), .. }) => {
            format!("open: {}", superblock(source))
        }
        Error::Open(OpenError::Table { source: TableError::Fabric(source), .. }) => fabric(source),
        Error::Open(OpenError::Table { source: TableError::Truncated { wanted, found }, .. }) => {
            format!("open: {found} of {wanted}")
        }
        Error::Open(OpenError::Table { source: TableError::Destroyed, .. }) => "open: destroyed".to_owned(),
        Error::Open(OpenError::Format { source, .. }) | Error::Fabric { source, .. } => fabric(source),
        Error::Admin(AdminError::Check { source: CheckError::Fabric { stage, source }, .. }) => check(*stage, source),
        Error::Operation(error) => operation(error),
        Error::Open(OpenError::TooManyClients { max, .. }) => format!("{max} clients"),
        Error::Open(OpenError::ReadOnly { .. }) => "read only".to_owned(),
        Error::Open(OpenError::ReadOnlyGrant { reason, .. }) => format!("read only: {reason}"),
        _ => "later".to_owned(),
    }
}

fn url(error: &UrlError) -> String {
    match error {
        UrlError::UnknownScheme { scheme, .. } => format!("scheme {scheme}"),
        UrlError::NoScheme { .. } => "no scheme".to_owned(),
        _ => "later".to_owned(),
    }
}

fn region(error: &ShmError) -> String {
    match error {
        ShmError::NotFound { attempt: Attempt::Open, .. } => "open: none".to_owned(),
        ShmError::NotFound { attempt, .. } => format!("{attempt}: no directory"),
        ShmError::AlreadyExists { .. } => "taken".to_owned(),
        ShmError::NotAFile { kind: FileKind::Directory, .. } => "a directory".to_owned(),
        ShmError::BadMode { mode, .. } => format!("mode {mode:o}"),
        ShmError::Foreign { .. } => "foreign".to_owned(),
        _ => "later".to_owned(),
    }
}

fn config(error: &ConfigError) -> String {
    match error {
        ConfigError::OutOfRange { name, value, .. } => format!("{name} {value}"),
        ConfigError::Format { text } => format!("format {text}"),
        _ => "later".to_owned(),
    }
}

fn superblock(error: &SuperblockError) -> String {
    match error {
        SuperblockError::Corrupt { .. } => "damaged".to_owned(),
        SuperblockError::Foreign { found } => format!("foreign {found:x}"),
        _ => "later".to_owned(),
    }
}

fn operation(error: &OperationError) -> String {
    match error {
        OperationError { operation: Operation::Get, kind: OperationErrorKind::KeyLength { bytes, format } } => {
            format!("get: {bytes} in {format}")
        }
        OperationError { operation, kind: OperationErrorKind::KeyLength { bytes, .. } } => {
            format!("{operation}: key of {bytes}")
        }
        OperationError { operation, kind: OperationErrorKind::ValueLength { bytes, .. } } => {
            format!("{operation}: value of {bytes}")
        }
        OperationError { kind: OperationErrorKind::Full { .. }, .. } => "full".to_owned(),
        OperationError { kind: OperationErrorKind::NoSpace(space), .. } => {
            format!("no {} chunks", space.chunks)
        }
        OperationError { kind: OperationErrorKind::NarrowVersions { version_bits }, .. } => {
            format!("{version_bits} bits")
        }
        OperationError { operation, kind: OperationErrorKind::ForeignToken } => format!("{operation}: foreign token"),
        OperationError { operation, kind: OperationErrorKind::Destroyed } => format!("{operation}: destroyed"),
        OperationError { kind: OperationErrorKind::Busy { lock, owner, .. }, .. } => busy(*lock, *owner),
        OperationError { kind: OperationErrorKind::Corrupt { item }, .. } => damaged(*item),
        OperationError { kind: OperationErrorKind::Fabric { source }, .. }
        | OperationError { kind: OperationErrorKind::Lost { source }, .. } => fabric(source),
        _ => "later".to_owned(),
    }
}

fn busy(LockId(lock): LockId, owner: Option<OwnerId>) -> String {
    format!("lock {lock} of {owner:?}")
}

fn damaged(item: DamagedItem) -> String {
    match item {
        DamagedItem::Row(RowId(row)) | DamagedItem::Entry { row: RowId(row), .. } => format!("row {row}"),
        DamagedItem::Extent { generation: Generation(generation), .. } => format!("extent of {generation}"),
        DamagedItem::ClientSlot(slot) => format!("slot {slot}"),
        DamagedItem::Lock(LockId(lock)) => format!("lock {lock}"),
    }
}

fn fabric(error: &FabricError) -> String {
    match error {
        FabricError::OutOfBounds { addr, .. } if addr.space() == Space::Main => format!("beyond {}", addr.offset()),
        FabricError::Died { effect: Effect::None } => "died before".to_owned(),
        _ => "later".to_owned(),
    }
}

fn check(stage: Stage, source: &FabricError) -> String {
    if stage == Stage::Rows { fabric(source) } else { stage.to_string() }
}

/// Returns the kind of the error of `result`.
#[track_caller]
fn failed<T>(result: Result<T, Error>) -> String {
    kind(&result.err().expect("a mistake"))
}

#[test]
fn every_error_can_be_matched_on() {
    let (table, store) = Table::create(&CreateOptions::new(100).format("fixed:8:8".parse().unwrap()).max_clients(1));
    let mut client = store.client().unwrap();
    let is_already_exists = Store::create(&table.url, &CreateOptions::new(100));
    let missing: Url = "file:///no/such/directory/table".parse().unwrap();
    let file = |path: &str| Url::file(&PathBuf::from(path)).unwrap();
    let setuid = CreateOptions::new(100).mode(0o4755);
    let read_only = Store::open_with(&table.url, &OpenOptions::default().read_only()).unwrap();
    for (found, wanted) in [
        (failed("redis://host".parse::<Url>().map_err(Error::from)), "scheme redis"),
        (failed("host".parse::<Url>().map_err(Error::from)), "no scheme"),
        (failed(is_already_exists), "taken"),
        (failed(Store::open(&missing)), "open: none"),
        (failed(Store::create(&missing, &CreateOptions::new(100))), "create: no directory"),
        (failed(Store::create(&table.url, &CreateOptions::new(0))), "create: capacity 0"),
        (failed(Store::create(file("/dev/shm/guira-test-mode"), &setuid)), "mode 4755"),
        (failed(Store::open(file("/dev/shm"))), "a directory"),
        (failed(Store::open(file("/etc/passwd"))), "foreign"),
        (failed(store.client()), "1 clients"),
        (failed(read_only.client()), "read only"),
        (failed(client.get(b"short")), "get: 5 in fixed:8:8"),
        (failed(client.put(b"short", &[0; 8])), "put: key of 5"),
        (failed(client.update(&[0; 8], b"long enough?")), "update: value of 12"),
        (failed((0..10_000u64).try_for_each(|i| client.put(&i.to_le_bytes(), &[0; 8]).map(drop))), "full"),
        (failed(Store::destroy(&table.url).and_then(|()| client.put(&[0; 8], &[0; 8]))), "put: destroyed"),
    ] {
        assert_eq!(found, wanted);
    }
    let error = "fixed:0:8".parse::<EntryFormat>().expect_err("no key has 0 bytes there");
    assert_eq!(config(&error), "format fixed:0:8");
    let died = Error::from(OperationError {
        operation: Operation::Put,
        kind: OperationErrorKind::Fabric { source: FabricError::Died { effect: Effect::None } },
    });
    assert_eq!((kind(&died).as_str(), died.blame(), died.effect()), ("died before", Blame::Fabric, Effect::None));
}

/// The parameters of a table that a program may keep.
struct Parameters<'t> {
    config: &'t TableConfig,
    geometry: &'t Geometry,
    superblock: &'t Superblock,
    rows: &'t RowFormat,
    locks: &'t LockLayout,
    placement: &'t Placement,
}

fn parameters(table: &guira::raw::Table) -> Parameters<'_> {
    Parameters {
        config: table.config(),
        geometry: table.geometry(),
        superblock: table.superblock(),
        rows: table.rows(),
        locks: table.locks(),
        placement: table.placement(),
    }
}

#[test]
fn a_tables_parameters_can_be_kept() {
    let (_table, store) = Table::create(&CreateOptions::new(1_000));
    let parameters = parameters(store.table());
    let rules: &Rules = &parameters.config.rules;
    assert_eq!(rules, &parameters.superblock.config.rules);
    assert_eq!(parameters.rows.entry_format(), parameters.config.format);
    let rows: RowPair = parameters.placement.rows(parameters.placement.digest(b"cuckoo"));
    let addr: Addr = parameters.geometry.row(rows.first);
    assert!(addr.space() == Space::Main && addr.offset() < parameters.geometry.main_bytes());
    let lock: LockId = parameters.locks.lock_of(rows.first);
    assert!(lock.0 < parameters.locks.locks());
    let mut client = store.client().unwrap();
    client.put(b"cuckoo", b"Guira guira").unwrap();
    let verbs: VerbCounts = client.traffic().verbs;
    assert!(verbs.writes > 0);
}
