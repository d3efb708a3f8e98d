//! Completion queues, each with its completion channel.
//!
//! Events are acknowledged in batches, since that takes a lock, and the rest before the queue is destroyed:
//! `ibv_destroy_cq` waits for it.

use std::any::Any;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll};

use rdma_sys::{
    ibv_ack_cq_events, ibv_cq, ibv_create_cq, ibv_destroy_cq, ibv_poll_cq, ibv_req_notify_cq,
    ibv_wc, ibv_wc_opcode, ibv_wc_status,
};

use super::channel::{CompChannel, Read, Readable};
use super::context::Context;
use super::fate::{CqFate, CqKey, Fates};
use super::reaper::reap;
use super::ret::{CallError, count, non_null, zero_or_errno};
use crate::nic::{Cq, NicError, QpNumber, Wc, WcStatus, WrId};

/// Events that are acknowledged with one call. 64: a lock per so many waits is not seen.
const ACK_BATCH: u32 = 64;

/// Completions taken from the device with one call.
const POLL_BATCH: usize = 16;

/// A completion queue as the device has it.
///
/// # Invariants
///
/// `raw` is a completion queue of `context` until `self` drops, which destroys it; queue pairs that use it are
/// destroyed before. `unacked` counts its events that were taken and not acknowledged.
pub(super) struct RawCq {
    raw: NonNull<ibv_cq>,
    unacked: AtomicU32,
    context: Arc<Context>,
}

// SAFETY: libibverbs is thread safe; see `Context`.
unsafe impl Send for RawCq {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawCq {}

impl RawCq {
    /// A queue for `depth` completions of which events go to `channel`.
    pub(super) fn create(
        context: &Arc<Context>,
        depth: u32,
        channel: Option<&CompChannel>,
    ) -> Result<Self, NicError> {
        let entries = i32::try_from(depth).unwrap_or(i32::MAX);
        let channel = channel.map_or(null_mut(), CompChannel::raw);
        // SAFETY: the context is open while it is borrowed, and so is the channel if there is one.
        let raw = unsafe { ibv_create_cq(context.raw(), entries, null_mut(), channel, 0) };
        let raw = non_null("ibv_create_cq", raw).map_err(|error| {
            error.advise(&format!(
                "{depth} completions were asked for: lower the windows and the send depth, or close \
                 connections"
            ))
        })?;
        Ok(Self { raw, unacked: AtomicU32::new(0), context: Arc::clone(context) })
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    pub(super) fn key(&self) -> CqKey {
        CqKey(self.raw.addr().get())
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Takes up to `POLL_BATCH` completions.
    fn poll_some(&self, out: &mut Vec<Wc>, max: usize) -> Result<usize, CallError> {
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; POLL_BATCH];
        let wanted = i32::try_from(max.min(POLL_BATCH)).unwrap_or(1);
        // SAFETY: the queue exists (invariant), and `batch` has room for as many as are asked for.
        let returned = unsafe { ibv_poll_cq(self.raw(), wanted, batch.as_mut_ptr().cast()) };
        let taken = count("ibv_poll_cq", returned)?;
        for wc in batch.iter().take(taken) {
            // SAFETY: the device wrote as many entries as it said.
            out.push(completion(unsafe { wc.assume_init_ref() }));
        }
        Ok(taken)
    }

    fn arm(&self) -> Result<(), CallError> {
        // SAFETY: the queue exists (invariant).
        let returned = unsafe { ibv_req_notify_cq(self.raw(), 0) };
        zero_or_errno("ibv_req_notify_cq", returned)
    }

    /// Takes an event of `channel`, whose only queue this is.
    fn take_event(&self, channel: &CompChannel) -> Result<Read<()>, CallError> {
        let Read::Something(_this) = channel.read()? else { return Ok(Read::Empty) };
        self.unacked.fetch_add(1, Ordering::Relaxed);
        Ok(Read::Something(()))
    }

    /// Acknowledges, once at least `least` events are due.
    fn ack(&self, least: u32) {
        if self.unacked.load(Ordering::Relaxed) < least {
            return;
        }
        let count = self.unacked.swap(0, Ordering::Relaxed);
        // SAFETY: the queue exists, and `unacked` counted its events until this took them (invariant).
        unsafe { ibv_ack_cq_events(self.raw(), count) }
    }
}

impl Drop for RawCq {
    fn drop(&mut self) {
        self.ack(1);
        // SAFETY: the queue exists, nothing uses it any more (invariant), and its events are acknowledged.
        let returned = unsafe { ibv_destroy_cq(self.raw()) };
        if let Err(error) = zero_or_errno("ibv_destroy_cq", returned) {
            tracing::error!(%error, "a completion queue stays");
        }
    }
}

/// A completion queue with its channel in a runtime's reactor.
pub(super) struct VerbsCq {
    /// `None` only when `self` is about to drop.
    parts: Option<Parts>,
    fates: Arc<Fates>,
    fate: Arc<CqFate>,
}

/// In the order in which they go: the queue is destroyed, the channel leaves the reactor and is closed.
struct Parts {
    queue: RawCq,
    channel: Readable<CompChannel>,
}

impl VerbsCq {
    /// A queue for `depth` completions, in the reactor of the current runtime.
    pub(super) fn create(
        context: &Arc<Context>,
        fates: &Arc<Fates>,
        depth: u32,
    ) -> Result<Self, NicError> {
        let channel = Readable::new(CompChannel::create(context)?)?;
        let queue = RawCq::create(context, depth, Some(channel.get()))?;
        let fate = fates.add_cq(queue.key());
        let parts = Some(Parts { queue, channel });
        Ok(Self { parts, fates: Arc::clone(fates), fate })
    }

