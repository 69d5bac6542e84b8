//! Where a table is: texts and paths.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use guira::{Url, UrlError};

use super::{Answer, Seed};

/// A text.
///
/// # Panics
/// If a URL is not written as it was read, or a mistake is not named.
pub fn url(data: &[u8]) -> Answer {
    paths(data);
    let text = String::from_utf8_lossy(data);
    named(&text);
    let parsed = text.parse::<Url>();
    match &parsed {
        Ok(url) => {
            assert_eq!(url.to_string(), *text);
            assert_eq!(url.to_string().parse::<Url>().as_ref(), Ok(url));
            assert!(text.starts_with("shm://") || text.starts_with("file:///"));
        }
        Err(error) => {
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
            let scheme = text.split_once("://").map(|(scheme, _)| scheme);
            match error {
                UrlError::NoScheme { .. } => assert_eq!(scheme, None),
                UrlError::UnknownScheme { scheme: unknown, .. } => assert_eq!(scheme, Some(&unknown[..])),
                UrlError::Name { reason, .. } => assert!(!reason.is_empty()),
                _ => assert!(scheme.is_some()),
            }
        }
    }
    Answer::of(parsed.is_ok())
}

/// A name gives the table of that name, or no table at all.
fn named(name: &str) {
    if let Ok(url) = Url::shm(name) {
        assert_eq!(url.to_string(), format!("shm://{name}"));
        assert!(!name.is_empty() && !name.contains(['/', '\0']));
    }
}

/// A path gives a URL that leads to it also when it was written and read again, or none.
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

/// Places of both kinds, and mistakes.
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
    ];
    let text_seeds = texts.iter().enumerate().map(|(i, text)| (format!("text-{i:02}"), text.as_bytes().to_vec()));
    text_seeds.chain([("path-of-bytes".to_owned(), b"tmp/\xff\xfe".to_vec())]).collect()
}
