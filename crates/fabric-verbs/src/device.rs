//! RDMA devices: their names, their ports and addresses, and what they can do.
//!
//! Invariants: a device is open as long as anything that was made from it; an open device's port was active and its
//! GID existed when it was opened; in a forked child nothing is released, because it belongs to the parent.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use guira_fabric::process::Process;
use guira_network::wire::{Gid, Mtu};

use crate::exchange::mtu_of_code;
use crate::ffi::{self, ExtendedContext, Library};
use crate::gid;
use crate::probe::ByteOrder;
use crate::{GidEntry, GidKind, VerbsError};

/// The port of a device unless another is chosen; ports are counted from 1.
const DEFAULT_PORT: u8 = 1;
/// The vendor of Soft-RoCE's devices.
const SOFT_ROCE: u32 = 0xff_ff_ff;

/// The choice of a device, a port and an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The device's name, as `ibv_devices` prints it. Default: the first device.
    pub device: Option<String>,
    /// The port, from 1. Default: 1.
    pub port: Option<u8>,
    /// The index in the port's GID table. Default: the first RoCE v2 address that maps an IPv4 address, else another
    /// RoCE v2 address, else the first InfiniBand address.
    pub gid: Option<u32>,
}

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Work requests in one queue.
    pub queue_depth: u32,
    /// Entries in one completion queue.
    pub completions: u32,
    /// READs and atomics in progress on one queue pair, as the side that executes them.
    pub reads_in: u8,
    /// READs and atomics in progress on one queue pair, as the side that asks for them.
    pub reads_out: u8,
    /// Bytes of one registration.
    pub registration_bytes: u64,
    /// Bytes of one message.
    pub message_bytes: u32,
    /// Bytes of the device's own memory that one device space may have; 0 if the device has none. Other processes may
    /// have taken some of them.
    pub device_memory_bytes: u64,
    /// Whether the device is Soft-RoCE: the processors of this machine do its work.
    pub is_software: bool,
}

/// Scope of a device's atomics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicScope {
    /// The device has no atomics.
    None,
    /// Among all queue pairs of this device only.
    Device,
    /// Also with the processor and other devices.
    Global,
}

/// An open port of an RDMA device, with its address. Clones share it.
#[derive(Clone)]
pub struct Device {
    opened: Arc<Opened>,
}

/// An open device.
pub(crate) struct Opened {
    pub(crate) library: &'static Library,
    pub(crate) context: NonNull<ffi::Context>,
    process: Process,
    name: String,
    port: Port,
    /// The result of the probe of masked CAS: the byte order of its results if it works. Empty before the first probe.
    pub(crate) masked_cas: OnceLock<Option<ByteOrder>>,
}

/// The properties of a port and of its device, as they were when it was opened.
struct Port {
    number: u8,
    lid: u16,
    mtu: Mtu,
    gid: GidEntry,
    gids: Vec<GidEntry>,
    atomics: AtomicScope,
    limits: DeviceLimits,
}

// SAFETY: libibverbs' objects may be used by several threads at once (ibv_open_device(3), "thread safe").
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Device {
    /// Returns the names of this machine's RDMA devices.
    ///
    /// # Errors
    /// `Library` or `System`.
    pub fn names() -> Result<Vec<String>, VerbsError> {
        Ok(DeviceList::new(Library::get()?)?.names())
    }

    /// Opens a port of a device. No packet is sent.
    ///
    /// # Errors
    /// `Library`, `NoSuchDevice`, `NoSuchPort`, `PortDown`, `NoSuchGid`, `NoUsableGid` or `System`.
    pub fn open(options: &DeviceOptions) -> Result<Device, VerbsError> {
        let library = Library::get()?;
        let list = DeviceList::new(library)?;
        let device = list.find(options.device.as_deref())?;
        let name = device_name(device);
        let failed = |call, error| VerbsError::System { call, device: name.clone(), error };
        let process = Process::current().map_err(|error| failed("pthread_atfork", error))?;
        // SAFETY: the device is in the list, which is freed later.
        let context = NonNull::new(unsafe { (library.open_device)(device.as_ptr()) });
        let context = context.ok_or_else(|| failed("ibv_open_device", io::Error::last_os_error()))?;
        let opening = Opening { library, context, name: &name };
        let port = match opening.probe(options) {
            Ok(port) => port,
            Err(error) => {
                // SAFETY: the context is open, and nothing was made from it.
                unsafe { (library.close_device)(context.as_ptr()) };
                return Err(error);
            }
        };
        let opened = Opened { library, context, process, name, port, masked_cas: OnceLock::new() };
        Ok(Device { opened: Arc::new(opened) })
    }

    /// Returns the device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.opened.name
    }

    /// Returns the port's number, from 1.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.opened.port.number
    }

    /// Returns the local identifier of the port in an InfiniBand subnet; 0 on Ethernet.
    #[must_use]
    pub fn lid(&self) -> u16 {
        self.opened.port.lid
    }

    /// Returns the MTU that the port has now.
    #[must_use]
    pub fn mtu(&self) -> Mtu {
        self.opened.port.mtu
    }

    /// Returns the address that connections use.
    #[must_use]
    pub fn gid(&self) -> GidEntry {
        self.opened.port.gid
    }

    /// Returns all addresses of the port.
    #[must_use]
    pub fn gids(&self) -> &[GidEntry] {
        &self.opened.port.gids
    }

    /// Returns the scope of the device's atomics.
    #[must_use]
    pub fn atomics(&self) -> AtomicScope {
        self.opened.port.atomics
    }

    /// Returns the device's limits.
    #[must_use]
    pub fn limits(&self) -> DeviceLimits {
        self.opened.port.limits
    }

    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Opened { name, port: Port { number, gid, mtu, .. }, .. } = &*self.opened;
        f.debug_struct("Device").field("name", name).field("port", number).field("gid", gid).field("mtu", mtu).finish()
    }
}

