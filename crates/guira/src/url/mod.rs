//! URLs of tables: `shm://name`, `file:///path`, `tcp://host:port` or `rdma://host:port`, where the port is optional.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

mod rdma;

use guira_fabric_shm::{Location, ShmError};
use guira_network::client::Endpoint;

pub use rdma::{RdmaDevice, RdmaNode};

/// The URL of a table.
///
/// `shm://name` is a file in `/dev/shm`, visible to every process of this host; `file:///absolute/path` is any file on
/// a local file system, including huge-page mounts and DAX; `tcp://host:port` is the table of the memory node that
/// listens there, where `host` is a name, an IPv4 address, or an IPv6 address in brackets, with its zone if it is
/// link-local (`tcp://[fe80::1%eth0]`, where `%` may be written `%25`). `rdma://host:port` is the
/// table of a memory node whose clients use RDMA; `?dev=NAME&port=N&gid=N` chooses the device of this machine, its port
/// and the index of its GID, each of which may be left out. The default port is 7711, where `guira serve` listens; a
/// URL is always shown with its port. In names and paths, `%` and two hexadecimal digits stand for a byte; a URL is
/// shown with the characters escaped that mean something to a shell, such as `%20` for a space. Two URLs are equal if
/// they are shown the same way.
///
/// ```
/// use std::path::Path;
///
/// use guira::{Url, errors::UrlError};
///
/// # fn main() -> Result<(), UrlError> {
/// assert_eq!("shm://cache".parse(), Url::shm("cache"));
/// assert_eq!(Url::file(Path::new("/var/tmp/cache"))?.to_string(), "file:///var/tmp/cache");
/// assert_eq!(Url::tcp("::1", 7117)?.to_string(), "tcp://[::1]:7117");
/// assert_eq!("tcp://mem1".parse::<Url>()?.to_string(), "tcp://mem1:7711");
/// assert_eq!("rdma://mem1?dev=mlx5_0".parse::<Url>()?.to_string(), "rdma://mem1:7711?dev=mlx5_0");
/// assert!(matches!("cache".parse::<Url>(), Err(UrlError::NoScheme { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url(Kind);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Shm(String),
    File(PathBuf),
    /// Boxed, because most errors contain a URL and should be small.
    Node(Box<NodeAddress>),
    Unnamed,
}

/// The backend that holds a table's memory.
pub(crate) enum Backend<'u> {
    /// A file that processes map into their memory.
    File(Location),
    /// A memory node.
    Node(&'u NodeAddress),
}

/// The address of a memory node, and the fabric to reach it by. Displayed as a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NodeAddress {
    /// A memory node that executes batches of verbs.
    Tcp(Endpoint),
    /// A memory node whose memory is registered with an RDMA device.
    Rdma(RdmaNode),
}

impl NodeAddress {
    /// Returns the endpoint of the node's control connection.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        match self {
            NodeAddress::Tcp(endpoint) => endpoint,
            NodeAddress::Rdma(node) => &node.endpoint,
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Tcp(endpoint) => write!(f, "tcp://{endpoint}"),
            NodeAddress::Rdma(node) => write!(f, "rdma://{node}"),
        }
    }
}

/// The error of parsing a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The scheme is missing.
    #[error(
        "{text:?} is not a table URL: it has no scheme; write shm://NAME, file:///PATH, tcp://HOST:PORT or \
         rdma://HOST:PORT"
    )]
    NoScheme {
        /// The text.
        text: String,
    },
    /// The scheme is unknown.
    #[error(
        "{text:?} is not a table URL: unknown scheme {scheme:?}; write shm://NAME, file:///PATH, tcp://HOST:PORT or \
         rdma://HOST:PORT"
    )]
    UnknownScheme {
        /// The text.
        text: String,
        /// The scheme.
        scheme: String,
    },
    /// The name after `shm://` is invalid.
    #[error("{text:?} is not a table URL: {reason}")]
    Name {
        /// The text.
        text: String,
        /// The reason why it is invalid.
        reason: String,
    },
    /// The path after `file://` is not absolute.
    #[error("{text:?} is not a table URL: the path must be absolute, as in file:///var/tmp/table")]
    RelativePath {
        /// The text.
        text: String,
    },
    /// The part after `tcp://` is not a host with an optional port.
    #[error(
        "{text:?} is not a table URL: write tcp://HOST, tcp://HOST:PORT or tcp://[IPV6]:PORT, without user, path or \
         query"
    )]
    Node {
        /// The text.
        text: String,
    },
    /// The part after `rdma://` is not a host with an optional port, and the choice of a device.
    #[error(
        "{text:?} is not a table URL: {reason}; write rdma://HOST, rdma://HOST:PORT or rdma://[IPV6]:PORT, and \
         behind it ?dev=NAME&port=N&gid=N or a part of that"
    )]
    Rdma {
        /// The text.
        text: String,
        /// The reason why it is invalid.
        reason: String,
    },
    /// The path is not UTF-8, so no URL can name it.
    #[error("{text:?} is not a table URL: the path is not UTF-8")]
    NotText {
        /// The path, with replacement characters for bytes that are not UTF-8.
        text: String,
    },
}

