//! Posting: from the seam's work requests to chains of the library's, on the stack.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use rdma_sys::{
    bind_mw_t, ibv_access_flags, ibv_mw_bind_info, ibv_post_recv, ibv_post_send, ibv_recv_wr,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};

use super::RawQp;
use crate::nic::{Inline, MAX_SGE, RecvWr, SendOp, SendWr, Sge, Signal, WrId};
use crate::verbs::ret::{CallError, Errno, posted};

/// Work requests that one call posts. 16: as many as the transport sends at a time.
const CHAIN: usize = 16;

impl RawQp {
    /// Posts in order, by as few calls as chains are needed.
    pub(super) fn post_send(&self, batch: &[SendWr]) -> Result<(), CallError> {
        // A bind by itself: what it names is held while it is posted.
        let mut runs = batch.chunk_by(|one, next| !is_bind(one) && !is_bind(next));
        runs.try_for_each(|run| match run {
            [wr] if is_bind(wr) => self.post_bind(wr),
            run => run.chunks(CHAIN).try_for_each(|chunk| self.post_send_chain(chunk)),
        })
    }

    fn post_bind(&self, wr: &SendWr) -> Result<(), CallError> {
        let SendOp::Bind { rkey, lkey, address, len } = wr.op else { return Ok(()) };
        let unknown = CallError { call: "ibv_post_send", errno: Errno(libc::EINVAL) };
        let (mr, window) = self.pd.bindable(lkey, rkey).ok_or(unknown)?;
        let posted = mr.with(|mr| {
            window.with(|mw| {
                let mut raw = send_wr(wr, null_mut(), 0, null_mut());
                let mw_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
                let bind_info =
                    ibv_mw_bind_info { mr, addr: address, length: len, mw_access_flags };
                raw.bind_mw_tso_union.bind_mw = bind_mw_t { mw, rkey: rkey.0, bind_info };
                self.post_send_raw(&raw mut raw)?;
                // Where the library looks for the key to replace when it is bound again.
                // SAFETY: the window exists, and its fields are accessed under its lock, which is held.
                unsafe { (*mw).rkey = rkey.0 };
                Ok(())
            })
        });
        posted.flatten().unwrap_or(Err(unknown))
    }

    fn post_send_chain(&self, batch: &[SendWr]) -> Result<(), CallError> {
        let mut sges = [const { [const { MaybeUninit::<ibv_sge>::uninit() }; MAX_SGE] }; CHAIN];
        let mut chain = [const { MaybeUninit::<ibv_send_wr>::uninit() }; CHAIN];
        let mut next: *mut ibv_send_wr = null_mut();
        // From the last to the first, so that each knows its next.
        for ((wr, sges), place) in batch.iter().zip(&mut sges).zip(&mut chain).rev() {
            let count = write_sges(sges, wr.sges.as_slice());
            let sg_list = sges.as_mut_ptr().cast();
            let raw = place.write(send_wr(wr, sg_list, count, next));
            raw.send_flags |= short_flags(wr, self.always_inline);
            next = raw;
        }
        self.post_send_raw(next)
    }

    /// Posts a Write of no bytes, which needs no rights.
    pub(super) fn post_empty_write(&self, id: WrId) -> Result<(), CallError> {
        let mut wr = empty_send_wr();
        wr.wr_id = id.0;
        wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        self.post_send_raw(&raw mut wr)
    }

    fn post_send_raw(&self, first: *mut ibv_send_wr) -> Result<(), CallError> {
        if first.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair exists (invariant); `first` begins a chain whose work requests and lists
        // live in the caller's frame. The memory that the lists name follows the contract of `nic`: it
        // belongs to the NIC until a completion or the destruction proves otherwise.
        let returned = unsafe { ibv_post_send(self.raw(), first, &raw mut bad) };
        posted("ibv_post_send", returned, bad)
    }

    /// Posts in order, by as few calls as chains are needed.
    pub(super) fn post_recv(&self, batch: &[RecvWr]) -> Result<(), CallError> {
        for_each_recv_chain(batch, |first| {
            let mut bad = null_mut();
            // SAFETY: as for `post_send_raw`.
            let returned = unsafe { ibv_post_recv(self.raw(), first, &raw mut bad) };
            posted("ibv_post_recv", returned, bad)
        })
    }
}

/// Gives `post` receives as chains of the library's, in order. A chain is there until `post` returns.
pub(in crate::verbs) fn for_each_recv_chain(
    batch: &[RecvWr],
    mut post: impl FnMut(*mut ibv_recv_wr) -> Result<(), CallError>,
) -> Result<(), CallError> {
    batch.chunks(CHAIN).try_for_each(|batch| {
        let mut sges = [const { MaybeUninit::<ibv_sge>::uninit() }; CHAIN];
        let mut chain = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; CHAIN];
        let mut next: *mut ibv_recv_wr = null_mut();
        for ((wr, sge), place) in batch.iter().zip(&mut sges).zip(&mut chain).rev() {
            let sg_list: *mut ibv_sge = sge.write(raw_sge(&wr.sge));
            next = place.write(ibv_recv_wr { wr_id: wr.id.0, next, sg_list, num_sge: 1 });
        }
        post(next)
    })
}

