//! The suites that run on Soft-RoCE: which tests of which programs, with which environment.
//!
//! Invariant: the default suite takes a minute or two; the others are long forms, which run when they are asked for.

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
