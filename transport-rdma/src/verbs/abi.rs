//! What the bindings do not say: layouts, checked when this crate is compiled, and constants of anonymous C
//! enums.
//!
//! The bindings write structs with unions by hand. Were one laid out differently from the headers of the
//! libraries that this build links, every access would be a memory error.

use std::mem::{offset_of, size_of};

use rdma_sys::{
    ibv_async_event, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc, rdma_cm_event, rdma_cm_id,
    rdma_conn_param,
};

/// `RDMA_OPTION_ID` of `rdma/rdma_cma.h`.
pub(super) const OPTION_LEVEL_ID: i32 = 0;

/// `RDMA_OPTION_ID_ACK_TIMEOUT` of `rdma/rdma_cma.h`: one byte, before the route is resolved.
pub(super) const OPTION_ID_ACK_TIMEOUT: i32 = 3;

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<ibv_wc>() == 48);
    assert!(offset_of!(ibv_wc, byte_len) == 20);
    assert!(offset_of!(ibv_wc, qp_num) == 28);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(offset_of!(ibv_send_wr, send_flags) == 32);
    assert!(offset_of!(ibv_send_wr, wr) == 40);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_async_event>() == 16);
    assert!(offset_of!(ibv_async_event, event_type) == 8);
    assert!(size_of::<rdma_cm_event>() == 80);
    assert!(offset_of!(rdma_cm_event, param) == 24);
    assert!(size_of::<rdma_conn_param>() == 24);
    assert!(offset_of!(rdma_conn_param, qp_num) == 16);
    assert!(size_of::<rdma_cm_id>() == 416);
    assert!(offset_of!(rdma_cm_id, route) == 32);
    assert!(offset_of!(rdma_cm_id, port_num) == 348);
};
