//! A harness for table URLs: texts and paths.

use std::ffi::OsStr;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use guira::errors::UrlError;
use guira::{RdmaNode, Url};
use guira_network::client::Endpoint;

use super::{Answer, Seed};

/// Decodes a text.
///
/// # Panics
/// If a URL is not formatted as it was parsed, except for an omitted port, or if a mistake is not named.
pub fn url(data: &[u8]) -> Answer {
    paths(data);
    let text = String::from_utf8_lossy(data);
    named(&text);
    let parsed = text.parse::<Url>();
    match &parsed {
        Ok(url) => {
            let (node, query) =
                text.split_once('?').map_or((&*text, String::new()), |(node, query)| (node, format!("?{query}")));
            let is_node = text.starts_with("tcp://") || text.starts_with("rdma://");
            let shown = url.to_string();
            // A zone may be separated by `%25`, and is then shown in another way.
            let is_as_given = match is_node {
                true => shown == *text || shown == format!("{node}:7711{query}") || text.contains('%'),
                false => decoded(shown.as_bytes()) == decoded(text.as_bytes()),
            };
            assert!(is_as_given, "{text:?} is shown as {url}");
            assert_eq!(shown.parse::<Url>().as_ref(), Ok(url));
            let is_file = text.starts_with("shm://") || text.starts_with("file:///");
            let is_of =
                |scheme, leads: fn(&str, &Url) -> bool| text.strip_prefix(scheme).is_some_and(|rest| leads(rest, url));
            assert!(is_file || is_of("tcp://", leads_to_node) || is_of("rdma://", leads_to_rdma_node));
        }
        Err(error) => {
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
            let scheme = text.split_once("://").map(|(scheme, _)| scheme);
            match error {
                UrlError::NoScheme { .. } => assert_eq!(scheme, None),
                UrlError::UnknownScheme { scheme: unknown, .. } => assert_eq!(scheme, Some(&unknown[..])),
                UrlError::Name { reason, .. } => assert!(!reason.is_empty()),
                UrlError::Node { .. } => assert_eq!(scheme, Some("tcp")),
                UrlError::Rdma { reason, .. } => assert!(scheme == Some("rdma") && !reason.is_empty()),
                _ => assert!(scheme.is_some()),
            }
        }
    }
    Answer::of(parsed.is_ok())
}

/// Whether `rest` is a host with or without a port, and `url` the URL of that node, at the default port without one.
fn leads_to_node(rest: &str, url: &Url) -> bool {
    host_and_port(rest).is_some_and(|(host, port)| match host.split_once('%') {
        None => Url::tcp(&host, port).as_ref() == Ok(url),
        Some((address, zone)) => format!("tcp://[{address}%25{zone}]:{port}").parse::<Url>().as_ref() == Ok(url),
    })
}

/// Same as [`leads_to_node`], for a node that is reached over RDMA by the device in the query.
fn leads_to_rdma_node(rest: &str, url: &Url) -> bool {
    let (node, query) = rest.split_once('?').map_or((rest, None), |(node, query)| (node, Some(query)));
    let Some((host, port)) = host_and_port(node) else { return false };
    let mut node = RdmaNode::new(Endpoint::new(&host, port));
    for pair in query.iter().flat_map(|query| query.split('&')) {
        match pair.split_once('=') {
            Some(("dev", name)) => node.device.name = Some(name.to_owned()),
            Some(("port", port)) => node.device.port = port.parse().ok(),
            Some(("gid", index)) => node.device.gid_index = index.parse().ok(),
            _ => return false,
        }
    }
    Url::rdma(&node).as_ref() == Ok(url)
}

/// Splits a host, without brackets, from its port, or the default port. Returns `None` if it is not a host.
fn host_and_port(rest: &str) -> Option<(String, u16)> {
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !rest.ends_with(']') => (host, port.parse::<u16>()),
        _ => (rest, Ok(7711)),
    };
    let port = port.ok()?;
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_plain = |text: &str| {
        !text.is_empty() && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && !"/?#%\\@:[]".contains(c))
    };
    let Some(address) = address else { return is_plain(host).then(|| (host.to_owned(), port)) };
    let (address, zone) = address.split_once('%').map_or((address, None), |(address, zone)| (address, Some(zone)));
    address.parse::<Ipv6Addr>().ok()?;
    let Some(zone) = zone else { return Some((address.to_owned(), port)) };
    let zone = zone.strip_prefix("25").filter(|zone| !zone.is_empty()).unwrap_or(zone);
    (is_plain(zone) && zone.len() < 16).then(|| (format!("{address}%{zone}"), port))
}

/// Replaces `%` and two hexadecimal digits by the byte that they stand for.
fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut bytes, mut at) = (Vec::new(), 0);
    while at < text.len() {
        match (text[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((16 * high + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    bytes
}

/// Checks that a name gives the URL of the table with that name, or an error.
fn named(name: &str) {
    if let Ok(url) = Url::shm(name) {
        let shown = url.to_string();
        assert_eq!(decoded(shown.as_bytes()), format!("shm://{name}").into_bytes());
        assert_eq!(shown.parse(), Ok(url));
        assert!(!name.is_empty() && !name.contains(['/', '\0']));
    }
}

/// Checks that a path gives a URL that leads to it also after formatting and parsing, or an error.
fn paths(data: &[u8]) {
    for bytes in [data.to_vec(), [b"/", data].concat()] {
        let path = Path::new(OsStr::from_bytes(&bytes));
        match Url::file(path) {
            Ok(url) => {
                assert!(path.is_absolute());
                let written = url.to_string();
                assert_eq!(written.strip_prefix("file://").map(|path| decoded(path.as_bytes())), Some(bytes.clone()));
                assert_eq!(written.parse(), Ok(url));
            }
            Err(error) => assert!(!path.is_absolute() || path.to_str().is_none(), "{error}"),
        }
    }
}

/// Returns seeds: URLs of every kind, and mistakes.
pub(super) fn seeds() -> Vec<Seed> {
    let longest = format!("shm://{}", "n".repeat(200));
    let texts = [
        "shm://cache",
        "shm://a.b-c_d",
        "file:///var/tmp/table",
        "file:///dev/hugepages/x y",
        "file:///für/été",
        "file:///",
        longest.as_str(),
        "shm://",
        "shm://a/b",
        "shm://..",
        "shm://a\0b",
        "file://table",
        "file:///a\0b",
        "smh://cache",
        "cache",
        "://",
        "tcp://localhost:7117",
        "tcp://10.0.0.7:65535",
        "tcp://[fe80::1]:1",
        "tcp://[fe80::1%25eth0]:1",
        "tcp://[fe80::1%eth0]",
        "file:///my%20tables/a",
        "file:///a%zz%2",
        "file:///%ff",
        "tcp://für.example:7117",
        "tcp://host",
        "tcp://host:0",
        "tcp://host:07117",
        "tcp://::1:7117",
        "tcp://user@host:7117",
        "tcp://ho\0st:7117",
        "rdma://localhost",
        "rdma://für.example:7117",
        "rdma://[fe80::1]:1?dev=mlx5_0&port=2&gid=3",
        "rdma://host?dev=rxe0",
        "rdma://host?gid=1&dev=rxe0",
        "rdma://host?",
        "rdma://host?card=1",
    ];
    let text_seeds = texts.iter().enumerate().map(|(i, text)| (format!("text-{i:02}"), text.as_bytes().to_vec()));
    text_seeds.chain([("path-of-bytes".to_owned(), b"tmp/\xff\xfe".to_vec())]).collect()
}
