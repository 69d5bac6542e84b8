//! libibverbs, loaded at run time.
//!
//! Invariant: the function pointers are those of a library that is never unloaded, with the types of rdma-core's
//! `infiniband/verbs.h`.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::os::unix;

use super::{CompChannel, Context, Cq, Device, DeviceAttr, GidEntry, Mr, Pd, PortAttr, Qp, QpAttr, QpEx, QpInitAttr};
use crate::VerbsError;

/// The file that the dynamic linker looks for.
const FILE: &str = "libibverbs.so.1";

/// The file with the driver for NVIDIA cards.
const MLX5_FILE: &str = "libmlx5.so.1";

/// Declares the structure of functions, and the function that looks all of them up by their names.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs.
        pub(crate) struct Library {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn look_up(file: &'static str, library: &unix::Library) -> Result<Library, VerbsError> {
                Ok(Library { $(
                    // SAFETY: the symbol is a function of this type in every libibverbs with this file name.
                    $field: *unsafe { library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>($symbol) }
                        .map_err(|error| unloadable(file, &error))?,
                )* })
            }
        }
    };
}

functions! {
    get_device_list = b"ibv_get_device_list\0": fn(*mut c_int) -> *mut *mut Device;
    free_device_list = b"ibv_free_device_list\0": fn(*mut *mut Device);
    open_device = b"ibv_open_device\0": fn(*mut Device) -> *mut Context;
    close_device = b"ibv_close_device\0": fn(*mut Context) -> c_int;
    query_device = b"ibv_query_device\0": fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port = b"ibv_query_port\0": fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid_ex = b"_ibv_query_gid_ex\0": fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    alloc_pd = b"ibv_alloc_pd\0": fn(*mut Context) -> *mut Pd;
    dealloc_pd = b"ibv_dealloc_pd\0": fn(*mut Pd) -> c_int;
    reg_mr = b"ibv_reg_mr\0": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr = b"ibv_dereg_mr\0": fn(*mut Mr) -> c_int;
    create_comp_channel = b"ibv_create_comp_channel\0": fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel = b"ibv_destroy_comp_channel\0": fn(*mut CompChannel) -> c_int;
    create_cq = b"ibv_create_cq\0": fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq = b"ibv_destroy_cq\0": fn(*mut Cq) -> c_int;
    get_cq_event = b"ibv_get_cq_event\0": fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events = b"ibv_ack_cq_events\0": fn(*mut Cq, c_uint);
    create_qp = b"ibv_create_qp\0": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = b"ibv_modify_qp\0": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp = b"ibv_destroy_qp\0": fn(*mut Qp) -> c_int;
    qp_to_qp_ex = b"ibv_qp_to_qp_ex\0": fn(*mut Qp) -> *mut QpEx;
    wc_status_str = b"ibv_wc_status_str\0": fn(c_uint) -> *const c_char;
}

impl Library {
    /// Returns the library of this process, loaded by the first call.
    ///
    /// # Errors
    /// `Library`: it is not installed, or too old.
    pub(crate) fn get() -> Result<&'static Library, VerbsError> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let library = Library::load(FILE)?;
        Ok(LOADED.get_or_init(|| library))
    }

    /// Returns the words of libibverbs for a completion's status.
    pub(crate) fn status(&self, status: c_uint) -> String {
        // SAFETY: the call has no requirements; it returns a static text for every status.
        unsafe { CStr::from_ptr((self.wc_status_str)(status)) }.to_string_lossy().into_owned()
    }

    fn load(file: &'static str) -> Result<Library, VerbsError> {
        // SAFETY: the initialisers of libibverbs have no requirements.
        let library = unsafe { unix::Library::open(Some(file), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let library = library.map_err(|error| unloadable(file, &error))?;
        let functions = Library::look_up(file, &library)?;
        // The functions are used until the process ends.
        std::mem::forget(library);
        // Not followed by ibv_fork_init, which would take every page with registered bytes away from forked children,
        // and all else that lies in it: they must live to be refused.
        Ok(functions)
    }
}

/// Whether the library of libibverbs' driver for NVIDIA cards (mlx5) can be loaded.
#[must_use]
pub fn mlx5_library_is_installed() -> bool {
    static IS_INSTALLED: OnceLock<bool> = OnceLock::new();
    *IS_INSTALLED.get_or_init(|| {
        // SAFETY: its initialiser only enters it into libibverbs' list of drivers.
        let library = unsafe { unix::Library::open(Some(MLX5_FILE), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // It is in that list until the process ends.
        library.map(std::mem::forget).is_ok()
    })
}

fn unloadable(library: &'static str, error: &libloading::Error) -> VerbsError {
    // The words of the dynamic linker are in the source of the error.
    let linker = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    VerbsError::Library { library, reason: linker }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_names_the_package() {
        let error = Library::load("no-such-libibverbs.so.1").map(drop).unwrap_err();
        assert!(matches!(&error, VerbsError::Library { library: "no-such-libibverbs.so.1", .. }), "{error}");
        assert!(error.to_string().contains("apt-get install libibverbs1"), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_is_an_error() {
        let error = Library::load("libc.so.6").map(drop).unwrap_err();
        assert!(error.to_string().contains("ibv_"), "{error}");
    }
}
