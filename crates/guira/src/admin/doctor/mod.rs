//! Checks of this machine, and of the way to a table, for what a URL needs: [`doctor`].
//!
//! Facts are gathered from the system first ([`rdma::Facts`], [`host::Facts`]), and judged by functions of these facts,
//! so that tests judge machines that nobody has. A table is judged by the error of opening it.
//!
//! Invariants: nothing is changed, and no client slot is taken; every check is one line; a check that is not fine says
//! what helps, unless nothing does.

mod host;
mod rdma;
mod table;

use crate::url::{Backend, NodeAddress, RdmaNode};

use crate::{OpenOptions, Url};

/// Options of [`doctor`].
#[derive(Clone, Debug, Default)]
pub struct DoctorOptions {
    url: Option<Url>,
    open: OpenOptions,
    serve_bytes: Option<u64>,
}

impl DoctorOptions {
    /// Returns the default options: check whether this machine can use RDMA and shared memory.
    #[must_use]
    pub fn new() -> DoctorOptions {
        DoctorOptions::default()
    }

    /// Checks what this table needs instead, and whether it can be opened.
    #[must_use]
    pub fn url(mut self, url: Url) -> DoctorOptions {
        self.url = Some(url);
        self
    }

    /// Sets the options to open the table with: its token, TLS and timeouts. Its owner does not matter.
    #[must_use]
    pub fn open_options(mut self, options: OpenOptions) -> DoctorOptions {
        self.open = options;
        self
    }

    /// Also checks whether this machine can hold a region of this many bytes in shared memory, and serve it over RDMA.
    #[must_use]
    pub fn serve_bytes(mut self, bytes: u64) -> DoctorOptions {
        self.serve_bytes = Some(bytes);
        self
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// It is as it has to be.
    Fine,
    /// Something that is needed does not exist, or is too small.
    Missing,
    /// Something that is needed exists, and does not work.
    Failed,
    /// It is not needed; [`DoctorCheck::detail`] says why, or how it is.
    NotNeeded,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DoctorCheck {
    /// The name of the check, in words: `libibverbs`, `port`.
    pub name: &'static str,
    /// The device, the port or the table that was checked, if there can be several.
    pub subject: Option<String>,
    /// The result.
    pub state: CheckState,
    /// The facts behind the result, in one line. It may contain names that other users chose: see
    /// [`crate::admin::printable`].
    pub detail: String,
    /// A command or another action that helps.
    pub help: Option<String>,
}

/// The result of [`doctor`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DoctorReport {
    /// The checks, each after those that it depends on.
    pub checks: Vec<DoctorCheck>,
}

impl DoctorReport {
    /// Whether every check that is needed is fine.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.checks.iter().all(|check| matches!(check.state, CheckState::Fine | CheckState::NotNeeded))
    }
}

impl DoctorCheck {
    fn new(name: &'static str, state: CheckState, detail: impl Into<String>) -> DoctorCheck {
        DoctorCheck { name, subject: None, state, detail: detail.into(), help: None }
    }

    fn fine(name: &'static str, detail: impl Into<String>) -> DoctorCheck {
        DoctorCheck::new(name, CheckState::Fine, detail)
    }

    fn missing(name: &'static str, detail: impl Into<String>) -> DoctorCheck {
        DoctorCheck::new(name, CheckState::Missing, detail)
    }

    fn failed(name: &'static str, detail: impl Into<String>) -> DoctorCheck {
        DoctorCheck::new(name, CheckState::Failed, detail)
    }

    fn not_needed(name: &'static str, detail: impl Into<String>) -> DoctorCheck {
        DoctorCheck::new(name, CheckState::NotNeeded, detail)
    }

    fn of(mut self, subject: impl Into<String>) -> DoctorCheck {
        self.subject = Some(subject.into());
        self
    }

    fn with_help(mut self, help: impl Into<String>) -> DoctorCheck {
        self.help = Some(help.into());
        self
    }
}

/// The parts of a machine that a URL needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Needs {
    rdma: Need,
    shared_memory: Need,
}

/// Whether something is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Needed,
    /// It is not, for this reason.
    NotNeeded(&'static str),
}

