//! Masked CAS of mlx5 devices: the work queue entry, and the queue pairs that such entries can be posted to.
//!
//! Generic verbs have no masked CAS. A client's queue pair is therefore created by libmlx5 with raw work queue entries,
//! whose bytes are made here. The format is that of rdma-core's `mlx5dv.h` (`struct mlx5_wqe_ctrl_seg`,
//! `mlx5_wqe_raddr_seg`, `mlx5_wqe_atomic_seg`, `mlx5_wqe_data_seg`); that an extended atomic has two atomic segments
//! and which modifier it has is known from UCX, which writes the same entries (`rc_mlx5.inl`). All numbers in it are
//! big-endian:
//!
//! ```text
//!  0  modifier 0x09 | index, which the driver fills in (2) | opcode 0x14
//!  4  queue pair number (3) | number of 16-byte units: 5
//!  8  signature, which the driver fills in | stream (2) | flags: 0x08 asks for a completion
//! 12  immediate (4)
//! 16  remote address (8) | remote key (4) | reserved (4)
//! 32  swap (8)           | compare (8)
//! 48  swap mask (8)      | compare mask (8)
//! 64  byte count: 8 (4)  | local key (4) | local address (8)
//! ```
//!
//! Invariant: every place of such a queue pair's send queue has room for [`WQE_BYTES`].

use std::ptr::NonNull;

use guira_network::wire::QueuePairNumber;

use crate::device::Opened;
use crate::ffi::{self, Mlx5, SendWr, Sge};
use crate::poster::Extended;
use crate::resources::Capacity;

/// Bytes of a masked CAS in the send queue.
pub(crate) const WQE_BYTES: usize = 80;
/// Bytes of the units that an entry consists of.
const UNIT_BYTES: usize = 16;
/// `MLX5_OPCODE_ATOMIC_MASKED_CS`.
const OPCODE: u8 = 0x14;
/// The modifier of an extended atomic, 0x08, for operands of 2^(1 + 2) bytes.
const MODIFIER: u8 = 0x08 | 1;
/// `MLX5_WQE_CTRL_CQ_UPDATE`.
const SIGNALLED: u8 = 0x08;
/// Pieces of local memory that a work request of such a queue pair may have. Guira's have one; but a WRITE with three
/// is as long as a masked CAS, so the driver gives every place of the send queue room for it.
const PIECES: u32 = 3;
const _: () = assert!((2 + PIECES as usize) * UNIT_BYTES == WQE_BYTES);

/// Makes the work queue entry of a masked CAS on the queue pair `number`, whose result goes to `piece`.
pub(crate) fn masked_cas_wqe(number: QueuePairNumber, request: &SendWr, piece: &Sge) -> [u8; WQE_BYTES] {
    let (remote_addr, compare, swap, key) = request.atomic();
    let (compare_mask, swap_mask) = request.masks();
    let flags = if request.send_flags & ffi::SEND_SIGNALED != 0 { SIGNALLED } else { 0 };
    let mut wqe = [0; WQE_BYTES];
    let mut put = |at: usize, bytes: &[u8]| wqe[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[MODIFIER, 0, 0, OPCODE]);
    put(4, &(number.0 << 8 | (WQE_BYTES / UNIT_BYTES) as u32).to_be_bytes());
    put(11, &[flags]);
    put(16, &remote_addr.to_be_bytes());
    put(24, &key.to_be_bytes());
    put(32, &swap.to_be_bytes());
    put(40, &compare.to_be_bytes());
    put(48, &swap_mask.to_be_bytes());
    put(56, &compare_mask.to_be_bytes());
    put(64, &piece.length.to_be_bytes());
    put(68, &piece.lkey.to_be_bytes());
    put(72, &piece.addr.to_be_bytes());
    wqe
}

/// Returns libmlx5, if it is the driver of the device.
pub(crate) fn library(device: &Opened) -> Option<&'static Mlx5> {
    let library = Mlx5::get()?;
    // SAFETY: the context is open, and with it its device exists.
    unsafe { (library.is_supported)((*device.context.as_ptr()).device) }.then_some(library)
}

