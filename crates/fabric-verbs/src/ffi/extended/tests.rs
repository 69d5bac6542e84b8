//! A driver without a device, whose functions record how they were called.

use std::cell::RefCell;

use super::*;
use crate::ffi::{ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ};

/// Bytes of the driver's device memory.
const GRANTED_BYTES: u64 = 256 << 10;
/// The protection domain, which nothing reads.
const DOMAIN: NonNull<Pd> = NonNull::dangling();

thread_local! {
    /// The calls of this thread, in order.
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn called(call: String) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

fn calls() -> Vec<String> {
    CALLS.take()
}

/// Device memory of the driver: its words lie behind the structure of libibverbs.
#[repr(C)]
struct Memory {
    dm: Dm,
    words: [u64; 64],
}

unsafe extern "C" fn query(_: *mut Context, input: *const c_void, attr: *mut DeviceAttrEx, size: usize) -> c_int {
    called(format!("query {} {size}", input.is_null()));
    // SAFETY: the caller passes a structure.
    unsafe { (*attr).max_dm_size = GRANTED_BYTES };
    0
}

unsafe extern "C" fn alloc(context: *mut Context, attr: *mut AllocDmAttr) -> *mut Dm {
    // SAFETY: the caller passes a structure.
    let attr = unsafe { *attr };
    called(format!("alloc {attr:?}"));
    if attr.length as u64 > GRANTED_BYTES {
        // SAFETY: the error number of this thread.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return std::ptr::null_mut();
    }
    let (memcpy_to_dm, memcpy_from_dm) = (Some(copy_to as _), Some(copy_from as _));
    let dm = Dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask: 0, handle: 0 };
    Box::into_raw(Box::new(Memory { dm, words: [!0; 64] })).cast()
}

unsafe extern "C" fn copy_to(dm: *mut Dm, offset: u64, from: *const c_void, bytes: usize) -> c_int {
    called(format!("copy to {offset} {bytes}"));
    // SAFETY: the memory is one of `alloc`'s, and the tests stay inside it.
    unsafe { (&raw mut (*dm.cast::<Memory>()).words).cast::<u8>().add(offset as usize).copy_from(from.cast(), bytes) };
    0
}

unsafe extern "C" fn copy_from(into: *mut c_void, dm: *mut Dm, offset: u64, bytes: usize) -> c_int {
    called(format!("copy from {offset} {bytes}"));
    // SAFETY: as above.
    unsafe { (&raw mut (*dm.cast::<Memory>()).words).cast::<u8>().add(offset as usize).copy_to(into.cast(), bytes) };
    0
}

unsafe extern "C" fn register(domain: *mut Pd, _: *mut Dm, offset: u64, bytes: usize, access: c_uint) -> *mut Mr {
    called(format!("register {} {offset} {bytes} {access:#x}", std::ptr::eq(domain, DOMAIN.as_ptr())));
    NonNull::dangling().as_ptr()
}

unsafe extern "C" fn free(dm: *mut Dm) -> c_int {
    called("free".to_owned());
    // SAFETY: the memory is one of `alloc`'s, and is freed once.
    drop(unsafe { Box::from_raw(dm.cast::<Memory>()) });
    0
}

/// The table of the driver. Its zeroed context is all that the functions need.
fn driver() -> Box<VerbsContext> {
    // SAFETY: integers, arrays, raw pointers, optional functions and an unlocked mutex may all be zero.
    let mut table: VerbsContext = unsafe { std::mem::zeroed() };
    (table.query_device_ex, table.alloc_dm) = (Some(query as _), Some(alloc as _));
    (table.reg_dm_mr, table.free_dm) = (Some(register as _), Some(free as _));
    table.size = size_of::<VerbsContext>();
    table.context.abi_compat = std::ptr::without_provenance_mut(ABI_IS_EXTENDED);
    Box::new(table)
}

/// The table, as it is found from the context of an open device.
fn found(table: &mut VerbsContext) -> Option<ExtendedContext> {
    let start: *mut VerbsContext = table;
    // SAFETY: the context lies in the table; its address keeps the provenance of all of it.
    let context = unsafe { NonNull::new_unchecked(&raw mut (*start).context) };
    // SAFETY: the table outlives the tests' use of it.
    unsafe { ExtendedContext::of(context) }
}

