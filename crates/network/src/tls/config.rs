//! The certificates and trusted authorities of each side, from PEM text.

use std::fmt;
use std::sync::Arc;

use rustls::client::{ClientConnection, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ServerConnection};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, ConfigBuilder, ConfigSide, Connection, RootCertStore, ServerConfig, WantsVerifier};

use super::verifier::ClientVerifier;
use super::{Session, TlsConfigError, TlsError, error};

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
        let mut config = builder.with_cert_resolver(identity(chain, key)?);
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
        Ok(TlsClient::new(builder.with_client_cert_resolver(identity(chain, key)?)))
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
    let reason = match &error {
        rustls::Error::InvalidCertificate(wrong) => error::certificate_problem(wrong),
        error => error.to_string(),
    };
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

/// Parses the certificate of this side, those that link it to its authority, and its private key.
fn identity(chain: &[u8], key: &[u8]) -> Result<Arc<SingleCertAndKey>, TlsConfigError> {
    let (chain, key, provider) = (certificates(chain)?, private_key(key)?, provider());
    let certified =
        |chain: &[CertificateDer<'static>]| CertifiedKey::from_der(chain.to_vec(), key.clone_key(), &provider);
    certified(&chain).map(|identity| Arc::new(identity.into())).map_err(|error| {
        let is_of_key = |at: &usize| certified(&chain[*at..=*at]).is_ok();
        let misplaced = matches!(error, rustls::Error::InconsistentKeys(_)).then(|| (1..chain.len()).find(is_of_key));
        match misplaced.flatten() {
            Some(at) => TlsConfigError::Certificate {
                reason: format!(
                    "its certificates are in the wrong order: number {}, which belongs to the key, must come first",
                    at + 1
                ),
            },
            None => own(error),
        }
    })
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let wrong = |reason: String| TlsConfigError::Certificate { reason };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(wrong(format!("there is no certificate in PEM{}", found_instead(pem)))),
        Ok(chain) => Ok(chain),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| TlsConfigError::Key {
        reason: match error {
            // The label of PKCS #8, and the header of older forms.
            _ if contains(pem, b"ENCRYPTED") => {
                "it is encrypted, and there is nobody to ask for the passphrase: write it without one (openssl pkey \
                 -in OLD -out NEW)"
                    .to_owned()
            }
            rustls::pki_types::pem::Error::NoItemsFound => {
                format!("there is no private key in PEM{}", found_instead(pem))
            }
            error => error.to_string(),
        },
    })
}

/// Says what a file contains instead of what it should, if that is a usual mistake.
fn found_instead(bytes: &[u8]) -> &'static str {
    match bytes {
        bytes if contains(bytes, b"PRIVATE KEY-----") => ", but a private key",
        bytes if contains(bytes, b"BEGIN CERTIFICATE REQUEST-----") => ", but a request for a certificate",
        bytes if contains(bytes, b"BEGIN CERTIFICATE-----") => ", but a certificate",
        bytes if contains(bytes, b"PUBLIC KEY-----") => ", but a public key",
        _ => found_in_der(bytes),
    }
}

/// The same for the binary form, DER. Its elements have a tag and a length; the first of a key or a PKCS #12 file is a
/// version, and that of a certificate is a sequence.
fn found_in_der(bytes: &[u8]) -> &'static str {
    let body = match bytes {
        [0x30, 0x82, _, _, body @ ..] | [0x30, 0x81, _, body @ ..] => body,
        [0x30, length, body @ ..] if usize::from(*length) == body.len() => body,
        _ => return "",
    };
    match body {
        [0x02, 0x01, 0x03, ..] => ", but PKCS #12: convert it (openssl pkcs12 -nodes -in OLD -out NEW)",
        [0x02, 0x01, ..] => ", but a key in DER: convert it (openssl pkey -inform DER -in OLD -out NEW)",
        [0x30, ..] => ", but a certificate in DER: convert it (openssl x509 -inform DER -in OLD -out NEW)",
        _ => "",
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands were tried with files of these forms.
    #[test]
    fn binary_forms_are_named_with_the_command_that_converts_them() {
        let long = |body: &[u8]| [&[0x30, 0x82, 3, 2], body].concat();
        for (bytes, command) in [
            (long(&[2, 1, 3, 0x30]), "openssl pkcs12 -nodes "),
            (long(&[2, 1, 0, 0x30]), "openssl pkey -inform DER "),
            (vec![0x30, 0x81, 0x87, 2, 1, 0, 0x30], "openssl pkey -inform DER "),
            (vec![0x30, 4, 2, 1, 1, 4], "openssl pkey -inform DER "),
            (long(&[0x30, 0x82, 1, 9]), "openssl x509 -inform DER "),
        ] {
            assert!(found_instead(&bytes).contains(command), "{bytes:x?}");
        }
        for text in ["", "0", "0123456789abcdef", "garza"] {
            assert_eq!(found_instead(text.as_bytes()), "");
        }
    }
}