    pub(super) fn queue(&self) -> &RawCq {
        &self.parts().queue
    }

    fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("the parts are taken only by drop")
    }
}

impl Cq for VerbsCq {
    fn poll(&self, out: &mut Vec<Wc>, max: usize) -> Result<usize, NicError> {
        self.fate.check()?;
        let mut total = 0;
        while total < max {
            let wanted = max - total;
            let taken = self.queue().poll_some(out, wanted)?;
            total += taken;
            if taken < wanted.min(POLL_BATCH) {
                break;
            }
        }
        Ok(total)
    }

    fn arm(&self) -> Result<(), NicError> {
        self.fate.check()?;
        Ok(self.queue().arm()?)
    }

    fn poll_event(&self, cx: &mut TaskContext<'_>) -> Poll<Result<(), NicError>> {
        self.fate.check()?;
        let Parts { queue, channel } = self.parts();
        // One arming makes one event, so that reading until there is none would only cost a call.
        match channel.poll_one(cx, |channel| queue.take_event(channel)) {
            Poll::Ready(taken) => taken?,
            Poll::Pending => {
                self.fate.poll_lost(cx)?;
                return Poll::Pending;
            }
        }
        queue.ack(ACK_BATCH);
        Poll::Ready(Ok(()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for VerbsCq {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        // Once destroyed, its address may name another queue.
        self.fates.remove_cq(parts.queue.key());
        reap(move || drop(parts));
    }
}

/// What the device wrote. Of a failure only id, status and queue pair mean anything.
fn completion(wc: &ibv_wc) -> Wc {
    let result = match wc.status {
        ibv_wc_status::IBV_WC_SUCCESS => {
            let is_receive = wc.opcode & ibv_wc_opcode::IBV_WC_RECV != 0;
            Ok(if is_receive { wc.byte_len } else { 0 })
        }
        status => Err(WcStatus(status)),
    };
    Wc { id: WrId(wc.wr_id), qp: QpNumber(wc.qp_num), result }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(status: u32, opcode: u32) -> Wc {
        // SAFETY: the struct is plain numbers, for which zeros are a value.
        let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
        (wc.wr_id, wc.qp_num, wc.byte_len) = (7, 17, 100);
        (wc.status, wc.opcode) = (status, opcode);
        completion(&wc)
    }

    #[test]
    fn a_failure_gives_its_status_whatever_else_is_written() {
        for opcode in [0, ibv_wc_opcode::IBV_WC_RECV, u32::MAX] {
            for status in [ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 4711] {
                let expected = Wc { id: WrId(7), qp: QpNumber(17), result: Err(WcStatus(status)) };
                assert_eq!(written(status, opcode), expected);
            }
        }
    }

    #[test]
    fn only_receives_have_a_length() {
        assert_eq!(written(0, ibv_wc_opcode::IBV_WC_RECV).result, Ok(100));
        assert_eq!(written(0, ibv_wc_opcode::IBV_WC_SEND).result, Ok(0));
    }
}
