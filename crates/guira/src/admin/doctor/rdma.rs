//! Checks of RDMA: libibverbs, the kernel's part, and each port of each device.

use std::fs;
use std::path::Path;

use guira_fabric::{ByteCount, MaskedCas};
use guira_fabric_verbs::{
    AtomicScope, Device, DeviceLimits, DeviceOptions, GidEntry, GidKind, Target, VerbsError, mlx5_library_is_installed,
};

use crate::url::RdmaNode;

use super::{CheckState, DoctorCheck};

/// The devices that the kernel knows.
const DEVICES: &str = "/sys/class/infiniband";
/// Exists if programs can use them.
const USER_ACCESS: &str = "/sys/class/infiniband_verbs";
const INTERFACES: &str = "/sys/class/net";
/// Installs all libraries and tools of RDMA.
const INSTALL: &str = "as root: apt-get install libibverbs1 ibverbs-providers rdma-core (Debian, Ubuntu); dnf install \
                       libibverbs rdma-core (Fedora, RHEL)";

/// Facts about RDMA on this machine.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Whether libibverbs can be loaded, or the reason why not.
    pub(super) library: Result<(), String>,
    /// Whether the library for NVIDIA cards is installed.
    pub(super) has_mlx5_library: bool,
    /// Whether the kernel lets programs use devices (module ib_uverbs).
    pub(super) has_user_access: bool,
    /// A network interface that could carry Soft-RoCE.
    pub(super) interface: Option<String>,
    /// The devices of the kernel and of libibverbs, by name.
    pub(super) devices: Vec<DeviceFacts>,
}

/// Facts about a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceFacts {
    pub(super) name: String,
    /// The kernel's driver.
    pub(super) driver: Option<String>,
    /// Whether libibverbs has a driver for it.
    pub(super) has_provider: bool,
    pub(super) ports: Vec<PortFacts>,
}

/// Facts about a port.
#[derive(Clone, Debug)]
pub(super) struct PortFacts {
    pub(super) number: u8,
    /// The network interface that belongs to it.
    pub(super) interface: Option<String>,
    /// Its properties, if it can be opened.
    pub(super) opened: Result<OpenPort, Problem>,
}

/// The properties of an open port.
#[derive(Clone, Debug)]
pub(super) struct OpenPort {
    pub(super) mtu_bytes: u32,
    pub(super) gid: GidEntry,
    pub(super) gids: Vec<GidEntry>,
    pub(super) atomics: AtomicScope,
    pub(super) limits: DeviceLimits,
    /// Whether it executed a masked CAS for the crate's probe.
    pub(super) masked_cas: MaskedCas,
}

/// The reason why a port cannot be opened.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) kind: ProblemKind,
    pub(super) text: String,
}

/// The kind of a [`Problem`], for which there is help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProblemKind {
    Down,
    NoAddress,
    NotPermitted,
    Other,
}

impl Facts {
    pub(super) fn gather() -> Facts {
        let (library, provided) = match Device::names() {
            Ok(names) => (Ok(()), names),
            Err(VerbsError::Library { reason, .. }) => (Err(reason), Vec::new()),
            // The library is there, and finds no device.
            Err(_) => (Ok(()), Vec::new()),
        };
        let mut names = entries(Path::new(DEVICES));
        names.extend(provided.iter().cloned());
        names.sort();
        names.dedup();
        let devices = names.into_iter().map(|name| DeviceFacts::gather(name, &provided)).collect();
        Facts {
            library,
            has_mlx5_library: mlx5_library_is_installed(),
            has_user_access: Path::new(USER_ACCESS).exists(),
            interface: interface(),
            devices,
        }
    }
}

impl Facts {
    /// Returns the facts about the device and the port that a URL chooses.
    pub(super) fn of(mut self, node: Option<&RdmaNode>) -> Facts {
        let Some(RdmaNode { device, .. }) = node else { return self };
        self.devices.retain(|found| device.name.as_ref().is_none_or(|name| *name == found.name));
        for found in &mut self.devices {
            found.ports.retain(|found| device.port.is_none_or(|port| port == found.number));
        }
        self
    }
}