impl Url {
    /// Returns the URL of the table `name` in shared memory. Opens nothing.
    ///
    /// # Errors
    /// `Name` if it is empty, longer than 200 bytes, `.` or `..`, or contains a slash or a NUL.
    pub fn shm(name: &str) -> Result<Url, UrlError> {
        Url::named(name, &format!("shm://{name}"))
    }

    /// Returns the URL of the table `name` in shared memory, which is given as `text`.
    fn named(name: &str, text: &str) -> Result<Url, UrlError> {
        let reason = match Location::shm(name) {
            Ok(_) => return Ok(Url(Kind::Shm(name.to_owned()))),
            Err(ShmError::BadName { reason, .. }) => reason.to_owned(),
            Err(error) => error.to_string(),
        };
        Err(UrlError::Name { text: text.to_owned(), reason })
    }

    /// Returns the URL of the table in the file at `path`, which must be absolute and UTF-8. Opens nothing.
    ///
    /// # Errors
    /// `RelativePath` or `NotText` if the path is not absolute or not UTF-8.
    pub fn file(path: &Path) -> Result<Url, UrlError> {
        if !path.is_absolute() {
            return Err(UrlError::RelativePath { text: path.display().to_string() });
        }
        if path.to_str().is_none() {
            return Err(UrlError::NotText { text: path.display().to_string() });
        }
        Ok(Url(Kind::File(path.to_path_buf())))
    }

    /// Returns the URL of the table of the memory node that listens on `port` of `host`, which is a name or an address;
    /// an IPv6 address has no brackets. Resolves no name.
    ///
    /// # Errors
    /// `Node` if the host is invalid or the port is 0.
    pub fn tcp(host: &str, port: u16) -> Result<Url, UrlError> {
        format!("tcp://{}", Endpoint::new(host, port)).parse()
    }

    /// Returns the URL of the table of the memory node `node`, whose clients use RDMA. Resolves no name and opens no
    /// device.
    ///
    /// # Errors
    /// `Rdma` if the host or the name of the device is invalid, or a port is 0.
    pub fn rdma(node: &RdmaNode) -> Result<Url, UrlError> {
        format!("rdma://{node}").parse()
    }

    /// Returns the URL of a table without a name, in the memory of this process: [`crate::Store::create_unnamed`].
    /// It is shown as `memory://`, cannot be opened, and does not identify a table.
    pub fn unnamed() -> Url {
        Url(Kind::Unnamed)
    }

    /// Whether this is the URL of a table without a name.
    pub fn is_unnamed(&self) -> bool {
        self.0 == Kind::Unnamed
    }

    /// Returns the path of the table's file; `None` for the table of a memory node, or one without a name.
    pub fn path(&self) -> Option<PathBuf> {
        match self.backend() {
            Ok(Backend::File(location)) => Some(location.path().to_owned()),
            _ => None,
        }
    }

