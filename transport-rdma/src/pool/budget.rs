//! A bound on the memory of several pools together, and the line of those that want more of it.
//!
//! Where untrusted peers have a protection domain and a landing pool each, one pool's cap bounds nothing. The pools share
//! a budget, and wait for it as tasks wait for a pool:
//!
//! * **First in, first out.** A pool that has somebody waiting stands in line. The first of the line serves whom it can
//!   from what has come back to it, or has one slab made; then it is the next one's turn, and whoever needs more stands
//!   behind. So a pool with many who wait takes no more turns than one with few.
//! * **Nobody overtakes.** While there is a line no pool hands out anything but in its turn. Else one whose buffers are
//!   always in use would never give a slab up.
//! * **Idle slabs make room.** When the first one finds too little, all pools give up what nobody uses.
//!
//! Where nobody waits a pool sees none of this.

use std::collections::VecDeque;
use std::mem;
use std::ptr::addr_eq;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::memory::Slab;
use crate::reaper::Reaper;

/// A pool that shares a budget.
pub(super) trait Member: Send + Sync {
    /// It is this pool's turn: it serves whom it can. If it can serve nobody, it has a slab of at most `room` bytes made, and
    /// says [`Budget::end_turn`] when that is there, or refused.
    fn take_turn(self: Arc<Self>, room: usize) -> Turn;

    /// Whether it has slabs that nobody uses.
    fn has_idle(&self) -> bool;

    /// Gives them up.
    fn give_up_idle(&self);

    /// Where that is done, since it may block.
    fn reaper(&self) -> &dyn Reaper;
}

/// What became of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nobody waits any more, or only for what this pool itself must get back.
    Over,
    /// Somebody was served.
    Served,
    /// A slab is being made.
    Making,
    /// There is too little room for a slab.
    NoRoom,
}

/// See the module.
pub struct Budget {
    cap: usize,
    known: Mutex<Known>,
    /// Whether there is a line. Written under the lock.
    has_line: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// With their lengths.
    slabs: Vec<(Weak<Slab>, usize)>,
    members: Vec<Weak<dyn Member>>,
    line: VecDeque<Weak<dyn Member>>,
    /// Turns are given by one task at a time.
    giving: Giving,
    /// Whether idle slabs are being given up.
    clearing: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Giving {
    #[default]
    Nobody,
    Somebody,
    /// Something has happened since: it looks once more.
    Again,
}

impl Budget {
    /// So many bytes of slabs for all pools.
    pub fn new(cap: usize) -> Arc<Self> {
        Arc::new(Self { cap, known: Mutex::default(), has_line: AtomicBool::new(false) })
    }

    pub(super) fn join(&self, member: Weak<dyn Member>) {
        let mut known = self.known();
        known.members.retain(|member| member.strong_count() > 0);
        known.members.push(member);
    }

    /// Whether some pool waits: then nothing is handed out but in turn.
    pub(super) fn has_line(&self) -> bool {
        self.has_line.load(Ordering::SeqCst)
    }

    /// Whether this pool stands in line.
    pub(super) fn is_waiting(&self, member: &Weak<dyn Member>) -> bool {
        self.known().line.iter().any(|waiting| is_same(waiting, member))
    }

    /// Bytes of all slabs, and how many there may be.
    pub(super) fn amounts(&self) -> (usize, usize) {
        (self.known().held(), self.cap)
    }

    /// A slab of a member was made.
    pub(super) fn count(&self, slab: &Arc<Slab>) {
        self.known().slabs.push((Arc::downgrade(slab), slab.len()));
    }

    /// Somebody waits in this pool: it stands in line, unless it does already.
    pub(super) fn stand_in_line(self: &Arc<Self>, member: Weak<dyn Member>) {
        self.change(|known| {
            if !known.line.iter().any(|waiting| is_same(waiting, &member)) {
                known.line.push_back(member);
            }
        });
    }

    /// The slab of this pool's turn is there, or refused.
    pub(super) fn end_turn(self: &Arc<Self>, member: &Weak<dyn Member>) {
        self.change(|known| known.rotate(member));
    }

    /// Something has happened by which the first of the line may go on: a buffer has come back, a slab is gone, or somebody
    /// does not wait any more.
    pub(super) fn give_turns(self: &Arc<Self>) {
        if self.has_line() {
            self.change(|_| {});
        }
    }

    /// Changes the line, and gives turns as long as there is news. Each change is news in the moment in which it is made:
    /// who takes a pool out of the line knows by that whether somebody has come to wait in it.
    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Known)) {
        let before = {
            let mut known = self.known();
            change(&mut known);
            self.note_line(&known);
            mem::replace(&mut known.giving, Giving::Again)
        };
        if before != Giving::Nobody {
            return;
        }
        while let Some((first, room)) = self.first() {
            match first.clone().take_turn(room) {
                Turn::Over => self.leave(&first),
                Turn::Served => self.rotate(&Arc::downgrade(&first)),
                Turn::Making => {}
                Turn::NoRoom => self.clear(&*first),
            }
        }
    }

    /// The first of the line, with the room that there is; `None` if nothing has happened since it had its turn.
    fn first(&self) -> Option<(Arc<dyn Member>, usize)> {
        let mut known = self.known();
        let is_news = known.giving == Giving::Again;
        known.line.retain(|member| member.strong_count() > 0);
        self.note_line(&known);
        let first = known.line.front().and_then(Weak::upgrade).filter(|_| is_news);
        known.giving = if first.is_some() { Giving::Somebody } else { Giving::Nobody };
        let room = self.cap.saturating_sub(known.held());
        first.map(|first| (first, room))
    }

    /// The first of the line has had its turn.
    fn rotate(&self, member: &Weak<dyn Member>) {
        let mut known = self.known();
        known.rotate(member);
        known.giving = Giving::Again;
    }

    /// The first of the line needs no more, unless there is news: the next one's turn comes.
    fn leave(&self, member: &Arc<dyn Member>) {
        let mut known = self.known();
        if known.giving != Giving::Again {
            known.line.retain(|waiting| !addr_eq(waiting.as_ptr(), Arc::as_ptr(member)));
            known.giving = Giving::Again;
            self.note_line(&known);
        }
    }

    /// Has idle slabs given up, if there are any.
    fn clear(self: &Arc<Self>, first: &dyn Member) {
        let members: Vec<_> = self.known().members.iter().filter_map(Weak::upgrade).collect();
        if !members.iter().any(|member| member.has_idle())
            || mem::replace(&mut self.known().clearing, true)
        {
            return;
        }
        let budget = Arc::clone(self);
        first.reaper().run(Box::new(move || {
            budget.known().clearing = false;
            members.iter().for_each(|member| member.give_up_idle());
            drop(members);
            budget.give_turns();
        }));
    }

    fn note_line(&self, known: &Known) {
        self.has_line.store(!known.line.is_empty(), Ordering::SeqCst);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Puts a member behind all others. Where nobody waits in it any more its next turn is over at once.
    fn rotate(&mut self, member: &Weak<dyn Member>) {
        let at = self.line.iter().position(|waiting| is_same(waiting, member));
        let turned = at.and_then(|at| self.line.remove(at));
        self.line.extend(turned);
    }

    /// Bytes of all slabs.
    fn held(&mut self) -> usize {
        self.slabs.retain(|(slab, _)| slab.strong_count() > 0);
        self.slabs.iter().map(|(_, len)| len).sum()
    }
}

fn is_same(one: &Weak<dyn Member>, other: &Weak<dyn Member>) -> bool {
    addr_eq(one.as_ptr(), other.as_ptr())
}