impl DeviceFacts {
    fn gather(name: String, provided: &[String]) -> DeviceFacts {
        let directory = Path::new(DEVICES).join(&name);
        let has_provider = provided.contains(&name);
        let link = fs::read_link(directory.join("device/driver")).ok();
        let linked = link.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
        // Soft-RoCE is no driver of a card; it names the network interface that it uses instead.
        let driver = linked.or_else(|| directory.join("parent").exists().then(|| "rdma_rxe".to_owned()));
        let mut numbers: Vec<u8> =
            entries(&directory.join("ports")).iter().filter_map(|number| number.parse().ok()).collect();
        numbers.sort_unstable();
        let ports = numbers.into_iter().filter(|_| has_provider).map(|number| PortFacts::gather(&name, number));
        DeviceFacts { driver, has_provider, ports: ports.collect(), name }
    }
}

impl PortFacts {
    fn gather(device: &str, number: u8) -> PortFacts {
        let interface = Path::new(DEVICES).join(device).join(format!("ports/{number}/gid_attrs/ndevs/0"));
        let interface = fs::read_to_string(interface).ok().map(|name| name.trim().to_owned());
        let options = DeviceOptions { device: Some(device.to_owned()), port: Some(number), gid: None };
        let opened = Device::open(&options).map(|device| OpenPort {
            mtu_bytes: device.mtu().bytes(),
            gid: device.gid(),
            gids: device.gids().to_vec(),
            atomics: device.atomics(),
            limits: device.limits(),
            masked_cas: Target::new(&device).map_or(MaskedCas::CasLoop, |target| target.masked_cas()),
        });
        let opened = opened.map_err(|error| Problem { kind: ProblemKind::of(&error), text: short(&error) });
        PortFacts { number, interface, opened }
    }
}

impl ProblemKind {
    fn of(error: &VerbsError) -> ProblemKind {
        match error {
            VerbsError::PortDown { .. } => ProblemKind::Down,
            VerbsError::NoUsableGid { .. } => ProblemKind::NoAddress,
            VerbsError::System { error, .. } if error.kind() == std::io::ErrorKind::PermissionDenied => {
                ProblemKind::NotPermitted
            }
            _ => ProblemKind::Other,
        }
    }
}

/// Returns what happened, without the advice in the words of the error: the report has its own.
fn short(error: &VerbsError) -> String {
    let text = error.to_string();
    text.split_once("; nothing was changed").map_or(text.as_str(), |(happened, _)| happened).to_owned()
}

/// Returns the names in a directory; none if it does not exist.
fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Returns the first network interface that is up and is not the loopback interface.
fn interface() -> Option<String> {
    let is_up = |name: &String| {
        let state = fs::read_to_string(Path::new(INTERFACES).join(name).join("operstate"));
        state.is_ok_and(|state| state.trim() == "up")
    };
    let mut names = entries(Path::new(INTERFACES));
    names.sort();
    names.into_iter().find(is_up)
}

/// Judges the facts, for a server of a region of `serve_bytes`, if that is given.
pub(super) fn checks(facts: &Facts, serve_bytes: Option<u64>) -> Vec<DoctorCheck> {
    let mut checks = vec![
        match &facts.library {
            Ok(()) => DoctorCheck::fine("libibverbs", "installed"),
            Err(reason) => DoctorCheck::missing("libibverbs", reason.as_str()).with_help(INSTALL),
        },
        mlx5_library(facts),
        match facts.has_user_access || facts.devices.iter().any(|device| device.has_provider) {
            true => DoctorCheck::fine("kernel module ib_uverbs", "loaded"),
            false => DoctorCheck::missing("kernel module ib_uverbs", "not loaded")
                .with_help("as root: modprobe ib_uverbs (it is loaded with the driver of a card)"),
        },
        devices(facts),
    ];
    let ports = facts.devices.iter().flat_map(|device| &device.ports);
    let is_usable = |port: &PortFacts| matches!(&port.opened, Ok(open) if open.atomics != AtomicScope::None);
    let others = if ports.clone().any(is_usable) { Others::Usable } else { Others::Unusable };
    for device in &facts.devices {
        if !device.has_provider && facts.library.is_ok() {
            let check = DoctorCheck::missing("driver", "libibverbs has none for it, or does not see its device file");
            let check = check.of(&device.name).with_help(format!("{INSTALL}; then /dev/infiniband/uverbs* must exist"));
            checks.push(others.excuse(check));
        }
        for port in &device.ports {
            checks.extend(port_checks(device, port, serve_bytes).into_iter().map(|check| others.excuse(check)));
        }
        if !device.ports.is_empty() {
            checks.extend(extras(device));
        }
    }
    checks
}