impl Opened {
    /// Whether this is the process that opened the device.
    #[inline(always)]
    pub(crate) fn is_own(&self) -> bool {
        self.process.is_this()
    }

    /// Refuses in a forked child.
    pub(crate) fn check_process(&self) -> Result<(), VerbsError> {
        if self.is_own() { Ok(()) } else { Err(VerbsError::Forked) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The extended functions of the device's driver, if it has any. They are usable as long as the device is open.
    pub(crate) fn extended(&self) -> Option<ExtendedContext> {
        // SAFETY: the context is open as long as this value exists.
        unsafe { ExtendedContext::of(self.context) }
    }

    /// The error of a call that set `errno`.
    pub(crate) fn last_error(&self, call: &'static str) -> VerbsError {
        VerbsError::System { call, device: self.name.clone(), error: io::Error::last_os_error() }
    }

    /// The error of a call that returned `errno`.
    pub(crate) fn error(&self, call: &'static str, errno: c_int) -> VerbsError {
        VerbsError::System { call, device: self.name.clone(), error: io::Error::from_raw_os_error(errno) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: everything that was made from the context holds this value, so it is gone.
            unsafe { (self.library.close_device)(self.context.as_ptr()) };
        }
    }
}

/// The devices of this machine.
struct DeviceList {
    library: &'static Library,
    first: NonNull<*mut ffi::Device>,
    count: usize,
}

impl DeviceList {
    fn new(library: &'static Library) -> Result<DeviceList, VerbsError> {
        let mut count = 0;
        // SAFETY: the call writes the number of devices.
        let first = NonNull::new(unsafe { (library.get_device_list)(&mut count) });
        let Some(first) = first else {
            let error = io::Error::last_os_error();
            // Without the kernel's part of RDMA there is no device.
            if error.raw_os_error() == Some(libc::ENOSYS) {
                return Err(VerbsError::NoSuchDevice { name: "at all".to_owned(), found: Vec::new() });
            }
            return Err(VerbsError::System { call: "ibv_get_device_list", device: "-".to_owned(), error });
        };
        Ok(DeviceList { library, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = NonNull<ffi::Device>> + '_ {
        // SAFETY: the list has `count` entries until it is freed.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        devices.iter().filter_map(|device| NonNull::new(*device))
    }

    fn names(&self) -> Vec<String> {
        self.devices().map(device_name).collect()
    }

    fn find(&self, name: Option<&str>) -> Result<NonNull<ffi::Device>, VerbsError> {
        let found = self.devices().find(|device| name.is_none_or(|name| device_name(*device) == name));
        let missing = || VerbsError::NoSuchDevice { name: name.unwrap_or("at all").to_owned(), found: self.names() };
        found.ok_or_else(missing)
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list was returned by `get_device_list` and is freed once.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) };
    }
}

fn device_name(device: NonNull<ffi::Device>) -> String {
    // SAFETY: the device is in a list that was not freed; its name ends with a zero byte.
    let name = unsafe { CStr::from_ptr((&raw const (*device.as_ptr()).name).cast()) };
    name.to_string_lossy().into_owned()
}

/// A context that is being examined.
struct Opening<'n> {
    library: &'static Library,
    context: NonNull<ffi::Context>,
    name: &'n str,
}

impl Opening<'_> {
    fn probe(&self, options: &DeviceOptions) -> Result<Port, VerbsError> {
        let mut device: ffi::DeviceAttr = ffi::zeroed();
        // SAFETY: the context is open, and the call fills the structure.
        self.check("ibv_query_device", unsafe { (self.library.query_device)(self.context.as_ptr(), &mut device) })?;
        let (port, ports) = (options.port.unwrap_or(DEFAULT_PORT), device.phys_port_cnt);
        if port == 0 || port > ports {
            return Err(VerbsError::NoSuchPort { device: self.name.to_owned(), port, ports });
        }
        let mut attr: ffi::PortAttr = ffi::zeroed();
        // SAFETY: as above; the exported function fills the first part of the structure, up to `flags`.
        self.check("ibv_query_port", unsafe { (self.library.query_port)(self.context.as_ptr(), port, &mut attr) })?;
        if attr.state != ffi::PORT_ACTIVE {
            let state = port_state(attr.state);
            return Err(VerbsError::PortDown { device: self.name.to_owned(), port, state });
        }
        let gids = self.gids(port, &attr);
        let gid = self.choose(port, &gids, options.gid)?;
        let mtu = mtu_of_code(attr.active_mtu)
            .ok_or(VerbsError::Unsupported { device: self.name.to_owned(), what: "an MTU of InfiniBand" })?;
        // SAFETY: the context is open.
        let extended = unsafe { ExtendedContext::of(self.context) };
        let device_memory_bytes = extended.map_or(0, ExtendedContext::device_memory_bytes);
        let limits = DeviceLimits { device_memory_bytes, ..limits(&device, &attr) };
        let atomics = atomic_scope(device.atomic_cap);
        Ok(Port { number: port, lid: attr.lid, mtu, gid, gids, atomics, limits })
    }

