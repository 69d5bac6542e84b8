//! Linear probing in a table that is built once and then only read.
//!
//! A lookup reads slots from the key's home on, until it sees an empty one: then it has seen all records with the key, of
//! which there may be several. Invariants: a record lies between its home and the first empty slot behind, across the end
//! of the table; there is an empty slot.
//!
//! Source: the paper on linear probing with variable-sized READs, sections 2.1, 3, 4.1 and 4.3 (algorithm 2).

mod client;
pub mod clusters;
pub mod model;
mod table;

pub use client::LinearClient;
pub use table::{Builder, Shape, Table};

use std::cell::RefCell;
use std::rc::Rc;

use guira_fabric::heap::HeapRegion;

use self::clusters::Clusters;
use crate::baselines::{Ports, Store};

/// A table, and the size of the READs of its clients.
#[derive(Clone)]
pub struct LinearStore {
    table: Table,
    read_slots: u64,
    /// The empty set of clusters of a thread.
    clusters: Option<Clusters>,
}

impl LinearStore {
    /// Creates the store of clients that fetch `read_slots` slots by a READ. A READ has at least one slot, and at most the
    /// whole table or what the fabric allows.
    pub fn new(table: Table, read_slots: u64) -> LinearStore {
        let read_slots = read_slots.clamp(1, table.shape().slots);
        LinearStore { table, read_slots, clusters: None }
    }

    /// Lets every thread track clusters, beginning with this set, and choose the size of its READs by them.
    #[must_use]
    pub fn tracking(self, clusters: Clusters) -> LinearStore {
        LinearStore { clusters: Some(clusters), ..self }
    }
}

impl Store for LinearStore {
    type Client = LinearClient;
    type Host = ();
    type Thread = RefCell<Option<Clusters>>;

    fn nodes(&self) -> &[HeapRegion] {
        std::slice::from_ref(self.table.region())
    }

    /// Returns a handle to the same bytes, which no client changes.
    fn fork(&self) -> LinearStore {
        self.clone()
    }

    fn host(&self) {}

    fn thread(&self) -> RefCell<Option<Clusters>> {
        RefCell::new(self.clusters.clone())
    }

    fn client(
        &self,
        ports: Ports,
        _number: u32,
        _host: &Rc<()>,
        thread: &Rc<RefCell<Option<Clusters>>>,
    ) -> LinearClient {
        LinearClient::new(ports.verbs, *self.table.shape(), self.read_slots, Rc::clone(thread))
    }
}
