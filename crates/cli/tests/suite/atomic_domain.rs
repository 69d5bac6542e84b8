//! Tables that are served by a network card: every command that would reach their file is refused, and changes nothing.

use crate::common::{Table, guira};
use guira_fabric_shm::{Access, Location, ShmRegion};

#[test]
fn a_table_that_a_card_serves_is_refused_by_every_command() {
    let table = Table::new("served", "bytes:64");
    guira(&["put", table.url(), "k", "v"]).expect(0);
    let region = ShmRegion::open(&Location::file(table.path()), Access::ReadWrite).unwrap();
    let before = std::fs::read(table.path()).unwrap();
    let claim = region.claim_for_device().unwrap();
    let by_path = format!("file://{}", table.path());
    for arguments in [
        &["get", table.url(), "k"][..],
        &["get", &by_path, "k"],
        &["put", table.url(), "k", "w"],
        &["dump", table.url()],
        &["stat", table.url()],
        &["check", table.url()],
        &["check", "--repair", table.url()],
        &["destroy", table.url()],
        &["serve", "--listen", "127.0.0.1:0", "--backing", table.url()],
    ] {
        let run = guira(arguments).expect(3);
        assert!(run.stderr.contains("it is being served over RDMA"), "{arguments:?}: {}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    }
    let listed = guira(&["list", "--format", "json"]).expect(0).json();
    let listed = listed["tables"].as_array().unwrap().iter().find(|listed| listed["url"] == table.url()).unwrap();
    assert_eq!(listed["state"], "served_by_device");
    let note = format!("{}: served over RDMA; only the server's rdma:// URL opens it", table.url());
    assert!(guira(&["list"]).expect(0).text().contains(&note));
    let checked = guira(&["doctor", table.url()]).expect(1).text();
    assert!(checked.contains("served over RDMA") && checked.contains("-> use the rdma:// URL"), "{checked}");
    assert_eq!(std::fs::read(table.path()).unwrap(), before);

    drop(claim);
    assert_eq!(guira(&["get", table.url(), "k"]).expect(0).stdout, b"v");
    guira(&["check", table.url()]).expect(0);
    guira(&["destroy", table.url()]).expect(0);
}
