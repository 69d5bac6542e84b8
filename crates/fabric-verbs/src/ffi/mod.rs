//! The types and constants of libibverbs that this crate uses. None of them is in the public API.
//!
//! They were made once, with Debian 12's headers of rdma-core 44.0 and its bindgen 0.60.1,
//!
//! ```sh
//! echo '#include <infiniband/verbs.h>' > verbs.h
//! bindgen verbs.h --allowlist-type 'ibv_.*' --with-derive-default
//! ```
//!
//! and then trimmed to what is used: members behind the last one that is read are left out of structures that only
//! libibverbs allocates, opaque members are arrays of bytes or pointers, and enumerations are plain integers. The
//! layout of every structure is asserted below against the sizes and offsets that the C compiler printed; all are those
//! of a 64-bit Linux, and part of the stable ABI of libibverbs (`IBVERBS_1.1`).
//!
//! Invariant: every value of these types is valid with all bytes zero.

mod extended;
mod library;
mod mlx5;

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) use extended::{
    AddCas, AddFetchAdd, AddRdma, Dm, DmAccess, ExtendedContext, QP_INIT_ATTR_PD, QP_INIT_ATTR_SEND_OPS_FLAGS, QpEx,
    QpInitAttrEx, SEND_OPS, SetInlineData, SetSge,
};
pub(crate) use library::Library;
pub use library::mlx5_library_is_installed;
pub(crate) use mlx5::{
    AddRawWqe, DISABLE_SCATTER_TO_CQE, MASK_CREATE_FLAGS, MASK_SEND_OPS_FLAGS, Mlx5, Mlx5QpEx, Mlx5QpInitAttr,
    WITH_RAW_WQE,
};

/// `enum ibv_mtu`: the path MTU is 128 bytes shifted left by it.
pub(crate) type MtuCode = c_uint;
/// `enum ibv_mtu`: 256 bytes.
pub(crate) const MTU_256: MtuCode = 1;
/// `enum ibv_mtu`: 4096 bytes.
pub(crate) const MTU_4096: MtuCode = 5;

/// `enum ibv_port_state`.
pub(crate) const PORT_ACTIVE: c_uint = 4;
/// `IBV_LINK_LAYER_INFINIBAND`.
pub(crate) const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`.
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;
/// `enum ibv_gid_type`.
pub(crate) const GID_TYPE_ROCE_V1: u32 = 1;
/// `enum ibv_gid_type`.
pub(crate) const GID_TYPE_ROCE_V2: u32 = 2;
/// `enum ibv_atomic_cap`.
pub(crate) const ATOMIC_HCA: c_uint = 1;
/// `enum ibv_atomic_cap`.
pub(crate) const ATOMIC_GLOB: c_uint = 2;

/// `enum ibv_access_flags`.
pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
/// `enum ibv_access_flags`.
pub(crate) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
/// `enum ibv_access_flags`.
pub(crate) const ACCESS_REMOTE_READ: c_int = 1 << 2;
/// `enum ibv_access_flags`.
pub(crate) const ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;

/// `IBV_QPT_RC`: a reliable connection.
pub(crate) const QP_TYPE_RC: c_uint = 2;
/// `enum ibv_qp_state`.
pub(crate) const QP_STATE_INIT: c_uint = 1;
/// `enum ibv_qp_state`: ready to receive.
pub(crate) const QP_STATE_RTR: c_uint = 2;
/// `enum ibv_qp_state`: ready to send.
pub(crate) const QP_STATE_RTS: c_uint = 3;
/// `enum ibv_qp_state`.
pub(crate) const QP_STATE_ERROR: c_uint = 6;

/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_STATE: c_int = 1;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_ACCESS_FLAGS: c_int = 1 << 3;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_PKEY_INDEX: c_int = 1 << 4;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_PORT: c_int = 1 << 5;
/// `enum ibv_qp_attr_mask`: the address vector.
pub(crate) const QP_AV: c_int = 1 << 7;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_PATH_MTU: c_int = 1 << 8;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_TIMEOUT: c_int = 1 << 9;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_RETRY_CNT: c_int = 1 << 10;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_RNR_RETRY: c_int = 1 << 11;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_RQ_PSN: c_int = 1 << 12;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_SQ_PSN: c_int = 1 << 16;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
/// `enum ibv_qp_attr_mask`.
pub(crate) const QP_DEST_QPN: c_int = 1 << 20;

/// `enum ibv_wr_opcode`.
pub(crate) const WR_RDMA_WRITE: c_uint = 0;
/// `enum ibv_wr_opcode`.
pub(crate) const WR_RDMA_READ: c_uint = 4;
/// `enum ibv_wr_opcode`.
pub(crate) const WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
/// `enum ibv_wr_opcode`.
pub(crate) const WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;
/// A masked CAS, which is no opcode of libibverbs and has no code of its own there: it is posted as a raw work queue
/// entry of mlx5 only, and drivers refuse it in a list of work requests.
pub(crate) const WR_MASKED_CAS: c_uint = c_uint::MAX;
/// `enum ibv_send_flags`.
pub(crate) const SEND_SIGNALED: c_uint = 1 << 1;
/// `enum ibv_send_flags`.
pub(crate) const SEND_INLINE: c_uint = 1 << 3;
/// `enum ibv_wc_status`.
pub(crate) const WC_SUCCESS: c_uint = 0;

/// `struct ibv_device`, which libibverbs allocates.
#[repr(C)]
pub(crate) struct Device {
    ops: [*mut c_void; 2],
    node_type: c_int,
    transport_type: c_int,
    pub(crate) name: [c_char; 64],
    dev_name: [c_char; 64],
    dev_path: [c_char; 256],
    ibdev_path: [c_char; 256],
}

/// `struct ibv_context_ops`: the driver's functions, of which three are called through it.
#[repr(C)]
pub(crate) struct ContextOps {
    before_poll: [*mut c_void; 11],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    before_post: [*mut c_void; 12],
    pub(crate) post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    behind_post: [*mut c_void; 6],
}

/// `struct ibv_context`, an open device.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    cmd_fd: c_int,
    async_fd: c_int,
    num_comp_vectors: c_int,
    mutex: libc::pthread_mutex_t,
    /// All bits set if the structure is the last member of a `struct verbs_context`.
    pub(crate) abi_compat: *mut c_void,
}

/// `struct ibv_pd`, a protection domain.
#[repr(C)]
pub(crate) struct Pd {
    context: *mut Context,
    handle: u32,
}

/// `struct ibv_mr`, a registration of memory.
#[repr(C)]
pub(crate) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_comp_channel`, a descriptor that is readable when a completion has arrived.
#[repr(C)]
pub(crate) struct CompChannel {
    context: *mut Context,
    pub(crate) fd: c_int,
    refcnt: c_int,
}