impl Needs {
    /// Returns what a table at `url` needs. Without a URL, this machine is asked for everything it can be used for.
    fn of(url: Option<&Url>) -> Needs {
        let Some(url) = url else { return Needs { rdma: Need::Needed, shared_memory: Need::Needed } };
        match url.backend() {
            Ok(Backend::Node(NodeAddress::Rdma(_))) => Needs {
                rdma: Need::Needed,
                shared_memory: Need::NotNeeded("an rdma:// table is in the memory of its node"),
            },
            Ok(Backend::Node(NodeAddress::Tcp(_))) => Needs {
                rdma: Need::NotNeeded("a tcp:// table is reached by an ordinary connection"),
                shared_memory: Need::NotNeeded("a tcp:// table is in the memory of its node"),
            },
            _ => Needs {
                rdma: Need::NotNeeded("a table in a file is reached by the processor"),
                shared_memory: match url.to_string().starts_with("shm://") {
                    true => Need::Needed,
                    false => Need::NotNeeded("the table is in another file system"),
                },
            },
        }
    }
}

/// Checks what a table needs of this machine, and whether the table can be opened; without a URL, whether this machine
/// can use RDMA, as a client and to serve a table, and shared memory. What is found missing or failed is part of the
/// report, which is why this call does not fail. Changes nothing and takes no client slot. Waits for a memory node as
/// long as [`OpenOptions::connect_timeout`].
///
/// ```
/// use guira::admin::{CheckState, DoctorOptions, doctor};
/// use guira::{CreateOptions, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// let options = DoctorOptions::new().url(url.clone());
/// assert!(!doctor(&options).is_fine(), "there is no such table");
/// Store::create(&url, &CreateOptions::new(1_000))?;
/// for check in doctor(&options).checks {
///     println!("{:?} {}: {}", check.state, check.name, check.detail);
///     assert!(matches!(check.state, CheckState::Fine | CheckState::NotNeeded));
/// }
/// # Store::destroy(&url)
/// # }
/// ```
#[must_use]
pub fn doctor(options: &DoctorOptions) -> DoctorReport {
    let needs = Needs::of(options.url.as_ref());
    let host = host::Facts::gather();
    let mut checks = match needs.rdma {
        Need::Needed => {
            let facts = rdma::Facts::gather().of(rdma_node(options.url.as_ref()));
            let mut checks = rdma::checks(&facts, options.serve_bytes);
            checks.extend(host::locked_memory(&host, options.serve_bytes));
            checks
        }
        Need::NotNeeded(reason) => vec![DoctorCheck::not_needed("RDMA", reason)],
    };
    checks.push(match needs.shared_memory {
        Need::Needed => host::shared_memory(&host, options.serve_bytes),
        Need::NotNeeded(reason) => DoctorCheck::not_needed("shared memory", reason),
    });
    if let Some(url) = &options.url {
        checks.extend(table::checks(url, &options.open));
    }
    DoctorReport { checks }
}

/// Returns the node of an `rdma://` URL.
fn rdma_node(url: Option<&Url>) -> Option<&RdmaNode> {
    match url?.backend() {
        Ok(Backend::Node(NodeAddress::Rdma(node))) => Some(node),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_needs_what_reaches_its_table() {
        let needed = |text: Option<&str>| {
            let url = text.map(|text| text.parse::<Url>().unwrap());
            let Needs { rdma, shared_memory } = Needs::of(url.as_ref());
            (rdma == Need::Needed, shared_memory == Need::Needed)
        };
        assert_eq!(needed(None), (true, true));
        assert_eq!(needed(Some("shm://a")), (false, true));
        assert_eq!(needed(Some("file:///tmp/a")), (false, false));
        assert_eq!(needed(Some("tcp://host:7711")), (false, false));
        assert_eq!(needed(Some("rdma://host:7711")), (true, false));
    }

    #[test]
    fn a_report_is_fine_if_all_that_is_needed_is() {
        let report = |states: &[CheckState]| DoctorReport {
            checks: states.iter().map(|state| DoctorCheck::new("x", *state, "")).collect(),
        };
        assert!(report(&[]).is_fine() && report(&[CheckState::Fine, CheckState::NotNeeded]).is_fine());
        for bad in [CheckState::Missing, CheckState::Failed] {
            assert!(!report(&[CheckState::Fine, bad]).is_fine());
        }
    }

    #[test]
    fn a_report_is_an_object_of_checks() {
        let check = DoctorCheck::failed("port", "it is down").of("mlx5_0/1").with_help("check its cable");
        let report = DoctorReport { checks: vec![check, DoctorCheck::not_needed("RDMA", "a \"reason\"")] };
        let text = serde_json::to_string(&report).unwrap();
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!({ "checks": [
            { "name": "port", "subject": "mlx5_0/1", "state": "failed", "detail": "it is down",
              "help": "check its cable" },
            { "name": "RDMA", "subject": null, "state": "not_needed", "detail": "a \"reason\"", "help": null },
        ]});
        assert_eq!(parsed, expected);
    }
}
