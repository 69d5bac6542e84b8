//! Other processes of a test: this program again, with a role, which talks over its standard input and output.

use std::env;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use guira_fabric::{Addr, MaskedCas, Space, Verb};
use guira_fabric_verbs::{Connecting, ConnectionOptions, Target};
use guira_network::wire::{
    ClientParameters, Grant, Mtu, PacketNumber, QueuePairEndpoint, QueuePairNumber, Segment, TargetParameters,
};

use crate::fixture::{run, with_devices, words};

/// The role of this process; a process without one runs tests.
const ROLE: &str = "GUIRA_RDMA_ROLE";
/// Start of the lines that are meant for the other process; the test program prints others.
const MARK: &str = "@";
/// A user without privileges.
const NOBODY: u32 = 65_534;
/// The limit of locked memory of the role `memlock`.
pub const MEMLOCK_BYTES: u64 = 64 << 10;
/// The bytes that it wants to register for each grant.
pub const WANTED_BYTES: u64 = 1 << 20;

/// Words that a writer writes in each batch: several packets.
pub const WRITER_WORDS: usize = 400;

/// Another process in a role.
pub struct Actor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Actor {
    pub fn start(role: &str) -> Actor {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.args(["--exact", "processes::roles", "--nocapture", "--test-threads", "1"]);
        command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program can be started");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Actor { child, input, output: BufReader::new(output) }
    }

    /// Waits for the next line that is meant for this process.
    pub fn receive(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).expect("a pipe"), 0, "the process has ended");
            // The test program prints the name of its test without a line end.
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    pub fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the process reads");
    }

    /// Waits for a process that ends by itself.
    pub fn wait(mut self) {
        assert!(self.child.wait().expect("it was started").success());
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn report(line: &str) {
    println!("{MARK}{line}");
    io::stdout().flush().expect("the other process reads");
}

fn read_line() -> String {
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("the other process writes");
    line.trim_end().to_owned()
}

/// Plays the role of this process, if it has one.
#[test]
fn roles() {
    match env::var(ROLE).as_deref() {
        Ok("memlock") => lock_too_much(),
        Ok(index) => write_until_lost(index.parse().expect("the role of a writer is its number")),
        Err(_) => {}
    }
}

/// Connects and writes to its own words until the connection is lost; then it says with which error.
fn write_until_lost(index: u64) {
    with_devices(|client, _| {
        let connecting = Connecting::new(&client, &ConnectionOptions::default()).expect("a queue pair can be created");
        report(&client_text(&connecting.parameters()));
        let connection = connecting.connect(parse_target(&read_line())).expect("the other side has accepted");
        let mut lane = connection.lane();
        let addr = Addr::main_word(index * WRITER_WORDS as u64);
        for round in 1.. {
            let content = [round; WRITER_WORDS];
            if let Err(error) = run(&mut lane, &mut [Verb::Write { addr, words: &content }]) {
                return report(&format!("{error:?}"));
            }
        }
    });
}

/// Wants to register more memory than it may lock, as a user without privileges; then it says what happened.
fn lock_too_much() {
    let limit = libc::rlimit { rlim_cur: MEMLOCK_BYTES, rlim_max: MEMLOCK_BYTES };
    // SAFETY: the calls change properties of this process only.
    let failed = unsafe {
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) != 0
            || (libc::geteuid() == 0 && (libc::setgid(NOBODY) != 0 || libc::setuid(NOBODY) != 0))
    };
    assert!(!failed, "{}", io::Error::last_os_error());
    with_devices(|device, _| {
        let target = Target::new(&device).expect("it locks no memory");
        let registered = target.register(Space::Main, words(WANTED_BYTES as usize / 8) as _);
        report(&format!("{registered:?}"));
        let connecting = Connecting::new(&device, &ConnectionOptions::default()).expect("it locks no memory");
        let (_accepted, parameters) = target.accept(Grant::ReadWrite, &connecting.parameters()).expect("likewise");
        report(&format!("{:?}", connecting.connect(parameters).map(drop)));
    });
}

pub fn client_text(parameters: &ClientParameters) -> String {
    endpoint_text(&parameters.endpoint)
}

pub fn parse_client(text: &str) -> ClientParameters {
    ClientParameters { endpoint: parse_endpoint(&mut text.split(' ')) }
}

pub fn target_text(parameters: &TargetParameters) -> String {
    let mut text = endpoint_text(&parameters.endpoint);
    for (space, segments) in [(0, &parameters.main), (1, &parameters.device)] {
        for Segment { offset, address, bytes, key } in segments {
            write!(text, " {space} {offset} {address} {bytes} {key}").expect("a string grows");
        }
    }
    text
}

/// Reads parameters whose grant is to read and write.
fn parse_target(text: &str) -> TargetParameters {
    let mut words = text.split(' ');
    let endpoint = parse_endpoint(&mut words);
    let (grant, masked_cas) = (Grant::ReadWrite, MaskedCas::CasLoop);
    let mut target = TargetParameters { endpoint, grant, masked_cas, main: Vec::new(), device: Vec::new() };
    while let Some(space) = words.next() {
        let mut number = || words.next().expect("a number").parse::<u64>().expect("a number");
        let segment = Segment { offset: number(), address: number(), bytes: number(), key: number() as u32 };
        if space == "0" { target.main.push(segment) } else { target.device.push(segment) }
    }
    target
}

fn endpoint_text(endpoint: &QueuePairEndpoint) -> String {
    let QueuePairEndpoint { gid, lid, queue_pair, first_packet, mtu, reads_in, reads_out } = endpoint;
    format!("{gid} {lid} {} {} {} {reads_in} {reads_out}", queue_pair.0, first_packet.0, mtu.bytes())
}

fn parse_endpoint<'t>(words: &mut impl Iterator<Item = &'t str>) -> QueuePairEndpoint {
    let gid = words.next().expect("a GID").parse().expect("a GID");
    let mut number = || words.next().expect("a number").parse::<u32>().expect("a number");
    QueuePairEndpoint {
        gid,
        lid: number() as u16,
        queue_pair: QueuePairNumber(number()),
        first_packet: PacketNumber(number()),
        mtu: Mtu::of_bytes(number()).expect("an MTU"),
        reads_in: number() as u8,
        reads_out: number() as u8,
    }
}
