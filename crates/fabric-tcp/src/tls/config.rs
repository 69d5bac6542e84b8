//! What each side shows and whom it trusts, from PEM text.

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

/// What a node shows its clients, and whose certificates it takes. Clones share it.
#[derive(Clone)]
pub struct TlsServer(Arc<ServerConfig>);

/// Whose certificates a client takes for a node's, and what it shows. Clones share it.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsServer {
    /// A node that shows the first certificate of `chain`, which the others lead to its authority, and lets those in
    /// whose certificate was issued by an authority of `client_ca` for clients (extended key usage `clientAuth`). `key`
    /// is its private key: PKCS #8, SEC 1 or PKCS #1. All of it is PEM text.
    ///
    /// # Errors
    /// [`TlsConfigError`]: which of them cannot be used.
    pub fn from_pem(chain: &[u8], key: &[u8], client_ca: &[u8]) -> Result<TlsServer, TlsConfigError> {
        TlsServer::with_revoked(chain, key, client_ca, &[])
    }

    /// As [`TlsServer::from_pem`], and lets nobody in whose certificate, or one that leads from it to its authority, is
    /// in a list of `revoked`: certificate revocation lists of the authorities, PEM text, which is empty or has one at
    /// least. What no list tells of counts as not revoked; a list is believed after its next update is due, too.
    ///
    /// # Errors
    /// [`TlsConfigError`]: which of them cannot be used.
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
        // A session that was resumed would not show its certificate again, which may have expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsServer(Arc::new(config)))
    }

    /// The node's side of a connection.
    pub(crate) fn session(&self) -> Result<Session, TlsError> {
        let connection = ServerConnection::new(Arc::clone(&self.0))?;
        Ok(Session::new(Connection::Server(connection)))
    }
}

impl TlsClient {
    /// A client that takes certificates which an authority of `ca` issued, for the name or address by which the node
    /// is called, and shows none itself. PEM text.
    ///
    /// # Errors
    /// [`TlsConfigError::Authorities`].
    pub fn from_pem(ca: &[u8]) -> Result<TlsClient, TlsConfigError> {
        let builder = only_tls13(ClientConfig::builder_with_provider(provider()))?;
        Ok(TlsClient::new(builder.with_root_certificates(authorities(ca)?).with_no_client_auth()))
    }

    /// As [`TlsClient::from_pem`], and shows the first certificate of `chain`, whose private key is `key`.
    ///
    /// # Errors
    /// [`TlsConfigError`]: which of them cannot be used.
    pub fn with_identity(ca: &[u8], chain: &[u8], key: &[u8]) -> Result<TlsClient, TlsConfigError> {
        let builder = only_tls13(ClientConfig::builder_with_provider(provider()))?;
        let builder = builder.with_root_certificates(authorities(ca)?);
        builder.with_client_auth_cert(certificates(chain)?, private_key(key)?).map(TlsClient::new).map_err(own)
    }

    fn new(mut config: ClientConfig) -> TlsClient {
        config.resumption = Resumption::disabled();
        TlsClient(Arc::new(config))
    }

    /// The client's side of a connection to the node that is called `host`.
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

/// What rustls says of one's own certificate and key together.
fn own(error: rustls::Error) -> TlsConfigError {
    let reason = error.to_string();
    match error {
        rustls::Error::InconsistentKeys(_) => TlsConfigError::Key { reason: "it is not the certificate's".to_owned() },
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
