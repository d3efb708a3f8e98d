//! What soft-iWARP alone needs.
//!
//! **Queues.** Its library maps each queue at an offset that the kernel chooses per context, first fit, and takes the offset
//! 0x90000 (`SIW_INVAL_UOBJ_KEY` of `rdma/siw-abi.h`) for "none", although the kernel may choose it. The queue is
//! then refused without an errno, and so is every later one, since the place stays the first that fits. So the
//! page at that offset is taken for good, by a queue that begins before it.
//!
//! **Short payloads.** A work request with one run of [`SHORT`] bytes or less travels in its header, into which the kernel's
//! transmitting thread copies it. Where the run crosses a page it copies other bytes (`siw_try_1seg` of 6.1: what
//! is left of the page and what lies behind it are taken for each other). The thread takes over when TCP has no
//! room, so that the end of a long body was wrong now and then on a wire that loses packets. Payloads that are
//! inline are copied another way, so short ones always are.

use std::sync::Arc;

use rdma_sys::ibv_device_attr;

use super::context::Context;
use super::cq::RawCq;
use crate::nic::NicError;

/// soft-iWARP's `vendor_id`: "bmt" in ASCII, `SIW_VENDOR_ID` of the kernel.
const VENDOR: u32 = 0x0062_6d74;

/// Queues whose memory lies one behind another, in completions: 129 pages of offsets, then 9, then 9. Page
/// 0x90, which is 144, is in the last, and not its first.
const QUEUES: [u32; 3] = [16_384, 1024, 1024];

/// `MAX_HDR_INLINE` of the kernel.
pub(super) const SHORT: u32 = 32;

const PAGE: usize = 4096;
/// `struct siw_cqe` and `struct siw_cq_ctrl`.
const ENTRY: usize = 32;
const CONTROL: usize = 8;

const fn pages(entries: u32) -> usize {
    (entries as usize * ENTRY + CONTROL).div_ceil(PAGE)
}

const _: () = {
    let first = pages(QUEUES[0]) + pages(QUEUES[1]);
    assert!(first < 0x90 && 0x90 < first + pages(QUEUES[2]));
};

/// Whether a device is soft-iWARP.
pub(super) fn is_siw(attributes: &ibv_device_attr) -> bool {
    attributes.vendor_id == VENDOR
}

/// Takes the offset, on a context of which nothing was made yet. To be kept as long as queues are made.
pub(super) fn plug(context: &Arc<Context>) -> Result<RawCq, NicError> {
    let [before, near, over] = QUEUES;
    let _before = RawCq::create(context, before, None)?;
    let _near = RawCq::create(context, near, None)?;
    RawCq::create(context, over, None)
}
