//! Files with certificates and private keys, in PEM.
//!
//! Invariants: an error's text never contains a key; a key file is refused, like a token file, if it belongs to a user
//! other than this one and root, if any user may read it, or if users other than its owner may change it.

use std::io;
use std::path::PathBuf;

/// A file with certificates or a private key cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFileError {
    /// The operating system refused.
    #[error("cannot {attempt} {}: {source}", path.display())]
    Io {
        /// The attempted action.
        attempt: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// Any user may read the private key, or users other than its owner may change it.
    #[error(
        "the key file {} has mode {mode:o}, so other users may know or change the key; make another key, or use a \
         copy with mode 600",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The private key belongs to a user other than this one and root.
    #[error(
        "the key file {} belongs to user {owner_uid}, who knows the key and can change it; make another key, or \
         use a copy of your own",
        path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// The id of the user who owns it.
        owner_uid: u32,
    },
    /// The file does not contain what it should.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

#[cfg(feature = "tls")]
pub use self::files::{ClientTls, NodeTls};

#[cfg(feature = "tls")]
mod files {
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};

    use guira_network::tls::{TlsClient, TlsConfigError, TlsServer};

    use super::TlsFileError;
    use crate::owners::is_own_or_of_root;
    use crate::serve::token_file::OTHERS_MAY;

    /// The maximum size of a file in bytes: enough for all certificate authorities there are.
    const MAX_FILE_BYTES: u64 = 4 << 20;

    /// The certificate of a memory node, and the authorities whose clients it accepts: [`crate::ServeOptions::tls`].
    /// TLS 1.3.
    #[derive(Clone, Debug)]
    pub struct NodeTls(pub(crate) TlsServer);

    /// The memory nodes that a client trusts, and its own certificate: [`crate::OpenOptions::tls`]. TLS 1.3. The files
    /// are read whenever a session begins, so that certificates can be renewed.
    #[derive(Clone, Debug)]
    pub struct ClientTls {
        ca: PathBuf,
        identity: Option<(PathBuf, PathBuf)>,
    }

    impl NodeTls {
        /// Reads, in PEM, the node's certificate and those that lead to its authority, its private key, and the
        /// authorities that issue client certificates. Client certificates must be marked as such (extended key usage
        /// `clientAuth`).
        ///
        /// # Errors
        /// `Io`; `Owner` if the key belongs to a user other than this one and root; `Exposed` if any user may read it,
        /// or users other than its owner may change it; `Unusable`.
        pub fn read(certificate: &Path, key: &Path, client_ca: &Path) -> Result<NodeTls, TlsFileError> {
            let texts = (read(certificate)?, read_key(key)?, read(client_ca)?);
            let made = TlsServer::from_pem(&texts.0, &texts.1, &texts.2);
            made.map(NodeTls).map_err(|error| unusable(error, client_ca, certificate, key))
        }

        /// Same as [`NodeTls::read`], and refuses certificates in the revocation lists of the file `revoked`: lists of
        /// the authorities, in PEM. A list is valid even after its next update is due.
        ///
        /// # Errors
        /// Same as [`NodeTls::read`].
        pub fn read_with_revoked(
            certificate: &Path,
            key: &Path,
            client_ca: &Path,
            revoked: &Path,
        ) -> Result<NodeTls, TlsFileError> {
            let texts = (read(certificate)?, read_key(key)?, read(client_ca)?, read(revoked)?);
            if texts.3.is_empty() {
                let reason = "there is no revocation list in PEM".to_owned();
                return Err(TlsFileError::Unusable { path: revoked.to_owned(), reason });
            }
            let made = TlsServer::with_revoked(&texts.0, &texts.1, &texts.2, &texts.3);
            made.map(NodeTls).map_err(|error| match error {
                TlsConfigError::Revoked { .. } => unusable(error, revoked, certificate, key),
                error => unusable(error, client_ca, certificate, key),
            })
        }
    }

    impl ClientTls {
        /// Trusts nodes whose certificate was issued by an authority in the file `ca` for the host of their URL.
        pub fn new(ca: impl Into<PathBuf>) -> ClientTls {
            ClientTls { ca: ca.into(), identity: None }
        }

        /// Sets the certificate of the client, in the file `certificate`, which may be followed by those that lead to
        /// its authority, and its private key, in the file `key`. [`NodeTls`] refuses clients without one.
        #[must_use]
        pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> ClientTls {
            self.identity = Some((certificate.into(), key.into()));
            self
        }

        /// Reads the files as they are now.
        pub(crate) fn load(&self) -> Result<TlsClient, TlsFileError> {
            let ca = read(&self.ca)?;
            let Some((certificate, key)) = &self.identity else {
                return TlsClient::from_pem(&ca).map_err(|error| unusable(error, &self.ca, &self.ca, &self.ca));
            };
            let made = TlsClient::with_identity(&ca, &read(certificate)?, &read_key(key)?);
            made.map_err(|error| unusable(error, &self.ca, certificate, key))
        }
    }

    fn unusable(error: TlsConfigError, ca: &Path, certificate: &Path, key: &Path) -> TlsFileError {
        let path = match &error {
            TlsConfigError::Certificate { .. } => certificate,
            TlsConfigError::Key { .. } => key,
            _ => ca,
        };
        TlsFileError::Unusable { path: path.to_owned(), reason: error.to_string() }
    }

    fn read(path: &Path) -> Result<Vec<u8>, TlsFileError> {
        read_to_end(open(path)?, path)
    }

    fn read_key(path: &Path) -> Result<Vec<u8>, TlsFileError> {
        let file = open(path)?;
        // Inspects the opened file, not the path, which may lead elsewhere by now.
        let metadata = file.metadata().map_err(failed("inspect", path))?;
        let (owner_uid, mode) = (metadata.uid(), metadata.mode() & 0o777);
        if !is_own_or_of_root(owner_uid) {
            return Err(TlsFileError::Owner { path: path.to_owned(), owner_uid });
        }
        if mode & OTHERS_MAY != 0 {
            return Err(TlsFileError::Exposed { path: path.to_owned(), mode });
        }
        read_to_end(file, path)
    }

    fn open(path: &Path) -> Result<File, TlsFileError> {
        File::open(path).map_err(failed("open", path))
    }

    fn read_to_end(file: File, path: &Path) -> Result<Vec<u8>, TlsFileError> {
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(failed("read", path))?;
        Ok(bytes)
    }

    fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TlsFileError {
        move |source| TlsFileError::Io { attempt, path: path.to_owned(), source }
    }
}
