//! Tests on RDMA devices: Soft-RoCE, as `cargo xtask test-rdma` starts it in a virtual machine, or real ones. Without a
//! device each test says that it is skipped.

mod fixture;
mod verbs;
