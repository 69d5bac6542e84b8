//! The suites that run on Soft-RoCE: which tests of which programs, with which environment.
//!
//! Invariant: the default suite takes a minute or two; the others are long forms, which run when they are asked for.
//!
//! Proves, with the verbs of a Linux kernel in a virtual machine, over packets that cross a link:
//!
//! - READ, WRITE, CAS and FETCH-ADD have the results and the effects that the heap backend gives them, over drawn
//!   batches;
//! - lanes of threads and tasks share a queue pair, full queues and buffers included, and nothing is lost or counted
//!   twice;
//! - a batch out of bounds has no effect, and the queue pair lives on;
//! - after the end of a client's queue pair none of its bytes changes any more, and the client learns which batches may
//!   have had an effect; on a delayed link a WRITE that arrives after the end changes nothing;
//! - the packets that the device counts are the messages that a lane counts; a forked child is refused; errors of
//!   devices, ports, addresses and locked memory say what is wrong;
//! - stores over `rdma://` (module `rdma` of crates/guira): a node of another fabric, a peer that vanishes at any
//!   message of the exchange, and a table that processes of the machine have open are typed errors. A client whose
//!   WRITE is on its way when it is fenced or kicked changes no byte by it, learns of the fence once, and goes on;
//! - tables that grow (`rdma::growth`): parts of the memory are registered once, when they are reserved or touched; a
//!   client that knows none of them finds all keys, as do readers and, between two nodes, local clients, which let the
//!   table grow as well; a limit of memory or of locked memory is an error without effect; a node that lies about parts
//!   is found out.
//!
//! With `GUIRA_TEST_FABRIC=rdma` the tests of memory nodes use RDMA instead of TCP. Those that do not apply say so:
//! batches do not travel on the connections that a proxy cuts or delays (`only_operations_without_effect_are_repeated`,
//! `lookups_survive_lost_connections`, `a_slow_node_blocks_no_executor`), clients do not share a table with clients
//! that map it (`keys_with_combined_changes_are_linearizable`), the node's threads execute nothing that could be unfair
//! (`fairness`), and Soft-RoCE works in the first network namespace only (`partition`).
//!
//! Cannot show: anything about network cards, or about speed.

/// Tests with a name.
#[derive(Debug)]
pub struct Suite {
    pub name: &'static str,
    pub runs: &'static [Run],
}

/// One start of each of some programs.
#[derive(Debug)]
pub enum Run {
    /// Test programs.
    Tests {
        package: &'static str,
        /// The name of the test program; `None` for all of the package, and its unit tests.
        program: Option<&'static str>,
        /// Parts of names of the tests to run; empty for all.
        tests: &'static [&'static str],
        /// Variables of the environment, as `NAME=VALUE`.
        environment: &'static [&'static str],
    },
    /// A script, which ends with a line as that of a test program, and uses the program `guira`.
    Script { name: &'static str },
}

const FABRIC_VERBS: &str = "guira-fabric-verbs";
const CONFORMANCE: &str = "guira-conformance";
const GUIRA: &str = "guira";
/// The package of the program `guira`.
pub const CLI: &str = "guira-cli";
/// The packages whose test programs are built.
pub const PACKAGES: [&str; 3] = [FABRIC_VERBS, CONFORMANCE, GUIRA];
const SUITE: Option<&str> = Some("suite");
/// Makes the tests of memory nodes use RDMA instead of TCP.
const OVER_RDMA: &str = "GUIRA_TEST_FABRIC=rdma";
/// Tests of memory nodes that are part of the default suite.
const NODE_SHARE: &[&str] = &[
    "node::a_table_of_a_node_works_like_one_in_a_file",
    "node::operations_take_no_additional_round_trips",
    "node::clients_go_on_when_their_node_is_back",
    "node::a_fenced_client_learns_of_it_once",
];
const CONFORMANCE_TESTS: &[&str] = &["properties::a_table_over_rdma_is_a_map", "counts::"];

/// The default suite, and those that run when they are named and in the long form.
static SUITES: [Suite; 5] = [
    Suite {
        name: "default",
        runs: &[
            Run::Tests { package: FABRIC_VERBS, program: None, tests: &[], environment: &[] },
            Run::Tests { package: GUIRA, program: SUITE, tests: &["rdma::"], environment: &[] },
            Run::Tests { package: GUIRA, program: SUITE, tests: NODE_SHARE, environment: &[OVER_RDMA] },
        ],
    },
    Suite {
        name: "conformance",
        runs: &[
            Run::Tests { package: CONFORMANCE, program: SUITE, tests: CONFORMANCE_TESTS, environment: &[] },
            Run::Tests { package: GUIRA, program: SUITE, tests: &["node::"], environment: &[OVER_RDMA] },
        ],
    },
    Suite {
        name: "kills",
        runs: &[Run::Tests {
            package: GUIRA,
            program: SUITE,
            tests: &["histories::histories_over_rdma_are_linearizable"],
            environment: &["GUIRA_LONG=1"],
        }],
    },
    Suite {
        name: "fence",
        runs: &[
            Run::Tests { package: FABRIC_VERBS, program: Some("rxe"), tests: &["end::"], environment: &[] },
            Run::Tests { package: GUIRA, program: SUITE, tests: &["rdma::fence::"], environment: &[] },
        ],
    },
    Suite { name: "ycsb", runs: &[Run::Script { name: "ycsb.sh" }] },
];

/// The selected suites, and the part of names to which tests are restricted.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'n> {
    /// The default suite.
    Default,
    /// The tests of the default suite whose names contain this.
    Part(&'n str),
    /// One suite.
    Named(&'static Suite),
    /// All suites.
    Long,
}

impl<'n> Selection<'n> {
    /// The selection that `--only NAME` asks for: a suite, or tests of the default suite.
    pub fn of(name: &'n str) -> Selection<'n> {
        match SUITES.iter().find(|suite| suite.name == name) {
            Some(suite) => Selection::Named(suite),
            None => Selection::Part(name),
        }
    }

    pub fn suites(self) -> &'static [Suite] {
        match self {
            Selection::Default | Selection::Part(_) => &SUITES[..1],
            Selection::Named(suite) => std::slice::from_ref(suite),
            Selection::Long => &SUITES,
        }
    }

    /// The part of its name that each test has.
    pub fn part(self) -> Option<&'n str> {
        match self {
            Selection::Part(part) => Some(part),
            Selection::Default | Selection::Named(_) | Selection::Long => None,
        }
    }
}