    /// Reads the port's GID table, without its empty entries.
    fn gids(&self, port: u8, attr: &ffi::PortAttr) -> Vec<GidEntry> {
        let entry = |index: u32| {
            let mut entry: ffi::GidEntry = ffi::zeroed();
            let (context, bytes) = (self.context.as_ptr(), size_of::<ffi::GidEntry>());
            // SAFETY: the context is open; the call fills a structure of this size.
            let failed = unsafe { (self.library.query_gid_ex)(context, port.into(), index, &mut entry, 0, bytes) };
            let gid = Gid(entry.gid);
            let kind = match (attr.link_layer, entry.gid_type) {
                (ffi::LINK_LAYER_INFINIBAND, _) => GidKind::InfiniBand,
                (ffi::LINK_LAYER_ETHERNET, ffi::GID_TYPE_ROCE_V1) => GidKind::RoceV1,
                (ffi::LINK_LAYER_ETHERNET, ffi::GID_TYPE_ROCE_V2) => GidKind::RoceV2,
                _ => return None,
            };
            (failed == 0 && !gid.is_zero()).then_some(GidEntry { index, gid, kind })
        };
        (0..u32::try_from(attr.gid_tbl_len).unwrap_or(0)).filter_map(entry).collect()
    }

    fn choose(&self, port: u8, gids: &[GidEntry], index: Option<u32>) -> Result<GidEntry, VerbsError> {
        let device = || self.name.to_owned();
        let Some(index) = index else {
            return gid::choose(gids).ok_or_else(|| VerbsError::NoUsableGid { device: device(), port });
        };
        let found = || gids.iter().map(|entry| entry.index).collect();
        let missing = || VerbsError::NoSuchGid { device: device(), port, index, found: found() };
        gids.iter().find(|entry| entry.index == index).copied().ok_or_else(missing)
    }

    fn check(&self, call: &'static str, errno: c_int) -> Result<(), VerbsError> {
        let error = || io::Error::from_raw_os_error(errno);
        if errno == 0 { Ok(()) } else { Err(VerbsError::System { call, device: self.name.to_owned(), error: error() }) }
    }
}

fn port_state(state: u32) -> &'static str {
    const NAMES: [&str; 6] = ["without a state", "down", "initializing", "armed", "active", "deferred"];
    NAMES.get(state as usize).copied().unwrap_or("in an unknown state")
}

fn atomic_scope(capability: u32) -> AtomicScope {
    match capability {
        ffi::ATOMIC_HCA => AtomicScope::Device,
        ffi::ATOMIC_GLOB => AtomicScope::Global,
        _ => AtomicScope::None,
    }
}

fn limits(device: &ffi::DeviceAttr, port: &ffi::PortAttr) -> DeviceLimits {
    let positive = |number: c_int| u32::try_from(number).unwrap_or(0);
    let small = |number: c_int| u8::try_from(number.clamp(0, 255)).unwrap_or(u8::MAX);
    DeviceLimits {
        queue_depth: positive(device.max_qp_wr),
        completions: positive(device.max_cqe),
        reads_in: small(device.max_qp_rd_atom),
        reads_out: small(device.max_qp_init_rd_atom),
        registration_bytes: device.max_mr_size,
        message_bytes: port.max_msg_sz,
        device_memory_bytes: 0,
        is_software: device.vendor_id == SOFT_ROCE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine without RDMA the answer is an error that says so; on one with RDMA the name is not found.
    #[test]
    fn an_unknown_device_is_an_error() {
        let options = DeviceOptions { device: Some("no-such-device".to_owned()), ..DeviceOptions::default() };
        let error = Device::open(&options).map(drop).unwrap_err();
        assert!(matches!(error, VerbsError::NoSuchDevice { .. } | VerbsError::Library { .. }), "{error}");
    }

    #[test]
    fn states_and_atomics_have_names() {
        assert_eq!((port_state(1), port_state(4), port_state(77)), ("down", "active", "in an unknown state"));
        assert_eq!(atomic_scope(ffi::ATOMIC_HCA), AtomicScope::Device);
        assert_eq!(atomic_scope(ffi::ATOMIC_GLOB), AtomicScope::Global);
        assert_eq!(atomic_scope(0), AtomicScope::None);
    }
}
