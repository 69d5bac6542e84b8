//! A queue pair of a driver without a device, whose functions record what is added.

use std::cell::RefCell;

use super::*;
use crate::ffi::Sge;

const NUMBER: QueuePairNumber = QueuePairNumber(0x01_0203);

thread_local! {
    /// The calls of this thread, in order.
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// The result of `wr_complete`.
    static RESULT: RefCell<c_int> = const { RefCell::new(0) };
}

fn called(call: String) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

/// Records a work request with the two members that the caller has set.
///
/// # Safety
/// The queue pair must be one of `driver`.
unsafe fn added(pair: *mut QpEx, request: &str) {
    // SAFETY: the caller vouches for it.
    let (id, flags) = unsafe { ((*pair).wr_id, (*pair).wr_flags) };
    called(format!("{request}, id {id}, flags {flags}"));
}

unsafe extern "C" fn start(_: *mut QpEx) {
    called("start".to_owned());
}

unsafe extern "C" fn complete(_: *mut QpEx) -> c_int {
    called("complete".to_owned());
    RESULT.with_borrow(|result| *result)
}

unsafe extern "C" fn read(pair: *mut QpEx, key: u32, address: u64) {
    // SAFETY: the queue pair is one of `driver`.
    unsafe { added(pair, &format!("READ {key} {address}")) };
}

unsafe extern "C" fn write(pair: *mut QpEx, key: u32, address: u64) {
    // SAFETY: as above.
    unsafe { added(pair, &format!("WRITE {key} {address}")) };
}

unsafe extern "C" fn cas(pair: *mut QpEx, key: u32, address: u64, compare: u64, swap: u64) {
    // SAFETY: as above.
    unsafe { added(pair, &format!("CAS {key} {address} {compare} {swap}")) };
}

unsafe extern "C" fn fetch_add(pair: *mut QpEx, key: u32, address: u64, add: u64) {
    // SAFETY: as above.
    unsafe { added(pair, &format!("FETCH-ADD {key} {address} {add}")) };
}

unsafe extern "C" fn set_inline_data(_: *mut QpEx, data: *mut c_void, bytes: usize) {
    called(format!("inline {} {bytes}", data.addr()));
}

unsafe extern "C" fn set_sge(_: *mut QpEx, key: u32, address: u64, bytes: u32) {
    called(format!("piece {key} {address} {bytes}"));
}

unsafe extern "C" fn raw_wqe(_: *mut Mlx5QpEx, wqe: *const c_void) {
    // SAFETY: the caller passes an entry.
    let wqe = unsafe { *wqe.cast::<[u8; mlx5::WQE_BYTES]>() };
    called(format!("raw {wqe:?}"));
}

fn driver() -> (Box<QpEx>, Box<Mlx5QpEx>) {
    // SAFETY: integers, arrays, raw pointers, optional functions, an unlocked mutex and a condition variable may all be
    // zero.
    let mut verbs: Box<QpEx> = unsafe { Box::new(std::mem::zeroed()) };
    (verbs.wr_start, verbs.wr_complete) = (Some(start as _), Some(complete as _));
    (verbs.wr_rdma_read, verbs.wr_rdma_write) = (Some(read as _), Some(write as _));
    (verbs.wr_atomic_cmp_swp, verbs.wr_atomic_fetch_add) = (Some(cas as _), Some(fetch_add as _));
    (verbs.wr_set_inline_data, verbs.wr_set_sge) = (Some(set_inline_data as _), Some(set_sge as _));
    let mut entries: Box<Mlx5QpEx> = Box::new(ffi::zeroed());
    entries.wr_raw_wqe = Some(raw_wqe);
    (verbs, entries)
}

/// One request of each kind, with the pieces that they point to.
fn batch() -> (Vec<SendWr>, Vec<Sge>) {
    let request = |opcode, flags| {
        let mut request = SendWr::new(opcode);
        (request.wr_id, request.send_flags) = (7, flags);
        request
    };
    let mut requests = vec![
        request(ffi::WR_MASKED_CAS, 0),
        request(ffi::WR_RDMA_READ, 0),
        request(ffi::WR_RDMA_WRITE, ffi::SEND_INLINE),
        request(ffi::WR_RDMA_WRITE, 0),
        request(ffi::WR_ATOMIC_CMP_AND_SWP, 0),
        request(ffi::WR_ATOMIC_FETCH_AND_ADD, ffi::SEND_SIGNALED),
    ];
    requests[0].set_atomic(100, 1, 2, 50);
    requests[0].set_masks(3, 4);
    (1..4).for_each(|index| requests[index].set_rdma(100 + index as u64, 50 + index as u32));
    requests[4].set_atomic(104, 11, 12, 54);
    requests[5].set_atomic(105, 13, 0, 55);
    let mut pieces: Vec<Sge> = (0..6).map(|index| Sge { addr: 4_096 + 8 * index, length: 8, lkey: 9 }).collect();
    for (request, piece) in requests.iter_mut().zip(&mut pieces) {
        request.sg_list = piece;
    }
    (requests, pieces)
}

fn post(verbs: &mut QpEx, entries: Option<&mut Mlx5QpEx>) -> Result<(), PostError> {
    let (mut requests, _pieces) = batch();
    let entries = entries.map(NonNull::from);
    let poster = Poster::Extended(Extended { verbs: NonNull::from(verbs), entries, number: NUMBER });
    // SAFETY: the queue pair is one of `driver`, which uses none of the requests' memory; the pieces live.
    unsafe { poster.post(NonNull::dangling(), &mut requests) }
}

/// A masked CAS keeps its place among the others, and all of them are one post.
#[test]
fn a_mixed_batch_is_one_post_in_batch_order() {
    let (mut verbs, mut entries) = driver();
    assert_eq!(post(&mut verbs, Some(&mut entries)), Ok(()));
    let (requests, pieces) = batch();
    let wqe = mlx5::masked_cas_wqe(NUMBER, &requests[0], &pieces[0]);
    let expected = [
        "start".to_owned(),
        format!("raw {wqe:?}"),
        "READ 51 101, id 7, flags 0".to_owned(),
        "piece 9 4104 8".to_owned(),
        "WRITE 52 102, id 7, flags 8".to_owned(),
        "inline 4112 8".to_owned(),
        "WRITE 53 103, id 7, flags 0".to_owned(),
        "piece 9 4120 8".to_owned(),
        "CAS 54 104 11 12, id 7, flags 0".to_owned(),
        "piece 9 4128 8".to_owned(),
        "FETCH-ADD 55 105 13, id 7, flags 2".to_owned(),
        "piece 9 4136 8".to_owned(),
        "complete".to_owned(),
    ];
    assert_eq!(CALLS.take(), expected);
    assert_eq!(verbs.wr_id, 7, "a raw entry completes with the identifier that was set before it");
}

/// A refused post has posted nothing, and nothing is begun that cannot be ended.
#[test]
fn a_refused_post_has_no_effect() {
    let (mut verbs, mut entries) = driver();
    RESULT.set(libc::ENOMEM);
    assert_eq!(post(&mut verbs, Some(&mut entries)), Err(NOTHING));
    RESULT.set(0);
    CALLS.take();
    assert_eq!(post(&mut verbs, None), Err(NOTHING), "without raw entries there is no masked CAS");
    entries.wr_raw_wqe = None;
    assert_eq!(post(&mut verbs, Some(&mut entries)), Err(NOTHING));
    verbs.wr_complete = None;
    assert_eq!(post(&mut verbs, None), Err(NOTHING));
    assert_eq!(CALLS.take(), [""; 0]);
}
