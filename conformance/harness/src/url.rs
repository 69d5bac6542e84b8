//! A harness for table URLs: texts and paths.

use std::ffi::OsStr;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use guira_url::{Url, UrlError};

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
            let is_without_port = text.starts_with("tcp://") && url.to_string() == format!("{text}:7711");
            assert!(url.to_string() == *text || is_without_port, "{text:?} is shown as {url}");
            assert_eq!(url.to_string().parse::<Url>().as_ref(), Ok(url));
            let is_file = text.starts_with("shm://") || text.starts_with("file:///");
            assert!(is_file || text.strip_prefix("tcp://").is_some_and(|rest| leads_to_node(rest, url)));
        }
        Err(error) => {
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
            let scheme = text.split_once("://").map(|(scheme, _)| scheme);
            match error {
                UrlError::NoScheme { .. } => assert_eq!(scheme, None),
                UrlError::UnknownScheme { scheme: unknown, .. } => assert_eq!(scheme, Some(&unknown[..])),
                UrlError::Name { reason, .. } => assert!(!reason.is_empty()),
                UrlError::Node { .. } => assert_eq!(scheme, Some("tcp")),
                _ => assert!(scheme.is_some()),
            }
        }
    }
    Answer::of(parsed.is_ok())
}

/// Whether `rest` is a host with or without a port, and `url` the URL of that node, at the default port without one.
fn leads_to_node(rest: &str, url: &Url) -> bool {
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !rest.ends_with(']') => (host, port.parse::<u16>()),
        _ => (rest, Ok(7711)),
    };
    let Ok(port) = port else { return false };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match address {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty() && host.chars().all(|c| !c.is_whitespace() && !c.is_control() && !"/?#%\\@:[]".contains(c))
        }
    };
    is_host && Url::tcp(address.unwrap_or(host), port).as_ref() == Ok(url)
}

/// Checks that a name gives the URL of the table with that name, or an error.
fn named(name: &str) {
    if let Ok(url) = Url::shm(name) {
        assert_eq!(url.to_string(), format!("shm://{name}"));
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
                assert_eq!(written.strip_prefix("file://").map(str::as_bytes), Some(&bytes[..]));
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
        "tcp://für.example:7117",
        "tcp://host",
        "tcp://host:0",
        "tcp://host:07117",
        "tcp://::1:7117",
        "tcp://user@host:7117",
        "tcp://ho\0st:7117",
    ];
    let text_seeds = texts.iter().enumerate().map(|(i, text)| (format!("text-{i:02}"), text.as_bytes().to_vec()));
    text_seeds.chain([("path-of-bytes".to_owned(), b"tmp/\xff\xfe".to_vec())]).collect()
}