/// Whether a port can be used, so that the others need not work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    Usable,
    Unusable,
}

impl Others {
    /// Makes a check of a port that is not fine one that is not needed, if another port can be used.
    fn excuse(self, check: DoctorCheck) -> DoctorCheck {
        // A limit is too small for what is to be served, whatever other ports do.
        let is_of_limits = check.name == LIMITS;
        match (self, check.state) {
            (Others::Usable, CheckState::Missing | CheckState::Failed) if !is_of_limits => {
                let detail = format!("{}; another port can be used", check.detail);
                DoctorCheck { state: CheckState::NotNeeded, detail, ..check }
            }
            _ => check,
        }
    }
}

/// The name of the check of a device's limits.
const LIMITS: &str = "limits";

fn mlx5_library(facts: &Facts) -> DoctorCheck {
    const NAME: &str = "libmlx5";
    let is_needed = facts.devices.iter().any(is_mlx5);
    match (is_needed, facts.has_mlx5_library) {
        (true, true) => DoctorCheck::fine(NAME, "installed"),
        (true, false) => {
            DoctorCheck::missing(NAME, "not installed, and this machine has an NVIDIA card").with_help(INSTALL)
        }
        (false, true) => DoctorCheck::not_needed(NAME, "installed; only NVIDIA cards use it"),
        (false, false) => DoctorCheck::not_needed(NAME, "not installed; only NVIDIA cards use it"),
    }
}

fn is_mlx5(device: &DeviceFacts) -> bool {
    device.driver.as_ref().is_some_and(|driver| driver.starts_with("mlx5"))
}

fn devices(facts: &Facts) -> DoctorCheck {
    const NAME: &str = "devices";
    if facts.devices.is_empty() {
        let interface = facts.interface.as_deref().unwrap_or("eth0");
        return DoctorCheck::missing(NAME, "no RDMA device").with_help(format!(
            "load the driver of the card; or emulate one over {interface}, as root: modprobe rdma_rxe && rdma link add \
             rxe0 type rxe netdev {interface}"
        ));
    }
    let named = |device: &DeviceFacts| match &device.driver {
        Some(driver) => format!("{} (driver {driver})", device.name),
        None => device.name.clone(),
    };
    DoctorCheck::fine(NAME, facts.devices.iter().map(named).collect::<Vec<_>>().join(", "))
}

fn port_checks(device: &DeviceFacts, port: &PortFacts, serve_bytes: Option<u64>) -> Vec<DoctorCheck> {
    let subject = format!("{} port {}", device.name, port.number);
    let open = match &port.opened {
        Ok(open) => open,
        Err(problem) => return vec![unusable(port, problem).of(subject)],
    };
    let layer = match open.gid.kind {
        GidKind::InfiniBand => "InfiniBand",
        GidKind::RoceV1 | GidKind::RoceV2 => "Ethernet",
    };
    let mtu = format!("active, {layer}, MTU {} bytes", open.mtu_bytes);
    let checks = [DoctorCheck::fine("port", mtu), gids(open), atomics(open.atomics), limits(&open.limits, serve_bytes)];
    checks.into_iter().map(|check| check.of(&subject)).collect()
}

fn unusable(port: &PortFacts, problem: &Problem) -> DoctorCheck {
    let interface = port.interface.as_deref().unwrap_or("INTERFACE");
    let (name, help) = match problem.kind {
        ProblemKind::Down => ("port", Some(format!("check its cable and link; as root: ip link set {interface} up"))),
        ProblemKind::NoAddress => ("GIDs", Some(format!("as root: ip address add ADDRESS/BITS dev {interface}"))),
        ProblemKind::NotPermitted => {
            let help = "let this user read and write /dev/infiniband/uverbs*, as the udev rules of rdma-core do";
            ("port", Some(help.to_owned()))
        }
        ProblemKind::Other => ("port", None),
    };
    let check = DoctorCheck::failed(name, problem.text.as_str());
    help.into_iter().fold(check, DoctorCheck::with_help)
}

