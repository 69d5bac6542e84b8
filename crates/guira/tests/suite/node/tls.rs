//! Stores over TLS, with nodes that the library serves. [R-SESSION-1]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use guira::errors::{ConnectError, TlsError, TlsFileError};
use guira::{
    Blame, ClientTls, CreateOptions, Effect, Error, NodeTls, OpenError, OpenOptions, ServeOptions, ServerHandle, Store,
    Url,
};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::common::Table;

use super::{exercise, reconnecting};

/// The files that a node and a client read: an authority's certificate, and the certificate and key of each.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes all files anew, signed by a new authority. The client's certificate is valid until the year `until`.
    fn renew(&self, until: i32) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        fs::write(self.path("ca"), params.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, key);
        for (name, until) in [("127.0.0.1", 4000), ("client", until)] {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.not_after = date_time_ymd(until, 1, 1);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            fs::write(self.path(name), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
            let key_path = self.path(&format!("{name}.key"));
            fs::write(&key_path, key.serialize_pem()).unwrap();
            fs::set_permissions(&key_path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }

    fn serve(&self, store: &Store, addr: SocketAddr) -> ServerHandle {
        let tls = NodeTls::read(&self.path("127.0.0.1"), &self.path("127.0.0.1.key"), &self.path("ca")).unwrap();
        store.serve(&ServeOptions::new(addr).threads(1).tls(tls)).unwrap()
    }

    fn of_client(&self) -> ClientTls {
        ClientTls::new(self.path("ca")).identity(self.path("client"), self.path("client.key"))
    }
}

/// Operations take as many round trips as without TLS, and clients go on with renewed certificates, because the files
/// are read whenever a session begins.
#[test]
fn stores_reconnect_over_tls_with_renewed_certificates() {
    let files = Files::new();
    files.renew(4000);
    let (_table, local) = Table::create(&CreateOptions::new(8_000).extent_bytes(16 << 20));
    let served = files.serve(&local, "127.0.0.1:0".parse().unwrap());
    let addr = served.local_addrs()[0];
    let remote = Url::tcp("127.0.0.1", addr.port()).unwrap();
    // It would wait forever for a node that it expects to come back.
    let forever = OpenOptions::default().reconnect_timeout(Duration::MAX);
    let store = Store::open_with(&remote, &forever.tls(files.of_client())).unwrap();
    let (mut client, mut reader) = (store.client().unwrap(), store.to_async().reader());
    exercise(&mut client);
    let before = client.traffic();
    assert!(client.get(b"cuckoo").unwrap().is_some());
    assert!(client.update(b"cuckoo", b"Guira").unwrap());
    assert_eq!(client.traffic().since(&before).round_trips, 1 + 2);
    assert!(pollster::block_on(reader.contains(b"cuckoo")).unwrap());

    served.stop().unwrap();
    files.renew(4000);
    let served = files.serve(&local, addr);
    assert_eq!(client.get(b"cuckoo").unwrap().as_deref(), Some(&b"Guira"[..]));
    assert!(client.update(b"cuckoo", b"Piririgua").unwrap());
    assert!(pollster::block_on(reader.contains(b"cuckoo")).unwrap());

    served.stop().unwrap();
    files.renew(2001);
    let served = files.serve(&local, addr);
    let error = client.update(b"cuckoo", b"never").unwrap_err();
    let Error::Open(OpenError::Connect { source, .. }) = &error else { panic!("{error}") };
    let is_refusal = |reason: &TlsError| matches!(reason, TlsError::CertificateRefused { .. });
    assert!(matches!(&**source, ConnectError::Tls { reason, .. } if is_refusal(reason)), "{error}");
    assert_eq!((error.effect(), error.blame()), (Effect::None, Blame::Misuse));
    assert_eq!(local.reader().get(b"cuckoo").unwrap().as_deref(), Some(&b"Piririgua"[..]));
    assert!(served.counters().refused_handshake >= 1);
}

/// A file that is missing or invalid, and a key that others may read, are reported as such when a store is opened.
#[test]
fn unusable_tls_files_are_reported() {
    let files = Files::new();
    files.renew(4000);
    let store = Store::create_unnamed(&CreateOptions::new(1_000)).unwrap();
    let served = files.serve(&store, "127.0.0.1:0".parse().unwrap());
    let url = Url::tcp("127.0.0.1", served.local_addrs()[0].port()).unwrap();
    let open = || Store::open_with(&url, &reconnecting().tls(files.of_client()));
    assert!(open().is_ok());
    let key = files.path("client.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = open().unwrap_err();
    let Error::Open(OpenError::TlsFile(source)) = &error else { panic!("{error}") };
    assert!(matches!(&**source, TlsFileError::Exposed { path, mode: 0o644 } if *path == key), "{error}");
    assert_eq!(error.blame(), Blame::Misuse);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(files.path("ca"), "none").unwrap();
    let error = open().unwrap_err();
    assert!(
        matches!(&error, Error::Open(OpenError::TlsFile(source)) if matches!(**source, TlsFileError::Unusable { .. })),
        "{error}"
    );
    fs::remove_file(&key).unwrap();
    let error = open().unwrap_err();
    assert!(
        matches!(&error, Error::Open(OpenError::TlsFile(source)) if matches!(**source, TlsFileError::Io { .. })),
        "{error}"
    );
    assert!(error.to_string().ends_with("; nothing was changed"), "{error}");
    assert_eq!(served.counters().sessions_opened, 1);
}