/// Creates a queue pair to which raw work queue entries can be posted, with its functions and the capacities that were
/// granted; `None` with the error in `errno`.
///
/// # Safety
/// The protection domain and the completion queue must exist, and belong to the device.
pub(crate) unsafe fn create(
    device: &Opened,
    domain: NonNull<ffi::Pd>,
    completions: NonNull<ffi::Cq>,
    asked: Capacity,
) -> Option<(NonNull<ffi::Qp>, Extended, Capacity)> {
    let library = library(device)?;
    let (mut init, mut raw_init) = (extended_init(domain, completions, asked), raw_init());
    // SAFETY: the caller vouches for the objects; the call reads both structures and writes the capacities.
    let pair = NonNull::new(unsafe { (library.create_qp)(device.context.as_ptr(), &mut init, &mut raw_init) })?;
    // SAFETY: the queue pair exists, and has both parts, because it was asked for with them.
    let (verbs, entries, number) = unsafe {
        let verbs = (device.library.qp_to_qp_ex)(pair.as_ptr());
        (verbs, (library.qp_ex_from_ibv_qp_ex)(verbs), (*pair.as_ptr()).qp_num)
    };
    let Some((verbs, entries)) = NonNull::new(verbs).zip(NonNull::new(entries)) else {
        // SAFETY: the queue pair exists, and is not used.
        unsafe { (device.library.destroy_qp)(pair.as_ptr()) };
        return None;
    };
    let granted = Capacity { send_depth: init.cap.max_send_wr, inline_bytes: init.cap.max_inline_data };
    Some((pair, Extended { verbs, entries: Some(entries), number: QueuePairNumber(number) }, granted))
}

/// The parameters of a reliable queue pair whose work requests are added one by one.
pub(crate) fn extended_init(
    domain: NonNull<ffi::Pd>,
    completions: NonNull<ffi::Cq>,
    asked: Capacity,
) -> ffi::QpInitAttrEx {
    let mut init: ffi::QpInitAttrEx = ffi::zeroed();
    (init.send_cq, init.recv_cq) = (completions.as_ptr(), completions.as_ptr());
    init.qp_type = ffi::QP_TYPE_RC;
    init.cap.max_send_wr = asked.send_depth;
    init.cap.max_recv_wr = 1;
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (PIECES, 1);
    init.cap.max_inline_data = asked.inline_bytes;
    init.comp_mask = ffi::QP_INIT_ATTR_PD | ffi::QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = domain.as_ptr();
    init.send_ops_flags = ffi::SEND_OPS;
    init
}

/// The parameters of raw work queue entries. libmlx5 refuses results inside completions for opcodes that it does not
/// post itself, so they are switched off.
fn raw_init() -> ffi::Mlx5QpInitAttr {
    let mut init: ffi::Mlx5QpInitAttr = ffi::zeroed();
    init.comp_mask = ffi::MASK_CREATE_FLAGS | ffi::MASK_SEND_OPS_FLAGS;
    init.create_flags = ffi::DISABLE_SCATTER_TO_CQE;
    init.send_ops_flags = ffi::WITH_RAW_WQE;
    init
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by hand from the format in the module's documentation.
    const EXPECTED: [u8; WQE_BYTES] = [
        0x09, 0x00, 0x00, 0x14, 0xab, 0xcd, 0xef, 0x05, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, // control
        0x7f, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x08, 0xca, 0xfe, 0xba, 0xbe, 0x00, 0x00, 0x00, 0x00, // remote
        0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, // values
        0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, // masks
        0x00, 0x00, 0x00, 0x08, 0x51, 0x52, 0x53, 0x54, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, // result
    ];

    fn masked_cas() -> (SendWr, Sge) {
        let mut request = SendWr::new(ffi::WR_MASKED_CAS);
        let (compare, swap) = (0x2122_2324_2526_2728, 0x1112_1314_1516_1718);
        request.set_atomic(0x7f01_0203_0405_0608, compare, swap, 0xcafe_babe);
        request.set_masks(0x4142_4344_4546_4748, 0x3132_3334_3536_3738);
        request.send_flags = ffi::SEND_SIGNALED;
        (request, Sge { addr: 0x6162_6364_6566_6768, length: 8, lkey: 0x5152_5354 })
    }

    #[test]
    fn a_masked_cas_has_the_documented_bytes() {
        let (mut request, piece) = masked_cas();
        let number = QueuePairNumber(0x00ab_cdef);
        assert_eq!(masked_cas_wqe(number, &request, &piece), EXPECTED);
        // Only the last request of a batch asks for a completion.
        request.send_flags = 0;
        let mut unsignalled = EXPECTED;
        unsignalled[11] = 0;
        assert_eq!(masked_cas_wqe(number, &request, &piece), unsignalled);
    }

    #[test]
    fn a_queue_pair_is_asked_for_with_raw_entries_and_room_for_them() {
        let (domain, completions) = (NonNull::dangling(), NonNull::dangling());
        let init = extended_init(domain, completions, Capacity { send_depth: 256, inline_bytes: 128 });
        let cap = init.cap;
        assert_eq!((init.qp_type, init.sq_sig_all, init.comp_mask, init.send_ops_flags), (2, 0, 0x41, 0x71));
        assert_eq!((cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge), (256, 1, 3, 1));
        assert_eq!((cap.max_inline_data, init.pd, init.send_cq), (128, domain.as_ptr(), completions.as_ptr()));
        let raw = raw_init();
        assert_eq!((raw.comp_mask, raw.create_flags, raw.send_ops_flags), (0b101, 8, 8));
    }
}
