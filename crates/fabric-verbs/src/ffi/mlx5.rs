//! The driver library of mlx5 devices, which adds raw work queue entries to what libibverbs has.
//!
//! It is libmlx5, the file that libibverbs itself loads as the driver of such a device. It is looked for only among the
//! libraries that are loaded already, so a machine without an mlx5 device, or without the library, has none of it.
//!
//! Invariant: the function pointers are those of a library that is never unloaded, with the types of rdma-core's
//! `infiniband/mlx5dv.h`.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix;

use super::{Context, Device, Qp, QpEx, QpInitAttrEx, Zeroed, layout};

/// The file that the dynamic linker looks for; also the name that the library has inside, whatever file it came from.
const FILE: &str = "libmlx5.so.1";

/// `MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS`.
pub(crate) const MASK_CREATE_FLAGS: u64 = 1;
/// `MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS`.
pub(crate) const MASK_SEND_OPS_FLAGS: u64 = 1 << 2;
/// `MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE`: results are not delivered inside completions.
pub(crate) const DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;
/// `MLX5DV_QP_EX_WITH_RAW_WQE`.
pub(crate) const WITH_RAW_WQE: u64 = 1 << 3;

/// `struct mlx5dv_qp_init_attr`.
#[repr(C)]
pub(crate) struct Mlx5QpInitAttr {
    pub(crate) comp_mask: u64,
    pub(crate) create_flags: u32,
    dc_init_attr: [u64; 2],
    pub(crate) send_ops_flags: u64,
}

/// `wr_raw_wqe`: the entry's bytes.
pub(crate) type AddRawWqe = unsafe extern "C" fn(*mut Mlx5QpEx, *const c_void);

/// The start of `struct mlx5dv_qp_ex`: the functions that add work requests of mlx5.
#[repr(C)]
pub(crate) struct Mlx5QpEx {
    comp_mask: u64,
    before_raw: [*mut c_void; 8],
    pub(crate) wr_raw_wqe: Option<AddRawWqe>,
}

// SAFETY: its members are integers and arrays of them, which may all be zero.
unsafe impl Zeroed for Mlx5QpInitAttr {}
// SAFETY: its members are integers, raw pointers and an optional function, which may all be zero.
unsafe impl Zeroed for Mlx5QpEx {}

layout!(Mlx5QpInitAttr: 40, create_flags 8, dc_init_attr 16, send_ops_flags 32);
layout!(Mlx5QpEx: 80, wr_raw_wqe 72);

/// The functions of libmlx5.
pub(crate) struct Mlx5 {
    pub(crate) is_supported: unsafe extern "C" fn(*mut Device) -> bool,
    pub(crate) create_qp: unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx, *mut Mlx5QpInitAttr) -> *mut Qp,
    pub(crate) qp_ex_from_ibv_qp_ex: unsafe extern "C" fn(*mut QpEx) -> *mut Mlx5QpEx,
}

impl Mlx5 {
    /// Returns the library, if it is the driver of a device of this process and has all functions.
    pub(crate) fn get() -> Option<&'static Mlx5> {
        static LOADED: OnceLock<Mlx5> = OnceLock::new();
        if let Some(library) = LOADED.get() {
            return Some(library);
        }
        // A driver that libibverbs loads later, for a device that is plugged in, is found then.
        let library = Mlx5::load(libc::RTLD_NOW | libc::RTLD_NOLOAD)?;
        Some(LOADED.get_or_init(|| library))
    }

    fn load(flags: c_int) -> Option<Mlx5> {
        // SAFETY: the initialisers of libmlx5 have no requirements.
        let library = unsafe { unix::Library::open(Some(FILE), flags) }.ok()?;
        // SAFETY: the symbols are functions of these types in every libmlx5 with this file name.
        let functions = unsafe {
            Mlx5 {
                is_supported: *library.get(b"mlx5dv_is_supported\0").ok()?,
                create_qp: *library.get(b"mlx5dv_create_qp\0").ok()?,
                qp_ex_from_ibv_qp_ex: *library.get(b"mlx5dv_qp_ex_from_ibv_qp_ex\0").ok()?,
            }
        };
        // The functions are used until the process ends.
        std::mem::forget(library);
        Some(functions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a process of its own, because it loads the library.
    #[test]
    fn an_installed_libmlx5_has_the_functions() {
        if std::env::var_os("GUIRA_TEST_LIBMLX5").is_none() {
            let program = std::env::current_exe().unwrap();
            let name = "ffi::mlx5::tests::an_installed_libmlx5_has_the_functions";
            let mut child = std::process::Command::new(program);
            let status = child.args(["--exact", name]).env("GUIRA_TEST_LIBMLX5", "1").status().unwrap();
            assert!(status.success());
            return;
        }
        assert!(Mlx5::get().is_none(), "libibverbs has not loaded it");
        // SAFETY: the initialisers of libmlx5 have no requirements.
        let is_installed = unsafe { unix::Library::open(Some(FILE), libc::RTLD_NOW) }.is_ok();
        assert_eq!(Mlx5::load(libc::RTLD_NOW).is_some(), is_installed);
        assert_eq!(Mlx5::get().is_some(), is_installed, "it is found once it is loaded");
    }
}
