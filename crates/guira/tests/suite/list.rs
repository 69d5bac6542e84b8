//! The list of the tables of this host: `guira::admin::list`.

use guira::admin::{ClientCounts, ListedState, ListedTable};
use guira::{CreateOptions, OpenOptions, Store};

use crate::common::Table;

fn listed(table: &Table) -> Option<ListedTable> {
    guira::admin::list().expect("a directory").into_iter().find(|listed| listed.url == table.url)
}

#[test]
fn a_table_is_listed_with_its_properties() {
    let (table, store) = Table::create(&CreateOptions::new(1_000).mode(0o640).max_clients(7));
    let mut clients = [store.client().expect("a slot"), store.client().expect("a slot")];
    clients[0].put(b"cuckoo", b"Guira guira").expect("room");
    let before = store.stat().expect("a table");
    let found = listed(&table).expect("the table is listed");
    let (url, file) = (table.url.clone(), before.region.file().expect("a file").clone());
    assert_eq!(
        (found.url, found.mode, found.file_bytes, found.owner_uid),
        (url, 0o640, file.file_bytes, file.owner_uid)
    );
    let ListedState::Table(seen) = found.state else { panic!("{:?}", found.state) };
    assert_eq!((seen.entries, seen.entries_error, seen.capacity), (1, 0, store.table().config().max_entries()));
    assert_eq!((seen.max_clients, seen.created_unix_ns), (7, file.created_unix_ns));
    assert_eq!((seen.clients.live, seen.clients.dead, seen.clients.unknown), (2, 0, 0));
    let after = store.stat().expect("a table");
    let slots = |stat: &guira::admin::Stat| stat.clients.iter().map(|c| (c.slot, c.generation)).collect::<Vec<_>>();
    assert_eq!(slots(&before), slots(&after), "no slot was taken meanwhile");
    drop(clients);
    let ListedState::Table(seen) = listed(&table).expect("the table is listed").state else { panic!("a table") };
    assert_eq!(seen.clients, ClientCounts::default());
    Store::destroy(&table.url).expect("the table exists");
    assert!(listed(&table).is_none());
}

/// A large table is not read completely: its entries are estimated from a sample, with an error.
#[test]
fn a_large_table_is_sampled() {
    let (table, store) = Table::create(&CreateOptions::new(100_000).format("fixed:8:8".parse().expect("a format")));
    let mut client = store.client().expect("a slot");
    for i in 0..20_000_u64 {
        client.put(&i.to_le_bytes(), &i.to_le_bytes()).expect("room");
    }
    let ListedState::Table(seen) = listed(&table).expect("the table is listed").state else { panic!("a table") };
    assert!(seen.entries_error > 0, "{seen:?}");
    // Three times the error that 95 of 100 samples stay within.
    assert!(seen.entries.abs_diff(20_000) <= 3 * seen.entries_error, "{seen:?}");
    let read_only = Store::open_with(&table.url, &OpenOptions::default().read_only()).expect("a table");
    assert!(read_only.is_read_only() && !store.is_read_only());
}
