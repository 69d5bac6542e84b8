//! Mutual TLS below the protocol of the wire: what was encrypted is a stream of bytes, and nothing above knows.
//!
//! TLS 1.3 alone. A node shows its certificate and wants one of each client; nothing is resumed, so every session is
//! begun by certificates that are valid then. With feature `tls`; without it there are the errors only.
//!
//! Invariants: what is told as sent has left wholly, as whole records: half a record is nothing to its receiver. At
//! most 64 KiB are encrypted and not sent, at most 16 KiB received and not decrypted.

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

/// The two first bytes of a handshake's first record: its type, and a version that is the same in all versions.
const HANDSHAKE: [u8; 2] = [0x16, 0x03];

/// Whether a stream that begins so is TLS.
pub(crate) fn is_handshake(first: &[u8]) -> bool {
    first.starts_with(&HANDSHAKE)
}
