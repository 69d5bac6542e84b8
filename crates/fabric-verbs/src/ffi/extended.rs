//! The extended verbs of libibverbs, which its header calls through tables of the driver instead of exported functions:
//! the driver's extended context, device memory, and queue pairs to which work requests are added one by one.
//!
//! Sizes and offsets are those that the C compiler printed for the headers of rdma-core 44.0, as in the parent module.
//! `struct verbs_context` grows at its start: a member is found by its distance from the end, and a driver that is
//! older than a member says so by the structure's size.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;

use super::{Context, Cq, DeviceAttr, Mr, Pd, Qp, QpCap, Zeroed, layout};

/// `__VERBS_ABI_IS_EXTENDED`, as an address.
const ABI_IS_EXTENDED: usize = usize::MAX;
/// `IBV_QP_INIT_ATTR_PD`.
pub(crate) const QP_INIT_ATTR_PD: u32 = 1;
/// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
pub(crate) const QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
/// `enum ibv_qp_create_send_ops_flags`: RDMA WRITE, RDMA READ, compare-and-swap, fetch-and-add.
pub(crate) const SEND_OPS: u64 = 1 | 1 << 4 | 1 << 5 | 1 << 6;
/// `IBV_ACCESS_ZERO_BASED`: remote addresses are offsets. The kernel asks for it in registrations of device memory.
const ACCESS_ZERO_BASED: c_uint = 1 << 5;
/// `log_align_req`: device memory begins at a multiple of 8 bytes, so that its words can be operands of atomics.
const LOG_ALIGN: u32 = 3;

/// The end of `struct verbs_context`: the driver's extended functions, and the context.
#[repr(C)]
struct VerbsContext {
    reg_dm_mr: Option<unsafe extern "C" fn(*mut Pd, *mut Dm, u64, usize, c_uint) -> *mut Mr>,
    alloc_dm: Option<unsafe extern "C" fn(*mut Context, *mut AllocDmAttr) -> *mut Dm>,
    free_dm: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
    behind_free: [*mut c_void; 17],
    query_device_ex: Option<unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int>,
    behind_query: [*mut c_void; 5],
    create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    behind_create: [*mut c_void; 4],
    unused: u64,
    /// The size of the whole structure, as the driver knows it.
    size: usize,
    context: Context,
}

/// `struct ibv_alloc_dm_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AllocDmAttr {
    length: usize,
    log_align_req: u32,
    comp_mask: u32,
}

/// `struct ibv_dm`: memory of a device.
#[repr(C)]
pub(crate) struct Dm {
    context: *mut Context,
    memcpy_to_dm: Option<unsafe extern "C" fn(*mut Dm, u64, *const c_void, usize) -> c_int>,
    memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Dm, u64, usize) -> c_int>,
    comp_mask: u32,
    handle: u32,
}

/// `struct ibv_device_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DeviceAttrEx {
    orig_attr: DeviceAttr,
    /// Members between the two, none of which is read.
    between: [u64; 18],
    max_dm_size: u64,
    behind: [u64; 2],
}

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
pub(crate) struct QpInitAttrEx {
    qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    srq: *mut c_void,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut Pd,
    xrcd: *mut c_void,
    create_flags: u32,
    max_tso_header: u16,
    rwq_ind_tbl: *mut c_void,
    rx_hash_conf: [u64; 3],
    source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

/// `wr_atomic_cmp_swp`: remote key, remote address, value to compare, value to store.
pub(crate) type AddCas = unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64);
/// `wr_atomic_fetch_add`: remote key, remote address, addend.
pub(crate) type AddFetchAdd = unsafe extern "C" fn(*mut QpEx, u32, u64, u64);
/// `wr_rdma_read`, `wr_rdma_write`: remote key, remote address.
pub(crate) type AddRdma = unsafe extern "C" fn(*mut QpEx, u32, u64);
/// `wr_set_inline_data`: data, bytes.
pub(crate) type SetInlineData = unsafe extern "C" fn(*mut QpEx, *mut c_void, usize);
/// `wr_set_sge`: local key, local address, bytes.
pub(crate) type SetSge = unsafe extern "C" fn(*mut QpEx, u32, u64, u32);

