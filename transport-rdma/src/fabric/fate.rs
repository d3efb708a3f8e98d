//! What the fabric does to a work request besides executing it. The one place where malice is decided.
//!
//! Every work request passes [`Script::fate_of`] when it is posted. A test writes the script: by host and by
//! the number of the work request on that host. Where the script says nothing, [`Malice`] may choose, by the seed. What
//! came true is counted ([`FaultCounts`]).

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use super::host::HostId;
use crate::nic::SendOp;

/// What happens to a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// What its device does.
    Execute,
    /// It is executed, and its completion shows so much later. Later completions of that queue wait
    /// behind it.
    LateCompletion(Duration),
    /// It is executed, and its success completes silently. Failures are not lost.
    LostCompletion,
    /// Its host dies before it takes the work request.
    Kill(Death),
    /// The bytes of a Write lie at the peer this much later than they arrived, at the latest when the completion of a
    /// SEND behind it shows, or when the queue pair is destroyed. So later Writes are seen before it, and it may be seen
    /// after its queue pair has failed. Nothing for other work.
    LateWrite(Duration),
    /// As [`LateWrite`](Self::LateWrite), but in parts, each at its own time, in any order.
    TornWrite(Duration),
    /// If it is flushed before it has left, it leaves all the same, and all that stands before it. Nothing for receives.
    FlushedYetSent,
    /// If it is flushed, its completion never shows.
    LostFlush,
    /// If it is flushed, its completion shows only after its queue pair was destroyed.
    FlushAfterDestroy,
    /// Its post fails; whether it and the rest of its batch are taken is up to the seed.
    PartialPost,
}

/// The kinds of work request, as far as fates differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WrKind {
    Send,
    Write,
    /// What does not leave its device.
    Local,
    Recv,
}

impl WrKind {
    pub(super) fn of(op: &SendOp) -> Self {
        match op {
            SendOp::Send => Self::Send,
            SendOp::Write { .. } => Self::Write,
            SendOp::Bind { .. } | SendOp::Invalidate { .. } => Self::Local,
        }
    }
}

/// How often work requests meet a fate that no script wrote, each in thousandths of those that can. All 0 by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Malice {
    /// [`Fate::LateWrite`], of Writes.
    pub late_write: u16,
    /// [`Fate::TornWrite`], of Writes.
    pub torn_write: u16,
    /// [`Fate::LateCompletion`].
    pub late_completion: u16,
    /// [`Fate::FlushedYetSent`], of SENDs and Writes.
    pub flushed_yet_sent: u16,
    /// [`Fate::LostFlush`].
    pub lost_flush: u16,
    /// [`Fate::FlushAfterDestroy`].
    pub flush_after_destroy: u16,
    /// [`Fate::PartialPost`].
    pub partial_post: u16,
    /// The longest time that anything of this takes.
    pub delay: Duration,
}

impl Malice {
    fn choose(&self, kind: WrKind, rng: &mut Rng) -> Fate {
        if *self == Self::default() {
            return Fate::Execute;
        }
        let most = u64::try_from(self.delay.as_nanos()).unwrap_or(u64::MAX);
        let delay = Duration::from_nanos(rng.u64(0..=most));
        let writes = kind == WrKind::Write;
        let sends = writes || kind == WrKind::Send;
        let mut roll = rng.u16(0..1000);
        let fates = [
            (writes, self.late_write, Fate::LateWrite(delay)),
            (writes, self.torn_write, Fate::TornWrite(delay)),
            (true, self.late_completion, Fate::LateCompletion(delay)),
            (sends, self.flushed_yet_sent, Fate::FlushedYetSent),
            (true, self.lost_flush, Fate::LostFlush),
            (true, self.flush_after_destroy, Fate::FlushAfterDestroy),
            (true, self.partial_post, Fate::PartialPost),
        ];
        for (applies, share, fate) in fates {
            if !applies {
                continue;
            }
            if roll < share {
                return fate;
            }
            roll -= share;
        }
        Fate::Execute
    }
}

/// How often faults came true, over all hosts: when they changed something, not when they were decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Writes whose bytes, or a part of them, lay at the peer later than they arrived.
    pub late_writes: u64,
    /// Of these, the ones that came in parts.
    pub torn_writes: u64,
    /// Bytes of a Write that lay at the peer before those of an earlier one.
    pub reordered_writes: u64,
    /// Late bytes that had to be placed because a completion behind them showed.
    pub fenced_writes: u64,
    /// Late bytes that were placed after their queue pair had failed.
    pub writes_after_error: u64,
    /// Work requests that were reported flushed and left all the same.
    pub flushed_yet_sent: u64,
    /// Completions that showed late.
    pub late_completions: u64,
    /// Completions of flushed work that never showed.
    pub lost_flushes: u64,
    /// Completions that showed after their queue pair was destroyed.
    pub completions_after_destroy: u64,
    /// Posts that failed after they may have taken something.
    pub partial_posts: u64,
    /// Work that was refused although the device had claimed that it can do it.
    pub lies: u64,
    /// Hosts that died.
    pub deaths: u64,
}

impl FaultCounts {
    /// Each count with its name, for tables.
    pub fn named(&self) -> [(&'static str, u64); 12] {
        [
            ("late writes", self.late_writes),
            ("torn writes", self.torn_writes),
            ("reordered writes", self.reordered_writes),
            ("fenced writes", self.fenced_writes),
            ("writes after error", self.writes_after_error),
            ("flushed yet sent", self.flushed_yet_sent),
            ("late completions", self.late_completions),
            ("lost flushes", self.lost_flushes),
            ("completions after destroy", self.completions_after_destroy),
            ("partial posts", self.partial_posts),
            ("lies", self.lies),
            ("deaths", self.deaths),
        ]
    }
}

/// How a host dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// The power goes: nobody is told. Peers find out when a request of theirs stays unanswered.
    Host,
    /// The process ends, and its kernel disconnects what it leaves.
    Process,
}

/// Which work requests are not simply executed.
#[derive(Debug, Default)]
pub(super) struct Script(BTreeMap<(HostId, u64), Fate>);

impl Script {
    pub(super) fn write(&mut self, host: HostId, nth: u64, fate: Fate) {
        self.0.insert((host, nth), fate);
    }

    /// Takes the fate of the `nth` work request that `host` posts; where there is none, `malice` chooses.
    pub(super) fn fate_of(
        &mut self,
        (host, nth): (HostId, u64),
        kind: WrKind,
        malice: &Malice,
        rng: &mut Rng,
    ) -> Fate {
        self.0.remove(&(host, nth)).unwrap_or_else(|| malice.choose(kind, rng))
    }

    /// Lines of the script that have not come true.
    pub(super) fn pending(&self) -> usize {
        self.0.len()
    }
}
