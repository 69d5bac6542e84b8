//! Why there is no TLS between a client and a node.

use std::io;

/// Why a TLS handshake failed, or what came later was not taken for the other side's. Nothing was changed by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// What came is no TLS.
    #[error("the other side does not speak TLS")]
    NotSpoken,
    /// No certificate came.
    #[error("the other side showed no certificate")]
    NoCertificate,
    /// The certificate leads to none of the authorities that are trusted.
    #[error("the other side's certificate was not issued by an authority that is trusted here")]
    UnknownIssuer,
    /// It was valid once.
    #[error("the other side's certificate has expired")]
    Expired,
    /// It will be valid.
    #[error("the other side's certificate is not valid yet")]
    NotYetValid,
    /// It is somebody else's.
    #[error("the other side's certificate is not for the name {name:?}")]
    WrongName {
        /// The name by which the other side was called.
        name: String,
    },
    /// Its authority has revoked it.
    #[error("the other side's certificate was revoked")]
    Revoked,
    /// It is not for this side of a connection: a client's certificate says that it is for clients.
    #[error("the other side's certificate is not for its side of a connection (extended key usage)")]
    WrongUsage,
    /// Anything else is wrong with it.
    #[error("the other side's certificate cannot be used: {reason}")]
    BadCertificate {
        /// What.
        reason: String,
    },
    /// The other side wants a certificate of this one, and was shown none.
    #[error("the other side wants a certificate, and was shown none")]
    CertificateWanted,
    /// The other side does not take this one's certificate.
    #[error("the other side refused the certificate it was shown: {reason}")]
    CertificateRefused {
        /// How it says so.
        reason: String,
    },
    /// Both sides have no way of speaking in common: TLS 1.3 is the only version here.
    #[error("both sides have no version or cipher of TLS in common: {reason}")]
    Incompatible {
        /// What is missing.
        reason: String,
    },
    /// Anything else: bytes that were changed on their way, mostly.
    #[error("{reason}")]
    Failed {
        /// What.
        reason: String,
    },
}

impl TlsError {
    /// The error of TLS that `error` carries, if it is one.
    pub(crate) fn of(error: &io::Error) -> Option<&TlsError> {
        error.get_ref()?.downcast_ref()
    }

    #[cfg(feature = "tls")]
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }
}

/// Certificates and keys that cannot be used. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// The certificates of authorities.
    #[error("the certificates of authorities cannot be used: {reason}")]
    Authorities {
        /// What is wrong.
        reason: String,
    },
    /// The lists of certificates that were revoked.
    #[error("the lists of revoked certificates cannot be used: {reason}")]
    Revoked {
        /// What is wrong.
        reason: String,
    },
    /// This side's own certificate, and those between it and its authority.
    #[error("the certificate cannot be used: {reason}")]
    Certificate {
        /// What is wrong.
        reason: String,
    },
    /// The private key.
    #[error("the private key cannot be used: {reason}")]
    Key {
        /// What is wrong.
        reason: String,
    },
}

#[cfg(feature = "tls")]
impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> TlsError {
        use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error};
        // It may cite what the other side has sent.
        let reason = guira_fabric::printable(&error.to_string());
        match error {
            Error::InvalidMessage(
                rustls::InvalidMessage::InvalidContentType | rustls::InvalidMessage::UnknownProtocolVersion,
            ) => TlsError::NotSpoken,
            Error::NoCertificatesPresented => TlsError::NoCertificate,
            Error::InvalidCertificate(wrong) => match wrong {
                Certificate::UnknownIssuer | Certificate::BadSignature => TlsError::UnknownIssuer,
                Certificate::Expired | Certificate::ExpiredContext { .. } => TlsError::Expired,
                Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => TlsError::NotYetValid,
                Certificate::NotValidForNameContext { expected, .. } => {
                    TlsError::WrongName { name: expected.to_str().into_owned() }
                }
                Certificate::Revoked => TlsError::Revoked,
                Certificate::InvalidPurpose | Certificate::InvalidPurposeContext { .. } => TlsError::WrongUsage,
                _ => TlsError::BadCertificate { reason },
            },
            Error::AlertReceived(alert) => match alert {
                Alert::CertificateRequired => TlsError::CertificateWanted,
                Alert::UnknownCA
                | Alert::BadCertificate
                | Alert::CertificateExpired
                | Alert::CertificateRevoked
                | Alert::CertificateUnknown
                | Alert::UnsupportedCertificate
                | Alert::DecryptError
                | Alert::AccessDenied => TlsError::CertificateRefused { reason: format!("{alert:?}") },
                Alert::ProtocolVersion | Alert::HandshakeFailure | Alert::InsufficientSecurity => {
                    TlsError::Incompatible { reason: format!("the other side says {alert:?}") }
                }
                _ => TlsError::Failed { reason },
            },
            Error::PeerIncompatible(_) => TlsError::Incompatible { reason },
            _ => TlsError::Failed { reason },
        }
    }
}