fn gids(open: &OpenPort) -> DoctorCheck {
    let shown = |entry: &GidEntry| {
        let kind = match entry.kind {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        };
        let default = if entry.index == open.gid.index { ", used by default" } else { "" };
        format!("{}: {} ({kind}{default})", entry.index, entry.gid)
    };
    DoctorCheck::fine("GIDs", open.gids.iter().map(shown).collect::<Vec<_>>().join(", "))
}

fn atomics(scope: AtomicScope) -> DoctorCheck {
    const NAME: &str = "atomics";
    match scope {
        AtomicScope::Device => DoctorCheck::fine(NAME, "among the queue pairs of this device"),
        AtomicScope::Global => DoctorCheck::fine(NAME, "also with the processor and other devices"),
        AtomicScope::None => {
            DoctorCheck::failed(NAME, "none, so this device can be a client's, but cannot serve a table")
        }
    }
}

fn limits(limits: &DeviceLimits, serve_bytes: Option<u64>) -> DoctorCheck {
    let DeviceLimits { queue_depth, completions, reads_in, reads_out, registration_bytes, message_bytes, .. } = *limits;
    let detail = format!(
        "{queue_depth} requests in a queue, {completions} completions, {reads_in} READs and atomics in and {reads_out} \
         out at a time, {} in a message, {} in a registration",
        ByteCount(message_bytes.into()),
        ByteCount(registration_bytes)
    );
    match serve_bytes.filter(|bytes| *bytes > registration_bytes) {
        None => DoctorCheck::fine(LIMITS, detail),
        Some(bytes) => {
            DoctorCheck::missing(LIMITS, format!("{detail}, but a region of {} is wanted", ByteCount(bytes)))
                .with_help("serve a smaller table, or several")
        }
    }
}