/// `struct ibv_qp_ex`: a queue pair to which work requests are added one by one. Drivers replace its functions when the
/// queue pair changes its state.
#[repr(C)]
pub(crate) struct QpEx {
    qp_base: Qp,
    comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<AddCas>,
    pub(crate) wr_atomic_fetch_add: Option<AddFetchAdd>,
    before_read: [*mut c_void; 2],
    pub(crate) wr_rdma_read: Option<AddRdma>,
    pub(crate) wr_rdma_write: Option<AddRdma>,
    before_inline: [*mut c_void; 7],
    pub(crate) wr_set_inline_data: Option<SetInlineData>,
    before_sge: *mut c_void,
    pub(crate) wr_set_sge: Option<SetSge>,
    before_start: *mut c_void,
    pub(crate) wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
}

// SAFETY: its members are integers, arrays of them, raw pointers and optional functions, which may all be zero.
unsafe impl Zeroed for QpInitAttrEx {}
// SAFETY: as above.
unsafe impl Zeroed for DeviceAttrEx {}

layout!(AllocDmAttr: 16, log_align_req 8, comp_mask 12);
layout!(Dm: 32, memcpy_to_dm 8, memcpy_from_dm 16, comp_mask 24, handle 28);
layout!(DeviceAttrEx: 400, max_dm_size 376);
layout!(QpInitAttrEx: 136, cap 32, qp_type 52, sq_sig_all 56, comp_mask 60, pd 64, create_flags 80, rwq_ind_tbl 88,
        source_qpn 120, send_ops_flags 128);
// `wr_abort` and what later headers added behind it follow, and are not used.
#[cfg(target_arch = "x86_64")]
layout!(QpEx: 336, wr_id 168, wr_flags 176, wr_atomic_cmp_swp 184, wr_atomic_fetch_add 192, wr_rdma_read 216,
        wr_rdma_write 224, wr_set_inline_data 288, wr_set_sge 304, wr_start 320, wr_complete 328);
// The members' distances from the context: -264, -256, -248, -104, -56 and -8 bytes.
layout!(VerbsContext: 264 + size_of::<Context>(), alloc_dm 8, free_dm 16, query_device_ex 160, create_qp_ex 208,
        size 256, context 264);

/// The extended functions of an open device's driver.
#[derive(Clone, Copy)]
pub(crate) struct ExtendedContext {
    raw: NonNull<VerbsContext>,
}

/// The access that a registration of device memory gives.
#[derive(Clone, Copy)]
pub(crate) struct DmAccess {
    pub(crate) domain: NonNull<Pd>,
    pub(crate) bytes: usize,
    /// `enum ibv_access_flags`.
    pub(crate) access: c_int,
}

/// Finds a function in the table, unless the driver is too old to have the member, or has set none.
macro_rules! function {
    ($self:ident, $member:ident) => {{
        let from_end = size_of::<VerbsContext>() - offset_of!(VerbsContext, $member);
        // SAFETY: `size` and the context lie in every table; the member does if the table is this large.
        let member = unsafe {
            let is_there = (*$self.raw.as_ptr()).size >= from_end;
            if is_there { (*$self.raw.as_ptr()).$member } else { None }
        };
        member.ok_or(libc::EOPNOTSUPP)
    }};
}

/// An error number of the C library.
type Errno = c_int;

impl ExtendedContext {
    /// Returns the table of a device's driver; `None` if the driver has none.
    ///
    /// # Safety
    /// The context must be open, and stay so while the value is used.
    pub(crate) unsafe fn of(context: NonNull<Context>) -> Option<ExtendedContext> {
        // SAFETY: the context is open.
        let is_extended = unsafe { (*context.as_ptr()).abi_compat.addr() == ABI_IS_EXTENDED };
        let start = context.as_ptr().wrapping_byte_sub(offset_of!(VerbsContext, context));
        NonNull::new(start.cast()).filter(|_| is_extended).map(|raw| ExtendedContext { raw })
    }

    fn context(self) -> *mut Context {
        // SAFETY: the context lies in the table; its address is taken and nothing is read.
        unsafe { &raw mut (*self.raw.as_ptr()).context }
    }

