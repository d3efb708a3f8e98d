//! RDMA for verbwire: not implemented yet.
//!
//! The transport behind `rdma://` targets will live here: registered memory in `memory/`, the verbs fence in
//! `verbs/`, a software NIC for tests in `fabric/`. Until then the facade answers `rdma://` with an error
//! that says so.

#![forbid(unsafe_code)]
