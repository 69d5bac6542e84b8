//! The two ways in which a queue pair's work requests are handed to its driver.
//!
//! Both take the same list of work requests, so that all else is one text: `ibv_post_send` takes the list as it is; the
//! extended verbs add its requests one by one, between `ibv_wr_start` and `ibv_wr_complete`, and only they can have a
//! masked CAS among them. In both ways a batch is one post: the driver tells the device once.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use guira_network::wire::QueuePairNumber;

use crate::ffi::{self, Mlx5QpEx, QpEx, SendWr};
use crate::mlx5;

/// The number of failed work requests in a post, counted from the first one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PostError {
    /// Work requests that were posted before the one that failed.
    pub(crate) posted: usize,
}

/// The error of a post of which nothing reached the device.
const NOTHING: PostError = PostError { posted: 0 };

/// The way in which a queue pair's work requests are posted.
#[derive(Clone, Copy)]
pub(crate) enum Poster {
    /// As a list, by `ibv_post_send`.
    List,
    /// One by one, by the extended verbs.
    Extended(Extended),
}

/// The functions of a queue pair that work requests are added by. They belong to the queue pair, and are gone with it.
#[derive(Clone, Copy)]
pub(crate) struct Extended {
    pub(crate) verbs: NonNull<QpEx>,
    /// The function for raw entries; a queue pair without it has no masked CAS.
    pub(crate) entries: Option<NonNull<Mlx5QpEx>>,
    pub(crate) number: QueuePairNumber,
}

impl Poster {
    /// Whether a masked CAS can be posted.
    pub(crate) fn has_masked_cas(&self) -> bool {
        matches!(self, Poster::Extended(Extended { entries: Some(_), .. }))
    }

    /// Posts a list of work requests, linked in the order of the slice, to the queue pair `pair`.
    ///
    /// # Safety
    /// The queue pair must exist and be this value's, and no other thread may post to it at the same time; the requests
    /// and their pieces must be valid and linked; the memory that they name must be registered in the queue pair's
    /// domain, and must stay so until they have completed or the queue pair is destroyed.
    ///
    /// # Errors
    /// The number of requests that were posted before the one that the driver refused.
    pub(crate) unsafe fn post(&self, pair: NonNull<ffi::Qp>, requests: &mut [SendWr]) -> Result<(), PostError> {
        match self {
            // SAFETY: the caller vouches for all of it.
            Poster::List => unsafe { post_list(pair, requests) },
            // SAFETY: as above.
            Poster::Extended(extended) => unsafe { extended.post(requests) },
        }
    }
}

/// # Safety
/// See [`Poster::post`].
unsafe fn post_list(pair: NonNull<ffi::Qp>, requests: &mut [SendWr]) -> Result<(), PostError> {
    let mut bad = std::ptr::null_mut();
    let first = requests.as_mut_ptr();
    // SAFETY: the queue pair and its context exist; the caller vouches for the requests.
    let failed = unsafe {
        let post = (*(*pair.as_ptr()).context).ops.post_send.ok_or(NOTHING)?;
        post(pair.as_ptr(), first, &mut bad)
    };
    if failed == 0 {
        return Ok(());
    }
    let posted = (0..requests.len()).find(|index| std::ptr::eq(bad, first.wrapping_add(*index)));
    // A driver that names no request may have posted any number of them.
    Err(PostError { posted: posted.unwrap_or(requests.len()) })
}

/// The functions of a queue pair, as they are at the start of a post.
#[derive(Clone, Copy)]
struct Calls {
    start: unsafe extern "C" fn(*mut QpEx),
    complete: unsafe extern "C" fn(*mut QpEx) -> c_int,
    read: ffi::AddRdma,
    write: ffi::AddRdma,
    cas: ffi::AddCas,
    fetch_add: ffi::AddFetchAdd,
    set_inline_data: ffi::SetInlineData,
    set_sge: ffi::SetSge,
    raw: Option<(NonNull<Mlx5QpEx>, ffi::AddRawWqe)>,
}

impl Extended {
    /// # Safety
    /// See [`Poster::post`].
    unsafe fn post(&self, requests: &[SendWr]) -> Result<(), PostError> {
        let pair = self.verbs.as_ptr();
        // SAFETY: the queue pair exists.
        let calls = unsafe { self.calls() }.ok_or(NOTHING)?;
        // Refused before the first call, because an abandoned post would keep the driver's lock.
        if calls.raw.is_none() && requests.iter().any(|request| request.opcode == ffi::WR_MASKED_CAS) {
            return Err(NOTHING);
        }
        // SAFETY: the queue pair exists, and this thread alone posts to it; the caller vouches for the requests.
        let failed = unsafe {
            (calls.start)(pair);
            for request in requests {
                self.add(&calls, request);
            }
            (calls.complete)(pair)
        };
        // The call is all or nothing.
        if failed == 0 { Ok(()) } else { Err(NOTHING) }
    }

    /// Reads the functions, for each post, because the driver replaces some when the queue pair changes its state.
    ///
    /// # Safety
    /// The queue pair must exist.
    unsafe fn calls(&self) -> Option<Calls> {
        // SAFETY: the queue pair exists, and with it its function for raw entries.
        let (pair, entries) = unsafe { (self.verbs.as_ref(), self.entries.map(|entries| entries.as_ref().wr_raw_wqe)) };
        Some(Calls {
            start: pair.wr_start?,
            complete: pair.wr_complete?,
            read: pair.wr_rdma_read?,
            write: pair.wr_rdma_write?,
            cas: pair.wr_atomic_cmp_swp?,
            fetch_add: pair.wr_atomic_fetch_add?,
            set_inline_data: pair.wr_set_inline_data?,
            set_sge: pair.wr_set_sge?,
            raw: self.entries.zip(entries.flatten()),
        })
    }

    /// Adds a request, between the first and the last call of a post.
    ///
    /// # Safety
    /// See [`Poster::post`].
    unsafe fn add(&self, calls: &Calls, request: &SendWr) {
        let pair = self.verbs.as_ptr();
        // SAFETY: the request is linked, so its piece is valid; the queue pair exists, and this thread alone writes its
        // two members.
        let piece = unsafe {
            ((*pair).wr_id, (*pair).wr_flags) = (request.wr_id, request.send_flags);
            &*request.sg_list
        };
        let ((address, key), (_, operand, swap, atomic_key)) = (request.rdma(), request.atomic());
        // SAFETY: the functions are the queue pair's; a raw entry is copied by the call.
        unsafe {
            match (request.opcode, calls.raw) {
                (ffi::WR_MASKED_CAS, Some((entries, raw_wqe))) => {
                    let wqe = mlx5::masked_cas_wqe(self.number, request, piece);
                    // The entry says itself where its result goes.
                    return raw_wqe(entries.as_ptr(), wqe.as_ptr().cast());
                }
                (ffi::WR_RDMA_READ, _) => (calls.read)(pair, key, address),
                (ffi::WR_RDMA_WRITE, _) => (calls.write)(pair, key, address),
                (ffi::WR_ATOMIC_CMP_AND_SWP, _) => (calls.cas)(pair, atomic_key, address, operand, swap),
                _ => (calls.fetch_add)(pair, atomic_key, address, operand),
            }
            if request.send_flags & ffi::SEND_INLINE != 0 {
                (calls.set_inline_data)(pair, piece.addr as *mut c_void, piece.length as usize);
            } else {
                (calls.set_sge)(pair, piece.lkey, piece.addr, piece.length);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod interpreter;
#[cfg(test)]
mod tests;
