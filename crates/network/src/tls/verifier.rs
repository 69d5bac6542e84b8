//! The verification of client certificates.
//!
//! Invariant: a certificate that rustls refuses is refused; besides, a certificate must be marked for clients. rustls
//! accepts one without a usage for both sides, so that a node's own certificate would authenticate it as a client.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage};

use super::TlsConfigError;

/// The extended key usage of clients, 1.3.6.1.5.5.7.3.2, without tag and length.
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// The verifier of rustls, with an additional check of the usage.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientVerifier {
    pub(super) fn new(
        provider: &Arc<CryptoProvider>,
        roots: RootCertStore,
        revoked: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<ClientVerifier, TlsConfigError> {
        let roots = Arc::new(roots);
        let has_lists = !revoked.is_empty();
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
            .with_crls(revoked)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| match error {
                rustls::server::VerifierBuilderError::InvalidCrl(_) if has_lists => {
                    TlsConfigError::Revoked { reason: error.to_string() }
                }
                error => TlsConfigError::Authorities { reason: error.to_string() },
            })?;
        Ok(ClientVerifier { inner, roots, algorithms: provider.signature_verification_algorithms })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let usage = KeyUsage::required(CLIENT_AUTH);
        let certificate = EndEntityCert::try_from(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        // Everything else was verified: an error is about the usage.
        certificate
            .verify_for_usage(self.algorithms.all, &self.roots.roots, intermediates, now, usage, None, None)
            .map_err(|_| CertificateError::InvalidPurpose)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