    /// Returns the backend that holds the table's memory.
    ///
    /// # Errors
    /// `BadName` for a table without a name.
    pub(crate) fn backend(&self) -> Result<Backend<'_>, ShmError> {
        match &self.0 {
            Kind::Shm(name) => Ok(Backend::File(Location::shm(name)?)),
            Kind::File(path) => Ok(Backend::File(Location::file(path))),
            Kind::Node(node) => Ok(Backend::Node(node)),
            Kind::Unnamed => {
                let reason = "a table without a name is known only to the process that created it";
                Err(ShmError::BadName { name: self.to_string(), reason })
            }
        }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let owned = || text.to_owned();
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(UrlError::NoScheme { text: owned() });
        };
        match scheme {
            "shm" => Url::named(&unescaped(rest, text)?, text),
            "file" if rest.starts_with('/') => Ok(Url(Kind::File(PathBuf::from(unescaped(rest, text)?)))),
            "file" => Err(UrlError::RelativePath { text: owned() }),
            // An endpoint would take these characters as part of a name.
            "tcp" if rest.contains(['?', '#', '\\']) => Err(UrlError::Node { text: owned() }),
            "tcp" => match rest.parse::<Endpoint>() {
                Ok(endpoint) if is_canonical(&endpoint, rest) => {
                    Ok(Url(Kind::Node(Box::new(NodeAddress::Tcp(endpoint)))))
                }
                _ => Err(UrlError::Node { text: owned() }),
            },
            "rdma" => match rdma::parse(rest) {
                Ok(node) => Ok(Url(Kind::Node(Box::new(NodeAddress::Rdma(node))))),
                Err(reason) => Err(UrlError::Rdma { text: owned(), reason }),
            },
            _ => Err(UrlError::UnknownScheme { text: owned(), scheme: scheme.to_owned() }),
        }
    }
}

impl TryFrom<&str> for Url {
    type Error = UrlError;

    fn try_from(text: &str) -> Result<Url, UrlError> {
        text.parse()
    }
}

impl TryFrom<&String> for Url {
    type Error = UrlError;

    fn try_from(text: &String) -> Result<Url, UrlError> {
        text.parse()
    }
}

impl TryFrom<String> for Url {
    type Error = UrlError;

    fn try_from(text: String) -> Result<Url, UrlError> {
        text.parse()
    }
}

impl From<&Url> for Url {
    fn from(url: &Url) -> Url {
        url.clone()
    }
}

/// Whether the port of `endpoint` is not 0, and `text`, from which it was parsed, has it without leading zeros, or not
/// at all.
fn is_canonical(endpoint: &Endpoint, text: &str) -> bool {
    let port = text.rsplit_once(':').filter(|_| !text.ends_with(']')).map(|(_, port)| port);
    endpoint.port() != 0 && port.is_none_or(|port| port == endpoint.port().to_string())
}

