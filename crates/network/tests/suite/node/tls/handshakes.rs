//! Every failure of a TLS handshake between a node and a client: both sides get the reason.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use guira_network::client::{ConnectError, ConnectOptions, Endpoint};
use guira_network::node::{Node, NodeCounters, NodeError};
use guira_network::tcp::BatchExecutor;
use guira_network::tcp::TcpRegion;
use guira_network::tls::{TlsClient, TlsConfigError, TlsError, TlsServer};
use guira_network::wire::{CloseReason, Token};
use guira_testing::patience;

use super::pki::{Authority, HOST, TlsNode, Usage, Valid, client, server};
use crate::common::client::Client;
use crate::common::test_node::{TestNode, heap, heap_region, options};

fn connect(node: &TestNode, host: &str, tls: Option<TlsClient>) -> Result<TcpRegion, ConnectError> {
    let options = ConnectOptions::new(Endpoint::new(host, node.addr.port())).with_connect_timeout(patience());
    TcpRegion::connect(&tls.into_iter().fold(options, ConnectOptions::with_tls))
}

/// Returns the reason that a client gets instead of a session.
#[track_caller]
fn reason(connected: Result<TcpRegion, ConnectError>) -> TlsError {
    match connected {
        Err(ConnectError::Tls { reason, address }) => {
            let text = ConnectError::Tls { reason: reason.clone(), address }.to_string();
            assert!(text.contains(HOST) && text.ends_with("; nothing was changed"), "{text}");
            reason
        }
        other => panic!("{other:?}"),
    }
}

fn refused(counters: &NodeCounters) -> [u64; 3] {
    [counters.refused_plain, counters.refused_tls, counters.refused_handshake]
}

#[test]
fn plain_clients_and_tls_nodes_report_the_mismatch() {
    let node = TlsNode::start();
    let error = connect(&node.inner, HOST, None).unwrap_err();
    assert!(matches!(error, ConnectError::Rejected { reason: CloseReason::TlsRequired, .. }), "{error}");
    assert!(
        error.to_string().contains("requires TLS") && error.to_string().ends_with("nothing was changed"),
        "{error}"
    );
    assert_eq!(refused(&node.inner.handle.counters()), [1, 0, 0]);

    let plain = heap(options());
    assert_eq!(reason(connect(&plain, HOST, Some(node.tls.clone()))), TlsError::NotSpoken);
    assert_eq!(refused(&plain.handle.counters()), [0, 1, 0]);
    assert_eq!(plain.handle.counters().greeted_wrongly, 0);
    assert!(connect(&plain, HOST, None).is_ok() && connect(&node.inner, HOST, Some(node.tls.clone())).is_ok());
}

/// The client refuses certificates that are not valid for the node.
#[test]
fn a_client_trusts_no_other_node() {
    let (authority, other) = (Authority::new(), Authority::new());
    let own = authority.issue("client", Valid::Now);
    let named = "node.example".to_owned();
    let wrong_name = TlsError::WrongName { name: HOST.to_owned() };
    let cases = [
        (other.issue(HOST, Valid::Now), TlsError::UnknownIssuer),
        (authority.issue(HOST, Valid::Formerly), TlsError::Expired),
        (authority.issue(HOST, Valid::Later), TlsError::NotYetValid),
        (authority.issue(&named, Valid::Now), wrong_name),
        (authority.issue_nameless(), TlsError::NoAlternativeName { name: HOST.to_owned() }),
    ];
    for (identity, expected) in cases {
        let node = heap(options().tls(server(&identity, &authority)));
        assert_eq!(reason(connect(&node, HOST, Some(client(&authority, &own)))), expected);
        // The client sends the reason before it closes.
        node.wait_until("a refusal", |now| now.refused_handshake == 1);
        assert_eq!((refused(&node.handle.counters()), node.handle.counters().sessions_opened), ([0, 0, 1], 0));
    }
    let node = heap(options().tls(server(&authority.itself(), &authority)));
    let told = reason(connect(&node, HOST, Some(client(&authority, &own)))).to_string();
    assert!(told.contains("the certificate of an authority itself (CA:TRUE)"), "{told}");
    let node = heap(options().tls(server(&authority.issue("localhost", Valid::Now), &authority)));
    assert!(connect(&node, "localhost", Some(client(&authority, &own))).is_ok(), "names work like addresses");
}

