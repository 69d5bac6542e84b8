//! Two hosts on one machine: network namespaces, and a router between them that can stop forwarding packets.
//!
//! The router is a network namespace as well, in which the test program runs once more. All namespaces are removed when
//! that program ends, however it ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

/// The environment variable that makes the program the router: it holds the name of the test.
const ROUTER: &str = "GUIRA_TEST_ROUTER";
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// A host. It is removed when this is dropped.
pub struct Host {
    pub addr: Ipv4Addr,
    /// The process that keeps the network namespace alive.
    namespace: Child,
}

/// Two hosts, connected by the router.
pub struct Network {
    pub hosts: [Host; 2],
}

/// Runs `test` as the router between two hosts, or prints why it cannot. The test function `name` must do nothing else.
pub fn with_two_hosts(name: &str, test: impl FnOnce(&Network)) {
    if std::env::var(ROUTER).is_ok_and(|router| router == name) {
        return test(&Network::new());
    }
    let Some(options) = unshare_options() else {
        println!("{name}: NOT RUN: network namespaces need root, or user namespaces, and the programs ip and nsenter");
        return;
    };
    let program = std::env::current_exe().expect("a path");
    let mut router = Command::new("unshare");
    router.args(options).arg("--net").arg(program).args(["--exact", name, "--nocapture", "--quiet"]);
    let status = router.env(ROUTER, name).status().expect("it starts");
    assert!(status.success(), "see its message above");
}

/// Returns the options with which `unshare` creates a namespace, if that is possible.
fn unshare_options() -> Option<&'static [&'static str]> {
    let candidates: [&[&str]; 2] = [&[], &["--map-root-user"]];
    let script = format!("ip link set lo up && nsenter --version && echo 1 > {FORWARDING}");
    let succeeds = |options: &&&[&str]| {
        let mut command = Command::new("unshare");
        command.args(**options).args(["--net", "sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    candidates.iter().find(succeeds).copied()
}

impl Network {
    fn new() -> Network {
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        let network = Network { hosts: [Host::new(1), Host::new(2)] };
        network.heal();
        network
    }

    /// Drops all packets between the hosts from now on, without notice.
    pub fn cut(&self) {
        std::fs::write(FORWARDING, "0").expect("the router is ours");
    }

    /// Forwards packets again.
    pub fn heal(&self) {
        std::fs::write(FORWARDING, "1").expect("the router is ours");
    }
}

impl Host {
    fn new(number: u8) -> Host {
        let mut namespace = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        // It has its namespace when it has printed a line.
        let output = namespace.stdout.as_mut().expect("a pipe");
        BufReader::new(output).read_line(&mut String::new()).expect("a line");
        let (pid, link) = (namespace.id().to_string(), format!("host{number}"));
        let (router, addr) = (Ipv4Addr::new(10, 77, number, 1), Ipv4Addr::new(10, 77, number, 2));
        let pair = ["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid];
        run(Command::new("ip").args(pair));
        run(Command::new("ip").args(["addr", "add", &format!("{router}/24"), "dev", &link]));
        run(Command::new("ip").args(["link", "set", &link, "up"]));
        let host = Host { addr, namespace };
        for line in [
            "link set lo up",
            &format!("addr add {addr}/24 dev eth0"),
            "link set eth0 up",
            &format!("route add default via {router}"),
        ] {
            run(host.command("ip").args(line.split(' ')));
        }
        host
    }

    /// Returns a command that runs a program on this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.namespace.id().to_string(), "--net", "--"]).arg(program);
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.namespace.kill());
        drop(self.namespace.wait());
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
