//! Certificates and keys for memory nodes, from arguments and environment variables.

use std::path::PathBuf;
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

/// TLS with memory nodes, as options of a command that may be given the URL of one.
#[derive(Clone, Debug, Default, Args)]
pub struct Certificates {
    /// Encrypt the connection to the memory node, and trust it if these authorities issued its certificate. [env:
    /// GUIRA_TLS_CA]
    #[arg(long, value_name = "FILE", help_heading = "TLS, for tcp://")]
    pub tls_ca: Option<PathBuf>,
    /// The certificate of this program. [env: GUIRA_TLS_CERT]
    #[arg(long, value_name = "FILE", help_heading = "TLS, for tcp://")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in a file that only you may read. [env: GUIRA_TLS_KEY]
    #[arg(long, value_name = "FILE", help_heading = "TLS, for tcp://")]
    pub tls_key: Option<PathBuf>,
}

/// TLS of a memory node, as options of the command that is one.
#[derive(Clone, Debug, Default, Args)]
pub struct NodeCertificates {
    /// The certificate of this node.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in a file that only you may read.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,
    /// Speak TLS 1.3 only, and let those in whose certificate one of these authorities issued.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_client_ca: Option<PathBuf>,
    /// Let nobody in whose certificate these lists of the authorities revoke.
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "tls_client_ca")]
    pub tls_client_crl: Option<PathBuf>,
}

impl Certificates {
    /// Keeps what was given for the rest of this process.
    pub fn remember(&self) {
        // The command line is parsed once.
        let _ = GIVEN.set(self.clone());
    }
}

/// How this client speaks TLS with memory nodes, if it shall.
pub fn client_tls() -> Result<Option<ClientTls>, Failure> {
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

/// How a node speaks TLS, if it shall.
pub fn node_tls(given: &NodeCertificates) -> Result<Option<NodeTls>, Failure> {
    match (&given.tls_cert, &given.tls_key, &given.tls_client_ca) {
        (None, None, None) => Ok(None),
        (Some(cert), Some(key), Some(ca)) => {
            let made = match &given.tls_client_crl {
                Some(revoked) => NodeTls::read_with_revoked(cert, key, ca, revoked),
                None => NodeTls::read(cert, key, ca),
            };
            Ok(Some(made.map_err(guira::Error::from)?))
        }
        _ => {
            Err(misuse("a node speaks TLS with --tls-cert FILE, --tls-key FILE and --tls-client-ca FILE, all of them"))
        }
    }
}

/// Hands what was given on to a copy of this program.
pub fn pass_on(command: &mut Command) {
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
