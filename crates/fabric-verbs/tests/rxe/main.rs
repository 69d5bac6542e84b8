//! Tests on RDMA devices: Soft-RoCE, as `cargo xtask test-rdma` starts it in a virtual machine, or real ones. Without a
//! device each test says that it is skipped.
#![allow(unsafe_code, reason = "it forks")]
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod counters;
mod device_space;
mod devices;
mod end;
mod fixture;
mod forks;
mod lanes;
mod processes;
mod verbs;
