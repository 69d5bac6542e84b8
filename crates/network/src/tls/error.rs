//! Errors of TLS and of its configuration.

use std::io;

/// The reason why a TLS handshake failed, or later data was rejected. Nothing was changed by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The other side does not speak TLS.
    #[error("the other side does not speak TLS")]
    NotSpoken,
    /// The other side sent no certificate.
    #[error("the other side sent no certificate")]
    NoCertificate,
    /// The certificate was not issued by a trusted authority.
    #[error("the other side's certificate was not issued by a trusted authority")]
    UnknownIssuer,
    /// The certificate has expired.
    #[error("the other side's certificate has expired")]
    Expired,
    /// The certificate is not valid yet.
    #[error("the other side's certificate is not valid yet; check the clocks of both machines")]
    NotYetValid,
    /// The certificate is for another name.
    #[error("the other side's certificate is not for the name {name:?}")]
    WrongName {
        /// The name that was expected.
        name: String,
    },
    /// The certificate has no names of hosts: a common name is none.
    #[error(
        "the other side's certificate has no subject alternative name, and a common name does not count: issue one \
         with subjectAltName={}:{name}",
        if name.parse::<std::net::IpAddr>().is_ok() { "IP" } else { "DNS" }
    )]
    NoAlternativeName {
        /// The name that was expected.
        name: String,
    },
    /// The certificate was revoked by its authority.
    #[error("the other side's certificate was revoked")]
    Revoked,
    /// The certificate is not for the role of the other side: a client's certificate must be marked for clients.
    #[error(
        "the other side's certificate is not marked for its role: a client's needs the extended key usage clientAuth, \
         a node's serverAuth"
    )]
    WrongUsage,
    /// The certificate is invalid for any other reason.
    #[error("the other side's certificate cannot be used: {reason}")]
    BadCertificate {
        /// The reason.
        reason: String,
    },
    /// The other side requires a certificate, and this side has none.
    #[error("the other side requires a certificate, but none was sent")]
    CertificateWanted,
    /// The other side did not accept this side's certificate.
    #[error("the other side refused the certificate it was sent: {reason}")]
    CertificateRefused {
        /// The meaning of the other side's alert, and its name.
        reason: String,
    },
    /// The two sides have no version or cipher in common: this side supports only TLS 1.3.
    #[error("the two sides have no TLS version or cipher in common: {reason}")]
    Incompatible {
        /// The missing version or cipher.
        reason: String,
    },
    /// Any other failure, usually bytes that were changed in transit.
    #[error("{reason}")]
    Failed {
        /// The reason.
        reason: String,
    },
}

impl TlsError {
    /// Returns the TLS error that `error` contains, if there is one.
    pub(crate) fn of(error: &io::Error) -> Option<&TlsError> {
        error.get_ref()?.downcast_ref()
    }

    #[cfg(feature = "tls")]
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }
}

/// A certificate or key cannot be used. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// The certificates of the trusted authorities cannot be used.
    #[error("the certificates of the trusted authorities cannot be used: {reason}")]
    Authorities {
        /// The reason.
        reason: String,
    },
    /// The certificate revocation lists cannot be used.
    #[error("the certificate revocation lists cannot be used: {reason}")]
    Revoked {
        /// The reason.
        reason: String,
    },
    /// This side's certificate or its chain cannot be used.
    #[error("the certificate cannot be used: {reason}")]
    Certificate {
        /// The reason.
        reason: String,
    },
    /// The private key cannot be used.
    #[error("the private key cannot be used: {reason}")]
    Key {
        /// The reason.
        reason: String,
    },
}

#[cfg(feature = "tls")]
impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> TlsError {
        use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error};
        // The text may contain bytes from the other side.
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
                Certificate::NotValidForNameContext { expected, presented } => {
                    let name = expected.to_str().into_owned();
                    match presented[..] {
                        [] => TlsError::NoAlternativeName { name },
                        _ => TlsError::WrongName { name },
                    }
                }
                Certificate::Revoked => TlsError::Revoked,
                Certificate::InvalidPurpose | Certificate::InvalidPurposeContext { .. } => TlsError::WrongUsage,
                wrong => TlsError::BadCertificate { reason: certificate_problem(&wrong) },
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
                | Alert::AccessDenied => TlsError::CertificateRefused { reason: refusal(alert) },
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

/// Says why a certificate cannot be used, in words for those who made it.
#[cfg(feature = "tls")]
pub(super) fn certificate_problem(wrong: &rustls::CertificateError) -> String {
    use webpki::Error;

    let cause = match wrong {
        rustls::CertificateError::Other(other) => other.0.downcast_ref::<Error>(),
        _ => None,
    };
    match cause {
        Some(Error::UnsupportedCertVersion) => "it is of X.509 version 1, and only version 3 is supported: issue it \
                                                with extensions, such as the extended key usage"
            .to_owned(),
        Some(Error::CaUsedAsEndEntity) => "it is the certificate of an authority itself (CA:TRUE): let that authority \
                                           issue another one, with basicConstraints=CA:FALSE"
            .to_owned(),
        Some(Error::EndEntityUsedAsCa) => {
            "it was issued by a certificate that is none of an authority (CA:FALSE)".to_owned()
        }
        Some(cause) => guira_fabric::printable(&cause.to_string()),
        // The text may contain bytes from the other side.
        None => guira_fabric::printable(&wrong.to_string()),
    }
}

/// Says what the other side means by an alert about this side's certificate.
#[cfg(feature = "tls")]
fn refusal(alert: rustls::AlertDescription) -> String {
    use rustls::AlertDescription as Alert;

    let meaning = match alert {
        Alert::UnknownCA => "it was not issued by an authority that the other side trusts",
        Alert::CertificateExpired => "it has expired or is not valid yet",
        Alert::CertificateRevoked => "it was revoked",
        Alert::UnsupportedCertificate => {
            "it is not marked for its role: a client's needs the extended key usage clientAuth, a node's serverAuth"
        }
        Alert::DecryptError => "its signature is not that of a trusted authority",
        Alert::AccessDenied => "access is denied",
        _ => "the log of the other side says why",
    };
    format!("{meaning} ({alert:?})")
}
