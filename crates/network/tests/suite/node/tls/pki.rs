//! Certificates of authorities, nodes and clients for tests.

use std::net::SocketAddr;

use guira_fabric::Waiting;
use guira_network::client::{ConnectOptions, Endpoint};
use guira_network::node::NodeOptions;
use guira_network::tcp::TcpRegion;
use guira_network::tls::{TlsClient, TlsServer};
use guira_testing::patience;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PKCS_ED25519, date_time_ymd,
};

use crate::common::test_node::{TestNode, heap, options};

/// The host name of the tests' node.
pub const HOST: &str = "127.0.0.1";

/// The validity of a certificate.
#[derive(Clone, Copy, Debug)]
pub enum Valid {
    Now,
    Formerly,
    Later,
}

/// A certificate and its private key, in PEM.
pub struct Identity {
    pub chain: String,
    pub key: String,
}

/// The usage of a certificate.
#[derive(Clone, Copy, Debug)]
pub enum Usage {
    Both,
    Server,
    Unsaid,
}

/// An authority. All authorities have the same name, and each its own key.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = key();
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate that names no host, as those with only a common name.
    pub fn issue_nameless(&self) -> Identity {
        self.signed(CertificateParams::new(Vec::new()).expect("no names"))
    }

    /// Returns the certificate of the authority itself, and its key.
    pub fn itself(&self) -> Identity {
        Identity { chain: self.pem.clone(), key: self.issuer.key().serialize_pem() }
    }

    /// Issues a certificate for `name`.
    pub fn issue(&self, name: &str, valid: Valid) -> Identity {
        self.issue_for(name, valid, Usage::Both)
    }

    /// Same as [`Authority::issue`], for one usage.
    pub fn issue_for(&self, name: &str, valid: Valid, usage: Usage) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.extended_key_usages = match usage {
            Usage::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Unsaid => Vec::new(),
        };
        match valid {
            Valid::Now => {}
            Valid::Formerly => params.not_after = date_time_ymd(2001, 1, 1),
            Valid::Later => params.not_before = date_time_ymd(4000, 1, 1),
        }
        self.signed(params)
    }

    fn signed(&self, params: CertificateParams) -> Identity {
        let key = key();
        let chain = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Identity { chain, key: key.serialize_pem() }
    }
}

/// Generates a key whose signatures all have one length, so that the bytes of a handshake can be counted.
fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).expect("a key")
}

/// Returns the configuration of a node with `identity`, whose clients have certificates of `clients`.
pub fn server(identity: &Identity, clients: &Authority) -> TlsServer {
    let Identity { chain, key } = identity;
    TlsServer::from_pem(chain.as_bytes(), key.as_bytes(), clients.pem.as_bytes()).expect("a node's certificates")
}

/// Returns the configuration of a client with `identity`, which trusts the nodes of `nodes`.
pub fn client(nodes: &Authority, identity: &Identity) -> TlsClient {
    let Identity { chain, key } = identity;
    let made = TlsClient::with_identity(nodes.pem.as_bytes(), chain.as_bytes(), key.as_bytes());
    made.expect("a client's certificates")
}

/// A node with TLS, and the configuration of its clients.
pub struct TlsNode {
    pub inner: TestNode,
    pub tls: TlsClient,
}

impl TlsNode {
    /// A node over a region on the heap that speaks TLS.
    pub fn start() -> TlsNode {
        TlsNode::with(options())
    }

    pub fn with(options: NodeOptions) -> TlsNode {
        let authority = Authority::new();
        let server = server(&authority.issue(HOST, Valid::Now), &authority);
        let tls = client(&authority, &authority.issue("client", Valid::Now));
        TlsNode { inner: heap(options.tls(server)), tls }
    }

    /// How a client connects to `address`, which leads to the node.
    pub fn options(&self, address: SocketAddr, waiting: Waiting) -> ConnectOptions {
        let options = ConnectOptions::new(Endpoint::new(HOST, address.port())).with_waiting(waiting);
        options
            .with_sample_words(0)
            .with_connect_timeout(patience())
            .with_batch_timeout(patience())
            .with_tls(self.tls.clone())
    }

    pub fn connect(&self, waiting: Waiting) -> TcpRegion {
        TcpRegion::connect(&self.options(self.inner.addr, waiting)).expect("a session")
    }
}