/// The node refuses certificates that are not valid for its clients.
#[test]
fn a_node_trusts_no_other_client() {
    let (authority, other) = (Authority::new(), Authority::new());
    let node = heap(options().tls(server(&authority.issue(HOST, Valid::Now), &authority)));
    let none = TlsClient::from_pem(authority.pem.as_bytes()).unwrap();
    assert_eq!(reason(connect(&node, HOST, Some(none))), TlsError::CertificateWanted);
    let cases = [
        (other.issue("client", Valid::Now), ["UnknownCA", "DecryptError"]),
        (authority.issue("client", Valid::Formerly), ["CertificateExpired"; 2]),
        (authority.issue("client", Valid::Later), ["CertificateExpired", "BadCertificate"]),
        (authority.issue_for("node", Valid::Now, Usage::Server), ["UnsupportedCertificate"; 2]),
        (authority.issue_for("client", Valid::Now, Usage::Unsaid), ["UnsupportedCertificate"; 2]),
    ];
    let tried = cases.len() as u64 + 1;
    for (identity, alerts) in cases {
        let reported = reason(connect(&node, HOST, Some(client(&authority, &identity))));
        let TlsError::CertificateRefused { reason } = &reported else { panic!("{reported}") };
        assert!(alerts.iter().any(|alert| reason.ends_with(&format!(" ({alert})"))), "{reported}");
    }
    assert_eq!(refused(&node.handle.counters()), [0, 0, tried]);
    assert_eq!(node.handle.counters().sessions_opened, 0);
}

/// An invalid handshake, an unfinished one and an unanswered one all end.
#[test]
fn handshakes_end() {
    let node = TlsNode::with(options().greeting_timeout(2 * patience()));
    let mut broken = Client::connect(node.inner.addr);
    broken.stream.write_all(&[0x16, 3, 1, 0, 40, 1, 0, 0, 36]).unwrap();
    broken.stream.write_all(&[0xff; 60]).unwrap();
    let mut said = Vec::new();
    broken.stream.read_to_end(&mut said).unwrap();
    assert_eq!((said[0], refused(&node.inner.handle.counters())), (0x15, [0, 0, 1]), "an alert: {said:x?}");

    let node = TlsNode::with(options().greeting_timeout(Duration::from_millis(300)));
    let mut still = Client::connect(node.inner.addr);
    still.stream.write_all(&[0x16, 3, 1, 0, 40, 1]).unwrap();
    assert_eq!(still.stream.read_to_end(&mut Vec::new()).unwrap(), 0, "there is no session to send a Close over");
    assert_eq!(node.inner.handle.counters().greeted_late, 1);

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let options = ConnectOptions::new(Endpoint::new(HOST, address.port())).with_tls(node.tls.clone());
    let error = TcpRegion::connect(&options.with_connect_timeout(Duration::from_millis(300))).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { timeout_ms: 300, .. }), "{error}");
}

