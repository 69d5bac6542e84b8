//! Which clients are alive: locks on bytes of a file that the kernel releases when a process has ended, and the
//! identities of processes.

pub(crate) mod fork;
pub(crate) mod hold;
pub(crate) mod lock_description;
pub(crate) mod lock_file;
pub(crate) mod process;
