//! What a [`Rendezvous`] wants posted: frames and Writes, binds and invalidations of windows, in the order in which they are due.
//!
//! Aborts and their acknowledgements go first: memory is quarantined until both have crossed.

use bytes::Bytes;

use super::Rendezvous;
use super::source::Write;
use super::windows::InvalidationId;
use crate::nic::SendOp;
use crate::outbound::Frame;
use crate::pool::StagingBuf;
use crate::proto::credit::Class;
use crate::proto::rendezvous::wire::{self, HeadExtras};
use crate::proto::rendezvous::{HeadOf, TransferId};

/// The next Write.
#[derive(Debug)]
pub(crate) enum NextWrite {
    /// None may be posted now.
    Nothing,
    /// It needs a reserve of so many bytes.
    NeedsReserve(usize),
    /// It is to be posted.
    Write(Write),
}

impl Rendezvous {
    /// Whether a frame or a Write is due.
    pub(crate) fn has_work(&self) -> bool {
        self.is_busy
            && (self.has_control()
                || self.has_data()
                || self.windows.has_bind()
                || self.has_write())
    }

    /// Whether there is a frame that `may_send` allows.
    pub(crate) fn has_frame(&self, may_send: impl Fn(Class) -> bool) -> bool {
        self.is_busy
            && (self.has_control() && may_send(Class::Control)
                || self.has_data() && may_send(Class::Data))
    }

    /// Whether a Write or an invalidation may be posted.
    pub(crate) fn has_write(&self) -> bool {
        self.is_busy && (self.writer.has_write() || self.windows.has_invalidation())
    }

    /// Whether Writes or invalidations are posted whose completions are needed.
    pub(crate) fn awaits_writes(&self) -> bool {
        self.is_busy && (self.writer.awaits_writes() || self.windows.awaits_invalidations())
    }

    /// Whether a window has to be bound before any frame goes out.
    pub(crate) fn has_bind(&self) -> bool {
        self.windows.has_bind()
    }

    /// The next bind; it is being posted.
    pub(crate) fn take_bind(&mut self) -> Option<SendOp> {
        self.windows.take_bind()
    }

    /// The next invalidation; it is being posted.
    pub(crate) fn take_invalidation(&mut self) -> Option<(InvalidationId, SendOp)> {
        self.windows.take_invalidation()
    }

    /// An invalidation has succeeded.
    pub(crate) fn handle_invalidated(&mut self, id: InvalidationId) {
        self.windows.handle_invalidated(id);
    }

    pub(super) fn has_control(&self) -> bool {
        self.writer.has_abort_ack() || self.owner.has_abort()
    }

    fn has_data(&self) -> bool {
        self.owner.has_cts() || self.writer.has_fin() || self.writer.has_announce()
    }

    /// The next frame that `may_send` allows; it is being posted.
    pub(crate) fn take_frame(
        &mut self,
        may_send: impl Fn(Class) -> bool,
    ) -> Option<(Class, Frame)> {
        if may_send(Class::Control) {
            let aborts = self.writer.poll_abort_ack().or_else(|| self.owner.poll_abort());
            if let Some(frame) = aborts {
                return Some((Class::Control, Frame::of_grants(frame)));
            }
        }
        if !may_send(Class::Data) {
            return None;
        }
        if let Some(cts) = self.owner.poll_cts() {
            return Some((Class::Data, Frame::of_grants(cts)));
        }
        let frame = self.take_fin().or_else(|| self.take_announce())?;
        Some((Class::Data, frame))
    }

    fn take_fin(&mut self) -> Option<Frame> {
        let written = self.writer.poll_fin()?;
        let fin = written.fin;
        match written.head {
            HeadOf::Before => Some(Frame::of_grants(wire::Frame::Fin(fin))),
            HeadOf::Now => {
                let extras = HeadExtras { fin: Some(fin), ..HeadExtras::default() };
                self.head(written.transfer, extras)
            }
        }
    }

    fn take_announce(&mut self) -> Option<Frame> {
        let announced = self.writer.poll_announce()?;
        let (rts, unused) = (Some(announced.rts), announced.unused);
        self.head(announced.transfer, HeadExtras { rts, unused, ..HeadExtras::default() })
    }

    fn head(&mut self, transfer: TransferId, extras: HeadExtras) -> Option<Frame> {
        let call = self.writer.source(transfer)?.message().head.call();
        let extras = self.with_offer(call, extras);
        self.writer.source(transfer).map(|source| source.head(extras))
    }

    /// Whether the NIC can read these bytes where they lie.
    pub(crate) fn is_registered(&self, bytes: &Bytes) -> bool {
        let (sources, domain) = &self.registered;
        sources.holds(*domain, bytes)
    }

    /// The next Write; it is being posted.
    pub(crate) fn take_write(&mut self) -> NextWrite {
        let Some(next) = self.writer.next_write() else { return NextWrite::Nothing };
        let Some(source) = self.writer.source(next.transfer) else { return NextWrite::Nothing };
        let is_registered = |bytes: &Bytes| self.is_registered(bytes);
        let plan = source.plan((next.start, next.len), is_registered, self.max_sge);
        let needed = plan.staged_len();
        let reserve = self.reserve.take_if(|reserve| reserve.as_ref().len() >= needed);
        if needed > 0 && reserve.is_none() {
            self.needs = Some(needed);
            return NextWrite::NeedsReserve(needed);
        }
        self.needs = None;
        match self.writer.poll_write() {
            Some(chunk) => NextWrite::Write(Write::new(chunk, plan, reserve)),
            None => NextWrite::Nothing,
        }
    }

    /// Memory for the next Write; gives back what it replaces, or itself where there is nothing to write: it may have been waited for
    /// while the Write found other memory, and would be held for as long as the connection is idle.
    pub(crate) fn set_reserve(&mut self, reserve: StagingBuf) -> Option<StagingBuf> {
        self.needs = None;
        match self.writer.transfers() {
            0 => Some(reserve),
            _ => self.reserve.replace(reserve),
        }
    }

    /// How long a reserve the next Write waits for.
    pub(crate) fn needed_reserve(&self) -> Option<usize> {
        self.needs
    }
}
