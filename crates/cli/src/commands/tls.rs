//! Certificates and keys for memory nodes, from arguments and environment variables.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use clap::Args;
use guira::{ClientTls, NodeTls};

use crate::failure::Failure;

/// Environment variables that stand for the arguments: the workers of a command have them, too.
const CA_VARIABLE: &str = "GUIRA_TLS_CA";
const CERT_VARIABLE: &str = "GUIRA_TLS_CERT";
const KEY_VARIABLE: &str = "GUIRA_TLS_KEY";

/// What the command line of this process says.
static GIVEN: OnceLock<Certificates> = OnceLock::new();

/// TLS between clients and memory nodes.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS, for tcp:// and serve")]
pub struct Certificates {
    /// Encrypt the way to memory nodes, and trust those whose certificate these authorities issued. [env: GUIRA_TLS_CA]
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// The certificate of this program. [env of clients: GUIRA_TLS_CERT]
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in a file that only you may read. [env of clients: GUIRA_TLS_KEY]
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

impl Certificates {
    /// Keeps what was given for the rest of this process.
    pub fn remember(self) {
        // The command line is parsed once.
        let _ = GIVEN.set(self);
    }
}

/// How this client speaks TLS with memory nodes, if it shall.
pub fn of_client() -> Result<Option<ClientTls>, Failure> {
    let given = given();
    let ca = given.tls_ca.or_else(|| variable(CA_VARIABLE));
    let cert = given.tls_cert.or_else(|| variable(CERT_VARIABLE));
    let key = given.tls_key.or_else(|| variable(KEY_VARIABLE));
    match (ca, cert, key) {
        (None, None, None) => Ok(None),
        (Some(ca), None, None) => Ok(Some(ClientTls::new(ca))),
        (Some(ca), Some(cert), Some(key)) => Ok(Some(ClientTls::new(ca).identity(cert, key))),
        (None, ..) => {
            Err(misuse("a certificate or a key is given, and no authority to know nodes by: add --tls-ca FILE"))
        }
        (_, Some(_), None) => Err(misuse("a certificate is given, and not its key: add --tls-key FILE")),
        (_, None, Some(_)) => Err(misuse("a key is given, and not its certificate: add --tls-cert FILE")),
    }
}

/// How a node speaks TLS that takes the certificates which the authorities in `client_ca` issue.
pub fn of_node(client_ca: Option<&Path>) -> Result<Option<NodeTls>, Failure> {
    let Certificates { tls_cert, tls_key, .. } = given();
    match (tls_cert, tls_key, client_ca) {
        (None, None, None) => Ok(None),
        (Some(cert), Some(key), Some(ca)) => Ok(Some(NodeTls::read(&cert, &key, ca).map_err(guira::Error::from)?)),
        _ => {
            Err(misuse("a node speaks TLS with --tls-cert FILE, --tls-key FILE and --tls-client-ca FILE, all of them"))
        }
    }
}

/// Hands what was given on to a copy of this program.
pub fn hand_on(command: &mut Command) {
    let Certificates { tls_ca, tls_cert, tls_key } = given();
    for (variable, path) in [(CA_VARIABLE, tls_ca), (CERT_VARIABLE, tls_cert), (KEY_VARIABLE, tls_key)] {
        if let Some(path) = path {
            command.env(variable, path);
        }
    }
}

fn given() -> Certificates {
    GIVEN.get().cloned().unwrap_or_default()
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn misuse(mistake: &str) -> Failure {
    Failure::Misuse(format!("{mistake}; nothing was changed"))
}
