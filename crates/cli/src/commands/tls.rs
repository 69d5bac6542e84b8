//! TLS certificates and keys for connections to memory nodes, from arguments and environment variables.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use clap::Args;
use guira::{ClientTls, NodeTls};

use crate::failure::Failure;

/// The environment variables for the arguments. Workers of a command inherit them.
const CA_VARIABLE: &str = "GUIRA_TLS_CA";
const CERT_VARIABLE: &str = "GUIRA_TLS_CERT";
const KEY_VARIABLE: &str = "GUIRA_TLS_KEY";

/// The certificates given on the command line of this process.
static GIVEN: OnceLock<Certificates> = OnceLock::new();

/// The TLS options of a command that accepts the URL of a memory node.
#[derive(Clone, Debug, Default, Args)]
pub struct Certificates {
    /// Encrypt connections to memory nodes, and trust a node if one of these authorities issued its certificate. [env:
    /// GUIRA_TLS_CA]
    #[arg(long, value_name = "FILE", help_heading = "TLS, for tcp:// and rdma://")]
    pub tls_ca: Option<PathBuf>,
    /// The client certificate. [env: GUIRA_TLS_CERT]
    #[arg(long, value_name = "FILE", help_heading = "TLS, for tcp:// and rdma://")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in a file that only you may read. [env: GUIRA_TLS_KEY]
    #[arg(long, value_name = "FILE", help_heading = "TLS, for tcp:// and rdma://")]
    pub tls_key: Option<PathBuf>,
}

/// The TLS options of `guira serve`.
#[derive(Clone, Debug, Default, Args)]
pub struct NodeCertificates {
    /// The certificate of the node.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in a file that only you may read.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,
    /// Require TLS 1.3 and a client certificate that one of these authorities issued.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_client_ca: Option<PathBuf>,
    /// Refuse clients whose certificate is on these revocation lists of the authorities.
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "tls_client_ca")]
    pub tls_client_crl: Option<PathBuf>,
}

impl Certificates {
    /// Stores the options for the rest of this process.
    pub fn remember(&self) {
        // The command line is parsed once.
        let _ = GIVEN.set(self.clone());
    }
}

/// Returns the TLS configuration for connections to memory nodes, if there is one.
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
            Err(misuse("a certificate or a key is given without an authority to verify nodes: add --tls-ca FILE"))
        }
        (_, Some(_), None) => Err(misuse("a certificate is given without its key: add --tls-key FILE")),
        (_, None, Some(_)) => Err(misuse("a key is given without its certificate: add --tls-cert FILE")),
    }
}

/// Returns the TLS configuration of a node, if there is one.
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
        _ => Err(misuse("TLS on a node needs all of --tls-cert FILE, --tls-key FILE and --tls-client-ca FILE")),
    }
}

/// Returns the options as words of a command line.
pub fn words() -> Vec<String> {
    let Certificates { tls_ca, tls_cert, tls_key } = given();
    let options = [("--tls-ca", tls_ca), ("--tls-cert", tls_cert), ("--tls-key", tls_key)];
    let words = |(option, path): (&str, Option<PathBuf>)| {
        path.map(|path| [option.to_owned(), path.to_string_lossy().into_owned()])
    };
    options.into_iter().filter_map(words).flatten().collect()
}

/// Passes the options on to a copy of this program.
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