/// A client needs both the certificate and the token.
#[test]
fn a_token_may_be_required_as_well() {
    let token = Token([3, 4]);
    let node = TlsNode::with(options().token(token));
    let options = |tls: bool, token: Option<Token>| {
        let options = ConnectOptions::new(Endpoint::new(HOST, node.inner.addr.port()));
        let options = options.with_connect_timeout(patience());
        let options = if tls { options.with_tls(node.tls.clone()) } else { options };
        token.into_iter().fold(options, ConnectOptions::with_token)
    };
    let rejected = |tls, token| match TcpRegion::connect(&options(tls, token)) {
        Err(ConnectError::Rejected { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(rejected(true, None), CloseReason::Unauthorized);
    assert_eq!(rejected(true, Some(Token([3, 5]))), CloseReason::Unauthorized);
    assert_eq!(rejected(false, Some(token)), CloseReason::TlsRequired);
    assert!(TcpRegion::connect(&options(true, Some(token))).is_ok());
}

/// With TLS a node may listen to other machines.
#[test]
fn a_node_with_tls_may_be_reached_from_elsewhere() {
    let authority = Authority::new();
    let tls = server(&authority.issue(HOST, Valid::Now), &authority);
    let elsewhere = options().listen((Ipv4Addr::UNSPECIFIED, 0).into());
    assert!(matches!(Node::bind(BatchExecutor::new(heap_region()), elsewhere.clone()), Err(NodeError::Exposed { .. })));
    assert!(Node::bind(BatchExecutor::new(heap_region()), elsewhere.tls(tls)).is_ok());
}

/// A certificate of X.509 version 1, as `openssl x509 -req` makes it without extensions.
const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIHeMIGRAhQaeq7A0DQALWvuMAJKeF5rbhCnJDAFBgMrZXAwETEPMA0GA1UEAwwG
Y2xpZW50MCAXDTI2MTEyODA3MzA1MloYDzIxMjYxMTA0MDczMDUyWjARMQ8wDQYD
VQQDDAZjbGllbnQwKjAFBgMrZXADIQCkKMKsA4Lz9mD3XiJnmgTSB1J38t3KRoqp
+WTc1cgbgTAFBgMrZXADQQCwv97QRKrQJalzkxmcCCNMFp199ZCMpB9N+JviC1iV
T4lGnw4iP8keChNbAjL81Gdo9m0rhEDYVDS3GDJK9GQI
-----END CERTIFICATE-----
";

/// The usual mistakes with files are named in words for those who made the files.
#[test]
fn usual_mistakes_with_files_are_explained() {
    let authority = Authority::new();
    let own = authority.issue(HOST, Valid::Now);
    let (ca, chain, key) = (authority.pem.as_str(), own.chain.as_str(), own.key.as_str());
    let told = |chain: &str, key: &str| {
        let made = TlsClient::with_identity(ca.as_bytes(), chain.as_bytes(), key.as_bytes());
        made.map(|_| ()).unwrap_err().to_string()
    };
    let pkcs_8 = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let sec_1 = key.replace("PRIVATE KEY-----\n", "EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,00\n\n");
    for encrypted in [pkcs_8, sec_1] {
        assert!(told(chain, &encrypted).contains("it is encrypted"), "{}", told(chain, &encrypted));
    }
    assert!(told(VERSION_1, key).contains("X.509 version 1"), "{}", told(VERSION_1, key));
    let swapped = [told(key, key), told(chain, chain)];
    assert!(swapped[0].ends_with("but a private key") && swapped[1].ends_with("but a certificate"), "{swapped:?}");
    let order = told(&format!("{ca}{chain}"), key);
    assert!(order.contains("wrong order: number 2, which belongs to the key, must come first"), "{order}");
    let windows = [ca, chain, key].map(|text| text.replace('\n', "\r\n"));
    let [ca, chain, key] = windows.each_ref().map(String::as_bytes);
    assert!(TlsClient::with_identity(ca, chain, key).is_ok() && TlsServer::from_pem(chain, key, ca).is_ok());
}

#[test]
fn invalid_files_are_reported_by_their_role() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (own, foreign) = (authority.issue(HOST, Valid::Now), other.issue(HOST, Valid::Now));
    let (ca, chain, key) = (authority.pem.as_bytes(), own.chain.as_bytes(), own.key.as_bytes());
    let broken = own.chain.replace("M", "N");
    let of_server = |chain, key, ca| TlsServer::from_pem(chain, key, ca).map(|_| ()).unwrap_err();
    let of_client = |ca, chain, key| TlsClient::with_identity(ca, chain, key).map(|_| ()).unwrap_err();
    for bad in [b"".as_slice(), b"no PEM", key, broken.as_bytes()] {
        assert!(matches!(of_server(chain, key, bad), TlsConfigError::Authorities { .. }));
        assert!(matches!(of_client(bad, chain, key), TlsConfigError::Authorities { .. }));
        assert!(matches!(TlsClient::from_pem(bad), Err(TlsConfigError::Authorities { .. })));
    }
    for bad in [b"".as_slice(), b"no PEM", key] {
        assert!(matches!(of_server(bad, key, ca), TlsConfigError::Certificate { .. }));
        assert!(matches!(of_client(ca, bad, key), TlsConfigError::Certificate { .. }));
    }
    for bad in [b"".as_slice(), b"no PEM", chain, foreign.key.as_bytes()] {
        assert!(matches!(of_server(chain, bad, ca), TlsConfigError::Key { .. }));
        assert!(matches!(of_client(ca, chain, bad), TlsConfigError::Key { .. }));
    }
}
