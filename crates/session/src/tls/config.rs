//! The certificates and trusted authorities of each side, from PEM text.

use std::fmt;
use std::sync::Arc;

use rustls::client::{ClientConnection, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ServerConnection};
use rustls::version::TLS13;
use rustls::{ClientConfig, ConfigBuilder, ConfigSide, Connection, RootCertStore, ServerConfig, WantsVerifier};

use super::verifier::ClientVerifier;
use super::{Session, TlsConfigError, TlsError};

/// The TLS configuration of a node: its certificate, and the authorities of its clients. Clones share it.
#[derive(Clone)]
pub struct TlsServer(Arc<ServerConfig>);

/// The TLS configuration of a client: the authorities of its nodes, and its certificate. Clones share it.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsServer {
    /// Creates the configuration of a node that presents the first certificate of `chain`, which the others link to its
    /// authority, and accepts certificates that an authority of `client_ca` issued for clients (extended key usage
    /// `clientAuth`). `key` is the private key: PKCS #8, SEC 1 or PKCS #1. All are PEM text.
    ///
    /// # Errors
    /// [`TlsConfigError`] for the input that cannot be used.
    pub fn from_pem(chain: &[u8], key: &[u8], client_ca: &[u8]) -> Result<TlsServer, TlsConfigError> {
        TlsServer::with_revoked(chain, key, client_ca, &[])
    }

    /// Same as [`TlsServer::from_pem`], but refuses certificates that are in a list of `revoked`, or whose chain is:
    /// certificate revocation lists of the authorities, as PEM text that is empty or has at least one list.
    /// Certificates in no list count as not revoked; a list stays valid after its next update is due.
    ///
    /// # Errors
    /// [`TlsConfigError`] for the input that cannot be used.
    pub fn with_revoked(
        chain: &[u8],
        key: &[u8],
        client_ca: &[u8],
        revoked: &[u8],
    ) -> Result<TlsServer, TlsConfigError> {
        let provider = provider();
        let verifier = ClientVerifier::new(&provider, authorities(client_ca)?, revocation_lists(revoked)?)?;
        let builder =
            only_tls13(ServerConfig::builder_with_provider(provider))?.with_client_cert_verifier(Arc::new(verifier));
        let mut config = builder.with_single_cert(certificates(chain)?, private_key(key)?).map_err(own)?;
        // A resumed session would not present its certificate again, which may have expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsServer(Arc::new(config)))
    }

    /// Creates the node's side of a connection.
    pub(crate) fn session(&self) -> Result<Session, TlsError> {
        let connection = ServerConnection::new(Arc::clone(&self.0))?;
        Ok(Session::new(Connection::Server(connection)))
    }
}

impl TlsClient {
    /// Creates the configuration of a client that accepts certificates which an authority of `ca` issued for the node's
    /// name or address, and has no certificate itself. `ca` is PEM text.
    ///
    /// # Errors
    /// [`TlsConfigError::Authorities`].
    pub fn from_pem(ca: &[u8]) -> Result<TlsClient, TlsConfigError> {
        let builder = only_tls13(ClientConfig::builder_with_provider(provider()))?;
        Ok(TlsClient::new(builder.with_root_certificates(authorities(ca)?).with_no_client_auth()))
    }

    /// Same as [`TlsClient::from_pem`], but presents the first certificate of `chain`, whose private key is `key`.
    ///
    /// # Errors
    /// [`TlsConfigError`] for the input that cannot be used.
    pub fn with_identity(ca: &[u8], chain: &[u8], key: &[u8]) -> Result<TlsClient, TlsConfigError> {
        let builder = only_tls13(ClientConfig::builder_with_provider(provider()))?;
        let builder = builder.with_root_certificates(authorities(ca)?);
        builder.with_client_auth_cert(certificates(chain)?, private_key(key)?).map(TlsClient::new).map_err(own)
    }

    fn new(mut config: ClientConfig) -> TlsClient {
        config.resumption = Resumption::disabled();
        TlsClient(Arc::new(config))
    }

    /// Creates the client's side of a connection to the node `host`.
    pub(crate) fn session(&self, host: &str) -> Result<Session, TlsError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::WrongName { name: host.to_owned() })?;
        let connection = ClientConnection::new(Arc::clone(&self.0), name)?;
        Ok(Session::new(Connection::Client(connection)))
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer(..)")
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsClient(..)")
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn only_tls13<S: ConfigSide>(
    builder: ConfigBuilder<S, rustls::WantsVersions>,
) -> Result<ConfigBuilder<S, WantsVerifier>, TlsConfigError> {
    builder.with_protocol_versions(&[&TLS13]).map_err(own)
}

/// Converts an error of rustls about this side's certificate and key.
fn own(error: rustls::Error) -> TlsConfigError {
    let reason = error.to_string();
    match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsConfigError::Key { reason: "it does not match the certificate".to_owned() }
        }
        rustls::Error::General(_) => TlsConfigError::Key { reason },
        _ => TlsConfigError::Certificate { reason },
    }
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, TlsConfigError> {
    let wrong = |reason: String| TlsConfigError::Authorities { reason };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|error| wrong(error.to_string()))?).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() { Err(wrong("there is no certificate in PEM".to_owned())) } else { Ok(roots) }
}

fn revocation_lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsConfigError> {
    let wrong = |reason: String| TlsConfigError::Revoked { reason };
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem).collect();
    match lists {
        Ok(lists) if lists.is_empty() && !pem.is_empty() => Err(wrong("there is no revocation list in PEM".to_owned())),
        Ok(lists) => Ok(lists),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let wrong = |reason: String| TlsConfigError::Certificate { reason };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(wrong("there is no certificate in PEM".to_owned())),
        Ok(chain) => Ok(chain),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            TlsConfigError::Key { reason: "there is no unencrypted private key in PEM".to_owned() }
        }
        error => TlsConfigError::Key { reason: error.to_string() },
    })
}