/// Judges what saves round trips or time where a device has it.
fn extras(device: &DeviceFacts) -> [DoctorCheck; 2] {
    let opened = || device.ports.iter().filter_map(|port| port.opened.as_ref().ok());
    let masked_cas = match opened().any(|open| open.masked_cas == MaskedCas::Native) {
        true => DoctorCheck::fine("masked CAS", "executed by the card"),
        false => DoctorCheck::not_needed("masked CAS", "not executed by the card; plain CAS takes its place"),
    };
    let device_memory = match opened().map(|open| open.limits.device_memory_bytes).max() {
        Some(bytes @ 1..) => {
            DoctorCheck::fine("device memory", format!("{}, for the locks of a table in memory", ByteCount(bytes)))
        }
        _ => DoctorCheck::not_needed("device memory", "none; locks are in host memory"),
    };
    [masked_cas.of(&device.name), device_memory.of(&device.name)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, kind: GidKind) -> GidEntry {
        GidEntry { index, gid: address.parse().unwrap(), kind }
    }

    fn open_port() -> OpenPort {
        let gids = vec![gid(0, "fe80::1", GidKind::RoceV1), gid(1, "10.0.0.1", GidKind::RoceV2)];
        let limits = DeviceLimits {
            queue_depth: 16_384,
            completions: 32_767,
            reads_in: 128,
            reads_out: 16,
            registration_bytes: 1 << 40,
            message_bytes: 1 << 31,
            device_memory_bytes: 0,
            is_software: false,
        };
        let masked_cas = MaskedCas::CasLoop;
        OpenPort { mtu_bytes: 1024, gid: gids[1], gids, atomics: AtomicScope::Device, limits, masked_cas }
    }

    fn device(name: &str, driver: &str, opened: Result<OpenPort, Problem>) -> DeviceFacts {
        let port = PortFacts { number: 1, interface: Some("eth7".to_owned()), opened };
        DeviceFacts { name: name.to_owned(), driver: Some(driver.to_owned()), has_provider: true, ports: vec![port] }
    }

    fn facts(devices: Vec<DeviceFacts>) -> Facts {
        let interface = Some("eth7".to_owned());
        Facts { library: Ok(()), has_mlx5_library: true, has_user_access: true, interface, devices }
    }

    fn problem(kind: ProblemKind) -> Result<OpenPort, Problem> {
        Err(Problem { kind, text: format!("{kind:?}") })
    }

    /// Returns the only check of this name.
    fn the<'c>(name: &str, checks: &'c [DoctorCheck]) -> &'c DoctorCheck {
        let mut found = checks.iter().filter(|check| check.name == name);
        let check = found.next().unwrap_or_else(|| panic!("no {name} in {checks:?}"));
        assert_eq!(found.next(), None);
        check
    }

    fn states(checks: &[DoctorCheck]) -> Vec<(&'static str, CheckState)> {
        checks.iter().map(|check| (check.name, check.state)).collect()
    }

    #[test]
    fn soft_roce_is_fine() {
        let checks = checks(&facts(vec![device("rxe0", "rdma_rxe", Ok(open_port()))]), None);
        let expected = [
            ("libibverbs", CheckState::Fine),
            ("libmlx5", CheckState::NotNeeded),
            ("kernel module ib_uverbs", CheckState::Fine),
            ("devices", CheckState::Fine),
            ("port", CheckState::Fine),
            ("GIDs", CheckState::Fine),
            ("atomics", CheckState::Fine),
            ("limits", CheckState::Fine),
            ("masked CAS", CheckState::NotNeeded),
            ("device memory", CheckState::NotNeeded),
        ];
        assert_eq!(states(&checks), expected);
        assert!(checks.iter().all(|check| check.help.is_none()), "{checks:?}");
        assert_eq!(the("devices", &checks).detail, "rxe0 (driver rdma_rxe)");
        assert_eq!(the("port", &checks).subject.as_deref(), Some("rxe0 port 1"));
        assert_eq!(the("port", &checks).detail, "active, Ethernet, MTU 1024 bytes");
        let gids = "0: fe80::1 (RoCE v1), 1: ::ffff:10.0.0.1 (RoCE v2, used by default)";
        assert_eq!(the("GIDs", &checks).detail, gids);
        let limits = "16384 requests in a queue, 32767 completions, 128 READs and atomics in and 16 out at a time, 2.0 \
                      GiB in a message, 1.0 TiB in a registration";
        assert_eq!(the("limits", &checks).detail, limits);
    }

    #[test]
    fn a_machine_without_rdma_is_told_what_to_install() {
        let library = Err("libibverbs.so.1: cannot open".to_owned());
        let bare = Facts { library, has_mlx5_library: false, has_user_access: false, ..facts(Vec::new()) };
        let found = checks(&bare, None);
        let expected = [
            ("libibverbs", CheckState::Missing),
            ("libmlx5", CheckState::NotNeeded),
            ("kernel module ib_uverbs", CheckState::Missing),
            ("devices", CheckState::Missing),
        ];
        assert_eq!(states(&found), expected);
        let help = |name| the(name, &found).help.as_deref().unwrap();
        assert!(help("libibverbs").contains("apt-get install libibverbs1 ibverbs-providers rdma-core"));
        assert!(help("kernel module ib_uverbs").contains("modprobe ib_uverbs"));
        assert!(help("devices").contains("rdma link add rxe0 type rxe netdev eth7"));
        let unknown = checks(&Facts { interface: None, ..bare }, None);
        assert!(the("devices", &unknown).help.as_deref().unwrap().contains("netdev eth0"));
    }

    #[test]
    fn a_device_without_a_provider_is_named() {
        let unprovided =
            DeviceFacts { has_provider: false, ports: Vec::new(), ..device("mlx5_0", "mlx5_core", Ok(open_port())) };
        let no_library = Facts { has_mlx5_library: false, ..facts(vec![unprovided]) };
        let found = checks(&no_library, None);
        let driver = the("driver", &found);
        assert_eq!((driver.state, driver.subject.as_deref()), (CheckState::Missing, Some("mlx5_0")));
        assert!(driver.help.as_deref().unwrap().contains("ibverbs-providers"));
        assert_eq!(the("libmlx5", &found).state, CheckState::Missing);
        assert_eq!(the("kernel module ib_uverbs", &found).state, CheckState::Fine);
        // Without libibverbs, that is the only thing to say.
        let found = checks(&Facts { library: Err(String::new()), ..no_library }, None);
        assert!(found.iter().all(|check| check.name != "driver"));
    }

    #[test]
    fn every_problem_of_a_port_has_its_line() {
        for (kind, name, help) in [
            (ProblemKind::Down, "port", Some("ip link set eth7 up")),
            (ProblemKind::NoAddress, "GIDs", Some("dev eth7")),
            (ProblemKind::NotPermitted, "port", Some("/dev/infiniband/uverbs*")),
            (ProblemKind::Other, "port", None),
        ] {
            let found = checks(&facts(vec![device("rxe0", "rdma_rxe", problem(kind))]), None);
            let check = the(name, &found);
            assert_eq!((check.state, &check.detail), (CheckState::Failed, &format!("{kind:?}")));
            assert_eq!(check.help.is_some(), help.is_some());
            assert!(check.help.as_deref().unwrap_or_default().contains(help.unwrap_or_default()), "{check:?}");
        }
        let none = OpenPort { atomics: AtomicScope::None, ..open_port() };
        let found = checks(&facts(vec![device("qib0", "qib", Ok(none))]), None);
        assert_eq!(the("atomics", &found).state, CheckState::Failed);
        let global = OpenPort { atomics: AtomicScope::Global, ..open_port() };
        let found = checks(&facts(vec![device("mlx5_0", "mlx5_core", Ok(global))]), None);
        assert!(the("atomics", &found).detail.contains("processor"));
        assert_eq!(the("libmlx5", &found).state, CheckState::Fine);
        assert_eq!(the("masked CAS", &found).state, CheckState::NotNeeded);
        let limits = DeviceLimits { device_memory_bytes: 256 << 10, ..open_port().limits };
        let card = OpenPort { masked_cas: MaskedCas::Native, limits, ..open_port() };
        let found = checks(&facts(vec![device("mlx5_0", "mlx5_core", Ok(card))]), None);
        assert_eq!(the("masked CAS", &found).state, CheckState::Fine);
        assert!(the("device memory", &found).detail.starts_with("256.0 KiB"), "{found:?}");
    }

    #[test]
    fn errors_of_devices_have_kinds() {
        let device = || "rxe0".to_owned();
        let system = |kind: std::io::ErrorKind| VerbsError::System { call: "x", device: device(), error: kind.into() };
        for (error, kind) in [
            (VerbsError::PortDown { device: device(), port: 1, state: "down" }, ProblemKind::Down),
            (VerbsError::NoUsableGid { device: device(), port: 1 }, ProblemKind::NoAddress),
            (system(std::io::ErrorKind::PermissionDenied), ProblemKind::NotPermitted),
            (system(std::io::ErrorKind::NotFound), ProblemKind::Other),
        ] {
            assert_eq!(ProblemKind::of(&error), kind, "{error}");
            assert!(!short(&error).contains("; "), "{}", short(&error));
        }
    }

    #[test]
    fn one_usable_port_is_enough() {
        let two =
            vec![device("rxe0", "rdma_rxe", problem(ProblemKind::Down)), device("rxe1", "rdma_rxe", Ok(open_port()))];
        let found = checks(&facts(two), None);
        let down = found.iter().find(|check| check.subject.as_deref() == Some("rxe0 port 1")).unwrap();
        assert_eq!((down.state, down.detail.as_str()), (CheckState::NotNeeded, "Down; another port can be used"));
        assert!(found.iter().all(|check| matches!(check.state, CheckState::Fine | CheckState::NotNeeded)));
    }

    #[test]
    fn a_region_must_fit_a_registration() {
        let devices = || facts(vec![device("rxe0", "rdma_rxe", Ok(open_port()))]);
        assert_eq!(the("limits", &checks(&devices(), Some(1 << 40))).state, CheckState::Fine);
        let found = checks(&devices(), Some((1 << 40) + 1));
        assert_eq!(the("limits", &found).state, CheckState::Missing, "although the port can be used");
    }
}
