//! Raw work queue entries on devices that have none: an entry's bytes are read back, and a masked CAS with all bits in
//! its masks, which is a plain CAS, is added as one. So a masked CAS goes through a lane, the entry, a real driver and
//! back, though no mlx5 device is there.

use super::*;

/// The function for raw entries, and the queue pair that it adds to.
#[repr(C)]
struct Interpreter {
    entries: Mlx5QpEx,
    verbs: NonNull<QpEx>,
    number: QueuePairNumber,
}

/// Returns a function for raw entries for a queue pair with extended verbs. It is never freed.
pub(crate) fn entries(verbs: NonNull<QpEx>, number: QueuePairNumber) -> NonNull<Mlx5QpEx> {
    let mut entries: Mlx5QpEx = ffi::zeroed();
    entries.wr_raw_wqe = Some(interpret);
    NonNull::from(Box::leak(Box::new(Interpreter { entries, verbs, number }))).cast()
}

unsafe extern "C" fn interpret(entries: *mut Mlx5QpEx, wqe: *const c_void) {
    // SAFETY: the function belongs to an interpreter; the caller passes an entry.
    let (interpreter, wqe) = unsafe { (&*entries.cast::<Interpreter>(), *wqe.cast::<[u8; mlx5::WQE_BYTES]>()) };
    let number = |at: usize| u32::from_be_bytes(wqe[at..at + 4].try_into().expect("four bytes"));
    let word = |at: usize| u64::from_be_bytes(wqe[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!((number(0), number(4)), (0x0900_0014, interpreter.number.0 << 8 | 5));
    assert_eq!((word(48), word(56)), (!0, !0), "only a plain CAS can be added");
    let pair = interpreter.verbs.as_ptr();
    // SAFETY: the queue pair exists as long as it is posted to, and this thread posts.
    unsafe {
        (*pair).wr_flags = if wqe[11] == 0x08 { ffi::SEND_SIGNALED } else { 0 };
        (*pair).wr_atomic_cmp_swp.expect("an extended verb")(pair, number(24), word(16), word(40), word(32));
        (*pair).wr_set_sge.expect("an extended verb")(pair, number(68), word(72), number(64));
    }
}
