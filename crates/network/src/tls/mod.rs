//! Mutual TLS below the wire protocol, which does not notice it: an encrypted stream of bytes.
//!
//! Only TLS 1.3. A node presents its certificate and requires one of each client; there is no resumption, so every
//! session starts with certificates that are valid then. Needs feature `tls`; without it this module has only the
//! errors.
//!
//! Invariants: bytes that are reported as sent were sent in complete records, because a receiver ignores an incomplete
//! one. At most 64 KiB are encrypted and not sent, at most 16 KiB received and not decrypted.

#[cfg(feature = "tls")]
mod config;
mod error;
#[cfg(feature = "tls")]
mod session;
#[cfg(feature = "tls")]
mod verifier;

#[cfg(feature = "tls")]
pub use config::{TlsClient, TlsServer};
pub use error::{TlsConfigError, TlsError};

#[cfg(feature = "tls")]
pub(crate) use session::{Received, Session};

/// The first two bytes of a handshake's first record: its type, and a number that is the same in all versions.
const HANDSHAKE: [u8; 2] = [0x16, 0x03];

/// Whether a stream that starts with `first` is TLS.
pub(crate) fn is_handshake(first: &[u8]) -> bool {
    first.starts_with(&HANDSHAKE)
}
