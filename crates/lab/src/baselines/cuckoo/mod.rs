//! k-way cuckoo hashing in a table that is built once and then only read.
//!
//! A key has [`WAYS`] candidate slots, each of one record or of four, and its records are in them. Lookups read all of them
//! at once, or one after the other. Invariant: a record is in a candidate slot of its key.
//!
//! Source: the paper on linear probing with variable-sized READs, sections 2.2, 4.1 and 4.5 (algorithm 3).

mod client;
mod table;

pub use client::{CuckooClient, Probing};
pub use table::{Shape, Table, WAYS};

use std::rc::Rc;

use guira_fabric::heap::HeapRegion;

use crate::baselines::{Ports, Store};

/// A table, and the way in which its clients read the candidates of a key.
#[derive(Clone)]
pub struct CuckooStore {
    table: Table,
    probing: Probing,
}

impl CuckooStore {
    /// Creates the store of clients that read candidates in a way.
    pub fn new(table: Table, probing: Probing) -> CuckooStore {
        CuckooStore { table, probing }
    }
}

impl Store for CuckooStore {
    type Client = CuckooClient;
    type Host = ();
    type Thread = ();

    fn nodes(&self) -> &[HeapRegion] {
        std::slice::from_ref(self.table.region())
    }

    /// Returns a handle to the same bytes, which no client changes.
    fn fork(&self) -> CuckooStore {
        self.clone()
    }

    fn host(&self) {}

    fn thread(&self) {}

    fn client(&self, ports: Ports, number: u32, _host: &Rc<()>, _thread: &Rc<()>) -> CuckooClient {
        CuckooClient::new(ports.verbs, *self.table.shape(), self.probing, number)
    }
}
