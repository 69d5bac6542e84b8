//! Two hosts on one machine: network namespaces, and a router between them that may stop to forward packets.
//!
//! The router is a namespace of its own, too, in which the test program starts itself again. Everything goes when that
//! program ends, however it ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

/// What the program that plays the router is told: the name of its test.
const STAGE: &str = "GUIRA_TEST_STAGE";
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// One host.
pub struct Host {
    pub addr: Ipv4Addr,
    holder: Child,
}

/// Two of them, and the router.
pub struct Network {
    pub hosts: [Host; 2],
}

/// Runs `act`, which is all that the test `name` does, as the router between two hosts; or says why it cannot.
pub fn between_two_hosts(name: &str, act: impl FnOnce(&Network)) {
    if std::env::var(STAGE).is_ok_and(|stage| stage == name) {
        return act(&Network::new());
    }
    let Some(unshare) = permitted() else {
        println!("{name}: NOT RUN: network namespaces need root, or user namespaces, and the programs ip and nsenter");
        return;
    };
    let program = std::env::current_exe().expect("a path");
    let mut stage = Command::new("unshare");
    stage.args(unshare).arg("--net").arg(program).args(["--exact", name, "--nocapture", "--quiet"]);
    let status = stage.env(STAGE, name).status().expect("it starts");
    assert!(status.success(), "see its message above");
}

/// How to get a namespace, if that is possible.
fn permitted() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&[], &["--map-root-user"]];
    let script = format!("ip link set lo up && nsenter --version && echo 1 > {FORWARDING}");
    let succeeds = |way: &&&[&str]| {
        let mut command = Command::new("unshare");
        command.args(**way).args(["--net", "sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    ways.iter().find(succeeds).copied()
}

impl Network {
    fn new() -> Network {
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        let network = Network { hosts: [Host::new(1), Host::new(2)] };
        network.mend();
        network
    }

    /// From now on no packet gets from one host to the other, and nobody is told.
    pub fn cut(&self) {
        std::fs::write(FORWARDING, "0").expect("the router is ours");
    }

    /// Packets are forwarded again.
    pub fn mend(&self) {
        std::fs::write(FORWARDING, "1").expect("the router is ours");
    }
}

impl Host {
    fn new(number: u8) -> Host {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        // It has its namespace when it says so.
        let said = holder.stdout.as_mut().expect("a pipe");
        BufReader::new(said).read_line(&mut String::new()).expect("a line");
        let (pid, link) = (holder.id().to_string(), format!("host{number}"));
        let (router, addr) = (Ipv4Addr::new(10, 77, number, 1), Ipv4Addr::new(10, 77, number, 2));
        let pair = ["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid];
        run(Command::new("ip").args(pair));
        run(Command::new("ip").args(["addr", "add", &format!("{router}/24"), "dev", &link]));
        run(Command::new("ip").args(["link", "set", &link, "up"]));
        let host = Host { addr, holder };
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

    /// A program on this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net", "--"]).arg(program);
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