/// Replaces `%` and two hexadecimal digits by their byte in a part of the URL `text`.
fn unescaped(part: &str, text: &str) -> Result<String, UrlError> {
    let (mut bytes, mut rest) = (Vec::with_capacity(part.len()), part.as_bytes());
    while let [byte, behind @ ..] = rest {
        let digits =
            behind.first_chunk::<2>().filter(|digits| *byte == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let escaped = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8(bytes).map_err(|_| UrlError::NotText { text: text.to_owned() })
}

/// A name or a path, displayed with the characters escaped that a shell does not take as they are, and `%`.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '-' | '.' | '_' | '~' | '/' | ':' | '@' | '+' | ',' | '=' => f.write_char(c),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => write!(f, "%{:02X}", u32::from(c)),
            c => f.write_char(c),
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Shm(name) => write!(f, "shm://{}", Escaped(name)),
            // Every path of a URL is UTF-8.
            Kind::File(path) => write!(f, "file://{}", Escaped(&path.to_string_lossy())),
            Kind::Node(node) => node.fmt(f),
            Kind::Unnamed => f.write_str("memory://"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_round_trip() {
        for text in ["shm://cache", "shm://a.b-c_d", "file:///var/tmp/table", "file:///dev/hugepages/x%20y"] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), text);
        }
    }

    /// A URL as it is shown can be pasted into a shell, and names the same table.
    #[test]
    fn urls_are_shown_as_a_shell_takes_them() {
        for (text, path, shown) in [
            ("file:///my tables/a", "/my tables/a", "file:///my%20tables/a"),
            ("file:///my%20tables/a", "/my tables/a", "file:///my%20tables/a"),
            ("file:///a%zz%2", "/a%zz%2", "file:///a%25zz%252"),
            ("file:///für/$(x)'", "/für/$(x)'", "file:///für/%24%28x%29%27"),
            ("file:///100%+5", "/100%+5", "file:///100%25+5"),
            ("shm://a b&c", "/dev/shm/a b&c", "shm://a%20b%26c"),
        ] {
            let url: Url = text.parse().unwrap();
            let Backend::File(location) = url.backend().unwrap() else { panic!("{text}") };
            assert_eq!((location.path(), url.to_string().as_str()), (Path::new(path), shown));
            assert_eq!(shown.parse(), Ok(url));
        }
        assert_eq!(Url::shm("a%20b").unwrap().to_string(), "shm://a%2520b", "a name is taken as it is");
        assert_eq!(Url::file(Path::new("/a%20b")).unwrap().to_string(), "file:///a%2520b");
        assert!(matches!("shm://a%2fb".parse::<Url>(), Err(UrlError::Name { .. })));
        assert!(matches!("file:///%ff".parse::<Url>(), Err(UrlError::NotText { .. })));
    }

    #[test]
    fn a_table_without_a_name_cannot_be_opened() {
        let unnamed = Url::unnamed();
        assert!(unnamed.is_unnamed() && !Url::shm("cache").unwrap().is_unnamed());
        assert!(matches!(unnamed.backend(), Err(ShmError::BadName { .. })));
        assert!(matches!(unnamed.to_string().parse::<Url>(), Err(UrlError::UnknownScheme { .. })));
    }

    #[test]
    fn nodes_are_hosts_and_ports() {
        for (text, host, port) in [
            ("tcp://localhost:7117", "localhost", 7117),
            ("tcp://node-1.rack.example:65535", "node-1.rack.example", 65535),
            ("tcp://10.0.0.7:1", "10.0.0.7", 1),
            ("tcp://[::1]:7117", "::1", 7117),
            ("tcp://[fe80::1]:7117", "fe80::1", 7117),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!((url.to_string(), Url::tcp(host, port)), (text.to_owned(), Ok(url)));
        }
        for (text, shown) in [
            ("tcp://host", "tcp://host:7711"),
            ("tcp://host:7711", "tcp://host:7711"),
            ("tcp://10.0.0.7", "tcp://10.0.0.7:7711"),
            ("tcp://[::1]", "tcp://[::1]:7711"),
            ("tcp://[fe80::1%25eth0]:1", "tcp://[fe80::1%eth0]:1"),
            ("tcp://[fe80::1%eth0]", "tcp://[fe80::1%eth0]:7711"),
            ("tcp://[fe80::1%25]", "tcp://[fe80::1%2525]:7711"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse(), Ok(url), "one table has one URL");
        }
        for text in [
            "tcp://",
            "tcp://[::1]:",
            "tcp://::1",
            "tcp://host/",
            "tcp://ho]st",
            "tcp://host:",
            "tcp://:7117",
            "tcp://host:0",
            "tcp://host:07117",
            "tcp://host:65536",
            "tcp://host:+7",
            "tcp://host:x",
            "tcp://::1:7117",
            "tcp://[::1",
            "tcp://[::1:7117",
            "tcp://[host]:7117",
            "tcp://[]:7117",
            "tcp://user@host:7117",
            "tcp://user:secret@host:7117",
            "tcp://host:7117/",
            "tcp://host:7117/table",
            "tcp://host:7117?mode=ro",
            "tcp://host?:7117",
            "tcp://host#:7117",
            "tcp://ho st:7117",
            "tcp://host%31:7117",
            "tcp://[fe80::1%25et%68]:7117",
            "tcp://[fe80::1%e?]:7117",
            "tcp://ho\0st:7117",
            "tcp://ho\u{7f}st:7117",
        ] {
            assert_eq!(text.parse::<Url>(), Err(UrlError::Node { text: text.to_owned() }));
        }
        for (host, port) in [("", 7117), ("host", 0), ("a/b", 7117), ("user@host", 7117), ("not:an:address", 7117)] {
            assert!(matches!(Url::tcp(host, port), Err(UrlError::Node { .. })), "{host:?} {port}");
        }
    }

    #[test]
    fn mistyped_urls_are_errors() {
        let error = |text: &str| text.parse::<Url>().unwrap_err();
        assert!(matches!(error("cache"), UrlError::NoScheme { .. }));
        assert!(matches!(error(""), UrlError::NoScheme { .. }));
        assert!(matches!(error("smh://cache"), UrlError::UnknownScheme { .. }));
        assert!(matches!(error("shm://"), UrlError::Name { .. }));
        assert!(matches!(error("shm://a/b"), UrlError::Name { .. }));
        assert!(matches!(error("shm:///cache"), UrlError::Name { .. }));
        assert!(matches!(error("shm://.."), UrlError::Name { .. }));
        assert!(matches!(error("file://table"), UrlError::RelativePath { .. }));
        assert!(matches!(Url::file(Path::new("table")), Err(UrlError::RelativePath { .. })));
    }
}