    /// Returns the bytes of device memory that one allocation may have; 0 if there is none.
    pub(crate) fn device_memory_bytes(self) -> u64 {
        let Ok(query) = function!(self, query_device_ex) else { return 0 };
        let mut attr: DeviceAttrEx = super::zeroed();
        // SAFETY: the context is open; the call fills the structure as far as this size. Old drivers fill less.
        let failed = unsafe { query(self.context(), std::ptr::null(), &mut attr, size_of::<DeviceAttrEx>()) };
        if failed == 0 { attr.max_dm_size } else { 0 }
    }

    /// Allocates `bytes` bytes of device memory.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver has none, or its error.
    pub(crate) fn alloc_dm(self, bytes: usize) -> Result<NonNull<Dm>, Errno> {
        let alloc = function!(self, alloc_dm)?;
        let mut attr = AllocDmAttr { length: bytes, log_align_req: LOG_ALIGN, comp_mask: 0 };
        // SAFETY: the context is open; the call reads the structure.
        NonNull::new(unsafe { alloc(self.context(), &mut attr) }).ok_or_else(last_errno)
    }

    /// Registers device memory from its start.
    ///
    /// # Safety
    /// The memory and the domain must exist, and belong to this context.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver cannot, or its error.
    pub(crate) unsafe fn reg_dm_mr(self, dm: NonNull<Dm>, of: DmAccess) -> Result<NonNull<Mr>, Errno> {
        let register = function!(self, reg_dm_mr)?;
        let access = of.access.cast_unsigned() | ACCESS_ZERO_BASED;
        // SAFETY: the caller vouches for both.
        let raw = unsafe { register(of.domain.as_ptr(), dm.as_ptr(), 0, of.bytes, access) };
        NonNull::new(raw).ok_or_else(last_errno)
    }

    /// Frees device memory.
    ///
    /// # Safety
    /// The memory must exist, and nothing may use it any more.
    pub(crate) unsafe fn free_dm(self, dm: NonNull<Dm>) {
        if let Ok(free) = function!(self, free_dm) {
            // SAFETY: the caller vouches for it. A failure leaves it to the end of the process.
            unsafe { free(dm.as_ptr()) };
        }
    }

    /// Creates a queue pair to which work requests are added one by one.
    ///
    /// # Safety
    /// The structure must be valid, and its objects must exist.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver has none, or its error.
    #[cfg(test)]
    pub(crate) unsafe fn create_qp_ex(self, init: &mut QpInitAttrEx) -> Result<NonNull<Qp>, Errno> {
        let create = function!(self, create_qp_ex)?;
        // SAFETY: the caller vouches for the structure.
        NonNull::new(unsafe { create(self.context(), init) }).ok_or_else(last_errno)
    }
}

impl Dm {
    /// Copies words to device memory, from the byte `offset` on.
    ///
    /// # Safety
    /// `dm` must exist.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver cannot, or its error.
    pub(crate) unsafe fn write(dm: NonNull<Dm>, offset: u64, words: &[u64]) -> Result<(), Errno> {
        // SAFETY: the memory exists; the call reads the words.
        let failed = unsafe {
            let copy = (*dm.as_ptr()).memcpy_to_dm.ok_or(libc::EOPNOTSUPP)?;
            copy(dm.as_ptr(), offset, words.as_ptr().cast(), size_of_val(words))
        };
        if failed == 0 { Ok(()) } else { Err(failed) }
    }

    /// Copies words out of device memory, from the byte `offset` on.
    ///
    /// # Safety
    /// `dm` must exist.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver cannot, or its error.
    pub(crate) unsafe fn read(dm: NonNull<Dm>, offset: u64, words: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: the memory exists; the call writes the words.
        let failed = unsafe {
            let copy = (*dm.as_ptr()).memcpy_from_dm.ok_or(libc::EOPNOTSUPP)?;
            copy(words.as_mut_ptr().cast(), dm.as_ptr(), offset, size_of_val(words))
        };
        if failed == 0 { Ok(()) } else { Err(failed) }
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
pub(crate) mod tests;