fn send_wr(wr: &SendWr, sg_list: *mut ibv_sge, count: i32, next: *mut ibv_send_wr) -> ibv_send_wr {
    let mut raw = empty_send_wr();
    (raw.wr_id, raw.next, raw.sg_list, raw.num_sge) = (wr.id.0, next, sg_list, count);
    if wr.signal == Signal::Yes {
        raw.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    if wr.inline == Inline::Yes {
        raw.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    }
    match wr.op {
        SendOp::Send => {}
        SendOp::Write { address, rkey } => {
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            raw.wr.rdma = rdma_sys::rdma_t { remote_addr: address, rkey: rkey.0 };
        }
        // What it binds, `post_bind` fills in.
        SendOp::Bind { .. } => raw.opcode = ibv_wr_opcode::IBV_WR_BIND_MW,
        SendOp::Invalidate { rkey } => {
            raw.opcode = ibv_wr_opcode::IBV_WR_LOCAL_INV;
            raw.imm_data_invalidated_rkey_union.invalidated_rkey = rkey.0;
        }
    }
    raw
}

/// Sends what is at most `always_inline` bytes long inline, whoever asked for what.
fn short_flags(wr: &SendWr, always_inline: u32) -> u32 {
    match wr.op {
        SendOp::Send | SendOp::Write { .. } if wr.sges.total_len() <= always_inline as usize => {
            ibv_send_flags::IBV_SEND_INLINE.0
        }
        _ => 0,
    }
}

fn is_bind(wr: &SendWr) -> bool {
    matches!(wr.op, SendOp::Bind { .. })
}

/// A SEND of nothing, unsignalled.
fn empty_send_wr() -> ibv_send_wr {
    // SAFETY: the struct and its unions are plain numbers and pointers, for which zeros are a value.
    let mut raw: ibv_send_wr = unsafe { std::mem::zeroed() };
    raw.opcode = ibv_wr_opcode::IBV_WR_SEND;
    raw
}

/// Writes a list; returns its length.
fn write_sges(places: &mut [MaybeUninit<ibv_sge>; MAX_SGE], sges: &[Sge]) -> i32 {
    let mut count = 0;
    for (place, sge) in places.iter_mut().zip(sges) {
        place.write(raw_sge(sge));
        count += 1;
    }
    count
}

fn raw_sge(sge: &Sge) -> ibv_sge {
    ibv_sge { addr: sge.address, length: sge.len, lkey: sge.lkey.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Lkey, Rkey};
    use crate::nic::Sges;

    #[test]
    fn short_payloads_are_inline_where_they_have_to_be() {
        let inline = ibv_send_flags::IBV_SEND_INLINE.0;
        let write = SendOp::Write { address: 0, rkey: Rkey(9) };
        for (op, len, limit, flags) in [
            (write, 6, 32, inline),
            (write, 32, 32, inline),
            (SendOp::Send, 1, 32, inline),
            (write, 33, 32, 0),
            (write, 6, 0, 0),
            (SendOp::Invalidate { rkey: Rkey(9) }, 0, 32, 0),
        ] {
            let sges = Sges::one(Sge { address: 4091, len, lkey: Lkey(3) });
            let wr = SendWr { id: WrId(5), op, sges, signal: Signal::Yes, inline: Inline::No };
            assert_eq!(short_flags(&wr, limit), flags, "{op:?} of {len} bytes");
        }
    }

    #[test]
    fn a_work_request_keeps_all_that_it_says() {
        let sges = Sges::one(Sge { address: 4096, len: 10, lkey: Lkey(3) });
        let op = SendOp::Write { address: 1 << 40, rkey: Rkey(9) };
        let wr = SendWr { id: WrId(5), op, sges, signal: Signal::Yes, inline: Inline::Yes };
        let raw = send_wr(&wr, null_mut(), 1, null_mut());
        let flags = ibv_send_flags::IBV_SEND_SIGNALED | ibv_send_flags::IBV_SEND_INLINE;
        assert_eq!((raw.wr_id, raw.num_sge, raw.send_flags), (5, 1, flags.0));
        assert_eq!(raw.opcode, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        // SAFETY: the work request is a Write, so this is the union's part that was written.
        let target = unsafe { raw.wr.rdma };
        assert_eq!((target.remote_addr, target.rkey), (1 << 40, 9));
        let plain = SendWr { op: SendOp::Send, signal: Signal::No, inline: Inline::No, ..wr };
        let raw = send_wr(&plain, null_mut(), 1, null_mut());
        assert_eq!((raw.opcode, raw.send_flags), (ibv_wr_opcode::IBV_WR_SEND, 0));
        let op = SendOp::Invalidate { rkey: Rkey(0x1_0002) };
        let raw = send_wr(&SendWr { op, ..plain }, null_mut(), 0, null_mut());
        // SAFETY: both parts of the union are a number of this size.
        let rkey = unsafe { raw.imm_data_invalidated_rkey_union.invalidated_rkey };
        assert_eq!((raw.opcode, rkey), (ibv_wr_opcode::IBV_WR_LOCAL_INV, 0x1_0002));
    }
}
