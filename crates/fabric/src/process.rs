//! Detection of forks. A region's lanes check before each batch that they run in the process that opened the region,
//! because a forked child does not own the holds and batches in flight of its parent.
//!
//! A process is distinguished from its children by a number in a page that the kernel zeroes in each child, however it
//! was forked, even by a bare `clone` system call. Where there is no such page (Linux before 4.14, page sizes other
//! than 4 KiB), fork handlers alone change the number.
//!
//! A process that starts another program shares its memory with the new process until the kernel has loaded the
//! program; until then the two count as the same process.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE_WORDS: usize = 1024;

/// A page of 4 KiB whose words belong to one process: no child inherits their values.
#[derive(Debug)]
#[repr(align(4096))]
pub struct WipeOnForkPage([AtomicU32; PAGE_WORDS]);

const _: () = assert!(size_of::<WipeOnForkPage>() == align_of::<WipeOnForkPage>());

static NUMBER: WipeOnForkPage = WipeOnForkPage::zeroed();
/// The last number given to this process or one of its ancestors.
static LAST_NUMBER: AtomicU32 = AtomicU32::new(0);

impl WipeOnForkPage {
    /// Creates a page whose words are all 0.
    #[must_use]
    pub const fn zeroed() -> WipeOnForkPage {
        WipeOnForkPage([const { AtomicU32::new(0) }; PAGE_WORDS])
    }

    /// Returns the word at `index`, which must be less than 1,024.
    ///
    /// # Panics
    /// If `index` is out of range.
    #[inline(always)]
    pub fn word(&self, index: usize) -> &AtomicU32 {
        &self.0[index]
    }

    /// Asks the kernel to zero the words in every child of this process that gets a copy of its memory, however the
    /// child is started.
    ///
    /// # Errors
    /// `EINVAL` if the page size is not 4 KiB, or the kernel does not support it.
    #[cfg(target_os = "linux")]
    pub fn zero_in_children(&'static self) -> io::Result<()> {
        // SAFETY: the call does not access the memory of this program.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        // The kernel would round the length up, and zero memory behind this page.
        if usize::try_from(page_bytes) != Ok(size_of::<WipeOnForkPage>()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = self.0.as_ptr().cast_mut().cast();
        // SAFETY: the range is one whole page that contains only these words. They live as long as the process and are
        // atomics, for which zero is valid; in this process the advice changes nothing.
        match unsafe { libc::madvise(start, size_of::<WipeOnForkPage>(), libc::MADV_WIPEONFORK) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Does nothing: only Linux can zero the words in children.
    ///
    /// # Errors
    /// `Unsupported`, always.
    #[cfg(not(target_os = "linux"))]
    pub fn zero_in_children(&'static self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Registers handlers with the C library: `prepare` is called before each fork, `parent` and `child` after it. They may
/// use atomics, sleep and read clocks, but must not use anything that another thread may have locked.
///
/// # Errors
/// `ENOMEM`.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> io::Result<()> {
    let as_unsafe = |handler: extern "C" fn()| Some(handler as unsafe extern "C" fn());
    // SAFETY: the handlers live as long as the code, and are safe functions that may be called at any time.
    match unsafe { libc::pthread_atfork(as_unsafe(prepare), as_unsafe(parent), as_unsafe(child)) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// The identity of a process among its ancestors and descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Returns the identity of this process. Registers fork handlers on the first call.
    ///
    /// # Errors
    /// The fork handlers could not be registered: `ENOMEM`.
    pub fn current() -> io::Result<Process> {
        static REGISTERED: OnceLock<Result<(), i32>> = OnceLock::new();
        let registered = REGISTERED.get_or_init(|| {
            // Without a zeroed page the fork handlers alone detect forks.
            let _ = NUMBER.zero_in_children();
            at_fork(nothing, nothing, number_child).map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))
        });
        registered.map_err(io::Error::from_raw_os_error)?;
        let known = NUMBER.word(0).load(Ordering::Relaxed);
        if known != 0 {
            return Ok(Process(known));
        }
        // This is the first process, or a child in which no fork handler ran.
        let next = next_number();
        match NUMBER.word(0).compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(Process(next)),
            Err(others) => Ok(Process(others)),
        }
    }

    /// Whether this is the process that called [`Process::current`]. Costs one relaxed load, which suffices: a forked
    /// child begins with one thread, and with another number or none.
    #[inline(always)]
    #[must_use]
    pub fn is_this(self) -> bool {
        NUMBER.word(0).load(Ordering::Relaxed) == self.0
    }
}

fn next_number() -> u32 {
    LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1
}

extern "C" fn nothing() {}

extern "C" fn number_child() {
    NUMBER.word(0).store(next_number(), Ordering::SeqCst);
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// Runs `child` in a child made by a bare system call, which runs no fork handler, and returns its answer.
    #[cfg(target_os = "linux")]
    fn in_a_cloned_child(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: with no flag but the exit signal the call is a fork; the child takes no lock.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if pid == 0 {
            // SAFETY: the call ends the process at once.
            unsafe { libc::_exit(i32::from(!child())) };
        }
        let mut status = 0;
        // SAFETY: the kernel writes to `status`, which outlives the call.
        assert_eq!(i64::from(unsafe { libc::waitpid(pid as libc::pid_t, &mut status, 0) }), pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_child_is_another_process() {
        static WORDS: WipeOnForkPage = WipeOnForkPage::zeroed();
        let mine = Process::current().unwrap();
        assert!(mine.is_this() && Process::current().unwrap() == mine);
        WORDS.zero_in_children().unwrap();
        WORDS.word(PAGE_WORDS - 1).store(7, Ordering::Relaxed);
        assert!(in_a_cloned_child(|| {
            let is_other = !mine.is_this() && WORDS.word(PAGE_WORDS - 1).load(Ordering::Relaxed) == 0;
            // The handlers are registered already, and the child has a number of its own from now on.
            let own = Process::current();
            is_other && own.is_ok_and(|own| own.is_this() && own != mine)
        }));
        assert!(mine.is_this() && WORDS.word(PAGE_WORDS - 1).load(Ordering::Relaxed) == 7);
    }

    #[test]
    fn the_fork_handler_alone_identifies_a_child() {
        let mine = Process::current().unwrap();
        let number = NUMBER.word(0).load(Ordering::Relaxed);
        number_child();
        let is_this = mine.is_this();
        NUMBER.word(0).store(number, Ordering::Relaxed);
        assert!(!is_this && mine.is_this());
    }
}