#[test]
fn device_memory_is_allocated_filled_registered_and_freed() {
    let mut table = driver();
    let extended = found(&mut table).expect("the driver has a table");
    assert_eq!(extended.device_memory_bytes(), GRANTED_BYTES);
    let dm = extended.alloc_dm(512).unwrap();
    let mut words = [0; 3];
    let access = ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;
    // SAFETY: the memory exists until it is freed, and has 64 words.
    unsafe {
        Dm::write(dm, 8, &[5, 6]).unwrap();
        Dm::read(dm, 0, &mut words).unwrap();
        extended.reg_dm_mr(dm, DmAccess { domain: DOMAIN, bytes: 512, access }).unwrap();
        extended.free_dm(dm);
    }
    assert_eq!(words, [!0, 5, 6]);
    let expected = [
        "query true 400",
        "alloc AllocDmAttr { length: 512, log_align_req: 3, comp_mask: 0 }",
        "copy to 8 16",
        "copy from 0 24",
        "register true 0 512 0x2c",
        "free",
    ];
    assert_eq!(calls(), expected);
}

#[test]
fn a_refusal_is_the_drivers_error() {
    let mut table = driver();
    let extended = found(&mut table).unwrap();
    assert_eq!(extended.alloc_dm(1 << 20).unwrap_err(), libc::ENOMEM);
}

/// A context without the extended table is not searched for one.
#[test]
fn a_driver_without_the_table_has_no_device_memory() {
    let mut table = driver();
    for other in [0, 1, 4096] {
        table.context.abi_compat = std::ptr::without_provenance_mut(other);
        assert!(found(&mut table).is_none(), "{other}");
    }
}

/// A table ends before the members that its driver does not know, or has none in their place.
#[test]
fn functions_that_a_driver_lacks_are_refused() {
    let mut table = driver();
    // As large as a table whose first member is `query_device_ex`.
    table.size = size_of::<VerbsContext>() - offset_of!(VerbsContext, query_device_ex);
    let extended = found(&mut table).unwrap();
    assert_eq!(extended.device_memory_bytes(), GRANTED_BYTES);
    assert_eq!(extended.alloc_dm(512).unwrap_err(), libc::EOPNOTSUPP);
    table.size -= 1;
    assert_eq!(found(&mut table).unwrap().device_memory_bytes(), 0);
    let mut table = driver();
    (table.alloc_dm, table.query_device_ex) = (None, None);
    let extended = found(&mut table).unwrap();
    assert_eq!((extended.alloc_dm(512).unwrap_err(), extended.device_memory_bytes()), (libc::EOPNOTSUPP, 0));
    calls();
}

/// The members are where the driver of a real device has them: one answers as the function of the same purpose that
/// libibverbs exports, and one refuses what the device does not have.
#[test]
fn the_table_of_a_device_has_the_functions_in_their_places() {
    let names = crate::Device::names().unwrap_or_default();
    let named = |name: &String| crate::DeviceOptions { device: Some(name.clone()), ..crate::DeviceOptions::default() };
    let Some(device) = names.iter().find_map(|name| crate::Device::open(&named(name)).ok()) else {
        return println!("skipped: there is no RDMA device with an active port");
    };
    let extended = device.opened().extended().expect("every driver of this libibverbs has the table");
    let mut attr: DeviceAttrEx = crate::ffi::zeroed();
    let query = function!(extended, query_device_ex).unwrap();
    // SAFETY: the device is open; the call fills a structure of this size.
    let failed = unsafe { query(extended.context(), std::ptr::null(), &mut attr, size_of::<DeviceAttrEx>()) };
    let (limits, asked) = (device.limits(), attr.orig_attr);
    assert_eq!((failed, asked.max_qp_wr as u32, asked.max_cqe as u32), (0, limits.queue_depth, limits.completions));
    assert_eq!((asked.max_mr_size, attr.max_dm_size), (limits.registration_bytes, limits.device_memory_bytes));
    if limits.device_memory_bytes == 0 {
        assert_eq!(extended.alloc_dm(512).unwrap_err(), libc::EOPNOTSUPP);
    }
}
