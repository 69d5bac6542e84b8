//! The part of an `rdma://` URL behind the scheme: a memory node, and the choice of a local device.
//!
//! Invariant: a node has one spelling, except that the default port of the host may be left out, and that the zone of
//! its address may begin with `%25`.

use std::fmt;

use guira_network::client::Endpoint;

use super::is_canonical;

/// Maximum number of bytes of a device's name: the kernel's.
const MAX_DEVICE_BYTES: usize = 63;

/// The choice of an RDMA device of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RdmaDevice {
    /// Its name. Default: the first device.
    pub name: Option<String>,
    /// Its port, from 1. Default: 1.
    pub port: Option<u8>,
    /// The index of the port's GID. Default: the first that fits.
    pub gid_index: Option<u32>,
}

/// A memory node that is reached over RDMA, and the device of this machine to reach it by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RdmaNode {
    /// The host and the port of the node's control connection.
    pub endpoint: Endpoint,
    /// The local device.
    pub device: RdmaDevice,
}

impl RdmaNode {
    /// Returns the node at `endpoint`, to be reached by the default device.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> RdmaNode {
        RdmaNode { endpoint, device: RdmaDevice::default() }
    }
}

impl fmt::Display for RdmaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RdmaNode { endpoint, device: RdmaDevice { name, port, gid_index } } = self;
        write!(f, "{endpoint}")?;
        let mut separator = '?';
        let mut write = |key: &str, value: Option<&dyn fmt::Display>| {
            let Some(value) = value else { return Ok(()) };
            write!(f, "{separator}{key}={value}")?;
            separator = '&';
            Ok(())
        };
        write("dev", name.as_ref().map(|name| name as _))?;
        write("port", port.as_ref().map(|port| port as _))?;
        write("gid", gid_index.as_ref().map(|index| index as _))
    }
}

/// Parses the text behind `rdma://`; the error is the reason why it is invalid.
pub(crate) fn parse(text: &str) -> Result<RdmaNode, String> {
    let (host, query) = text.split_once('?').map_or((text, None), |(host, query)| (host, Some(query)));
    // An endpoint would take these characters as part of a name.
    let endpoint = host.parse::<Endpoint>().ok().filter(|_| !host.contains(['#', '\\', '&', '=']));
    let endpoint = endpoint.filter(|endpoint| is_canonical(endpoint, host));
    let mut node = RdmaNode::new(endpoint.ok_or_else(|| format!("{host:?} is not a host"))?);
    for pair in query.iter().flat_map(|query| query.split('&')) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not KEY=VALUE"))?;
        let wrong = |what: &str| format!("{value:?} is not {what}");
        match key {
            "dev" => node.device.name = Some(device_name(value).ok_or_else(|| wrong("the name of an RDMA device"))?),
            "port" => {
                let port = number(value).filter(|port| *port > 0);
                node.device.port = Some(port.ok_or_else(|| wrong("a port of an RDMA device, 1 to 255"))?);
            }
            "gid" => node.device.gid_index = Some(number(value).ok_or_else(|| wrong("the index of a GID"))?),
            _ => return Err(format!("unknown key {key:?}")),
        }
    }
    let shown = node.to_string();
    // A key that appears twice, another order, or nothing behind the question mark.
    let is_same = shown.split_once('?').map(|(_, query)| query) == query;
    is_same.then_some(node).ok_or_else(|| "its keys are not in this order, or appear twice".to_owned())
}

fn device_name(name: &str) -> Option<String> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let is_name = (1..=MAX_DEVICE_BYTES).contains(&name.len()) && name.bytes().all(is_known);
    is_name.then(|| name.to_owned())
}

/// Parses a decimal number without a sign or leading zeros.
fn number<N: std::str::FromStr + fmt::Display>(text: &str) -> Option<N> {
    text.parse::<N>().ok().filter(|number| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_parsed_and_written() {
        for (text, shown) in [
            ("mem1", "mem1:7711"),
            ("mem1:7000", "mem1:7000"),
            ("[::1]:1?dev=rxe0", "[::1]:1?dev=rxe0"),
            ("[fe80::1%25eth0]:1?dev=rxe0", "[fe80::1%eth0]:1?dev=rxe0"),
            ("10.0.0.1?port=2", "10.0.0.1:7711?port=2"),
            ("mem1?dev=mlx5_bond-0.1&port=255&gid=4294967295", "mem1:7711?dev=mlx5_bond-0.1&port=255&gid=4294967295"),
            ("mem1?dev=a&gid=0", "mem1:7711?dev=a&gid=0"),
        ] {
            let node = parse(text).unwrap();
            assert_eq!(node.to_string(), shown);
            assert_eq!(parse(shown), Ok(node));
        }
    }

    #[test]
    fn other_spellings_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "is not a host"),
            ("mem1:0", "is not a host"),
            ("mem1/table", "is not a host"),
            ("mem1?", "is not KEY=VALUE"),
            ("mem1?dev", "is not KEY=VALUE"),
            ("mem1?dev=", "is not the name of an RDMA device"),
            ("mem1?dev=a/b", "is not the name of an RDMA device"),
            ("mem1?port=0", "is not a port of an RDMA device"),
            ("mem1?port=256", "is not a port of an RDMA device"),
            ("mem1?port=01", "is not a port of an RDMA device"),
            ("mem1?gid=-1", "is not the index of a GID"),
            ("mem1?gid=+1", "is not the index of a GID"),
            ("mem1?device=a", "unknown key \"device\""),
            ("mem1?gid=1&dev=a", "not in this order"),
            ("mem1?dev=a&dev=a", "not in this order, or appear twice"),
            ("mem1?dev=a&", "is not KEY=VALUE"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