/// `struct ibv_cq`, a completion queue.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    channel: *mut CompChannel,
}

/// `struct ibv_qp`, a queue pair.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut c_void,
    handle: u32,
    pub(crate) qp_num: u32,
    state: c_uint,
    qp_type: c_uint,
    mutex: libc::pthread_mutex_t,
    cond: libc::pthread_cond_t,
    events_completed: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttr {
    fw_ver: [c_char; 64],
    node_guid: u64,
    sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    page_size_cap: u64,
    pub(crate) vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    device_cap_flags: c_uint,
    max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_uint,
    others: [c_int; 14],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
    end: u32,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PortAttr {
    pub(crate) state: c_uint,
    max_mtu: MtuCode,
    pub(crate) active_mtu: MtuCode,
    pub(crate) gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    counters: [u32; 2],
    pkey_tbl_len: u16,
    pub(crate) lid: u16,
    sm_lid: u16,
    speeds: [u8; 8],
    pub(crate) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GidEntry {
    align: [u64; 0],
    pub(crate) gid: [u8; 16],
    gid_index: u32,
    port_num: u32,
    pub(crate) gid_type: u32,
    ndev_ifindex: u32,
}

/// `struct ibv_qp_cap`: the capacities of a queue pair, asked for and granted.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QpInitAttr {
    qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    srq: *mut c_void,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_uint,
    sq_sig_all: c_int,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GlobalRoute {
    align: [u64; 0],
    pub(crate) dgid: [u8; 16],
    flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    traffic_class: u8,
}

/// `struct ibv_ah_attr`: the address of the other side.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_uint,
    cur_qp_state: c_uint,
    pub(crate) path_mtu: MtuCode,
    path_mig_state: c_uint,
    qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_int,
    cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    alt_ah_attr: AhAttr,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

/// `struct ibv_sge`: a piece of local memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_send_wr`, a work request. Its union of remote addresses is the member of atomics, `remote`, whose key
/// lies elsewhere for READ and WRITE: [`SendWr::set_rdma`] and [`SendWr::set_atomic`] fill it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    imm_data: u32,
    remote: [u64; 4],
    qp_type: u64,
    bind_mw: [u64; 6],
}

impl SendWr {
    /// A work request of `opcode` without data.
    pub(crate) fn new(opcode: c_uint) -> SendWr {
        SendWr { opcode, num_sge: 1, ..zeroed() }
    }

    /// Fills `wr.rdma`: `remote_addr`, `rkey`.
    pub(crate) fn set_rdma(&mut self, remote_addr: u64, rkey: u32) {
        self.remote = [remote_addr, word_of(rkey), 0, 0];
    }

    /// Fills `wr.atomic`: `remote_addr`, `compare_add`, `swap`, `rkey`.
    pub(crate) fn set_atomic(&mut self, remote_addr: u64, compare_add: u64, swap: u64, rkey: u32) {
        self.remote = [remote_addr, compare_add, swap, word_of(rkey)];
    }

    /// Stores the masks of a [`WR_MASKED_CAS`] where other requests have members for memory windows, which an atomic
    /// does not use.
    pub(crate) fn set_masks(&mut self, compare_mask: u64, swap_mask: u64) {
        (self.bind_mw[0], self.bind_mw[1]) = (compare_mask, swap_mask);
    }

    /// Returns `wr.rdma`: `remote_addr`, `rkey`.
    pub(crate) fn rdma(&self) -> (u64, u32) {
        (self.remote[0], first_half(self.remote[1]))
    }

    /// Returns `wr.atomic`: `remote_addr`, `compare_add`, `swap`, `rkey`.
    pub(crate) fn atomic(&self) -> (u64, u64, u64, u32) {
        (self.remote[0], self.remote[1], self.remote[2], first_half(self.remote[3]))
    }

    /// Returns the masks of a [`WR_MASKED_CAS`]: of the comparison and of the swap.
    pub(crate) fn masks(&self) -> (u64, u64) {
        (self.bind_mw[0], self.bind_mw[1])
    }
}

/// The word whose first four bytes in memory are those of `value`, on either byte order.
fn word_of(value: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&value.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// The inverse of [`word_of`].
fn first_half(word: u64) -> u32 {
    let bytes = word.to_ne_bytes();
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// `struct ibv_wc`, a completion.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    opcode: c_uint,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// Types that are valid with all bytes zero.
///
/// # Safety
/// A value whose bytes are all zero must be valid.
pub(crate) unsafe trait Zeroed: Sized {}

macro_rules! zeroed_types {
    ($($name:ident),*) => { $(
        // SAFETY: its members are integers, arrays of them and raw pointers, which may all be zero.
        unsafe impl Zeroed for $name {}
    )* };
}
zeroed_types!(DeviceAttr, PortAttr, GidEntry, QpInitAttr, QpAttr, SendWr, Sge, Wc);

/// Returns a value whose bytes are all zero.
pub(crate) fn zeroed<T: Zeroed>() -> T {
    // SAFETY: the trait's contract.
    unsafe { std::mem::zeroed() }
}

/// Asserts at compile time the size of a structure and the offsets of its members. Structures with a mutex of the C
/// library are asserted for one architecture only: their sizes differ by the mutex's, which the crate libc knows.
macro_rules! layout {
    ($name:ident: $size:expr $(, $member:ident $offset:literal)*) => {
        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() <= 8);
        $(const _: () = assert!(std::mem::offset_of!($name, $member) == $offset);)*
    };
}
use layout;
layout!(Device: 664, name 24, dev_name 88);
layout!(ContextOps: 256, poll_cq 88, req_notify_cq 96, post_send 200);
#[cfg(target_arch = "x86_64")]
layout!(Context: 328, ops 8, cmd_fd 264, abi_compat 320);
layout!(Pd: 16, handle 8);
layout!(Mr: 48, length 24, lkey 36, rkey 40);
layout!(CompChannel: 16, fd 8);
layout!(Cq: 16, channel 8);
#[cfg(target_arch = "x86_64")]
layout!(Qp: 160, qp_num 52);
layout!(DeviceAttr: 232, max_qp_wr 112, max_cqe 132, max_qp_rd_atom 144, max_qp_init_rd_atom 156, atomic_cap 164,
        phys_port_cnt 227);
layout!(PortAttr: 52, active_mtu 8, gid_tbl_len 12, lid 34, link_layer 46);
layout!(GidEntry: 32, gid_type 24);
layout!(QpCap: 20, max_inline_data 16);
layout!(QpInitAttr: 64, cap 32, qp_type 52, sq_sig_all 56);
layout!(GlobalRoute: 24, sgid_index 20);
layout!(AhAttr: 32, dlid 24, port_num 30);
layout!(QpAttr: 144, cap 36, ah_attr 56, pkey_index 120, port_num 129, timeout 130, rate_limit 136);
layout!(Sge: 16, length 8, lkey 12);
layout!(SendWr: 128, opcode 28, send_flags 32, remote 40, qp_type 72);
layout!(Wc: 48, status 8, qp_num 28, dlid_path_bits 45);

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of `ibv_send_wr` from offset 40 on are those that the C structures have: the address first, the key at
    /// 48 for READ and WRITE, and at 64 for atomics.
    #[test]
    fn the_keys_of_a_work_request_lie_where_the_driver_reads_them() {
        let key_at = |wr: &SendWr, offset: usize| {
            let bytes: Vec<u8> = wr.remote.iter().flat_map(|word| word.to_ne_bytes()).collect();
            u32::from_ne_bytes(bytes[offset - 40..offset - 36].try_into().unwrap())
        };
        let mut wr = SendWr::new(WR_RDMA_READ);
        wr.set_rdma(7, 0x1234_5678);
        assert_eq!((wr.remote[0], key_at(&wr, 48)), (7, 0x1234_5678));
        wr.set_atomic(8, 1, 2, 0x9abc_def0);
        assert_eq!((&wr.remote[..3], key_at(&wr, 64)), (&[8, 1, 2][..], 0x9abc_def0));
        wr.set_masks(3, 4);
        assert_eq!((wr.atomic(), wr.masks()), ((8, 1, 2, 0x9abc_def0), (3, 4)));
    }
}
