//! Who may have how many of the receives that connections share.
//!
//! ```text
//!   posted = floors of all members + loans + free + for newcomers + for what is missing
//! ```
//!
//! Each member has its floor for as long as it lives, so that each goes on whatever others do. Some is kept for the floors of
//! newcomers. What is left is lent to who asks, in the order of asking, half of what is free at a time. When nothing is
//! free, loans are asked back: of who has most, down to an equal share; of who has had its loan for [`HELD`], all, for it is idle
//! or asks again at once. One loan at a time, until it is back or [`PATIENCE`] has passed.
//!
//! Pure. Owns no receive; a loan counts from when it is given until its borrower has said that it is back.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::credit::loan::Change;

/// After what time a loan is asked back although it is no larger than those of others. 1 s: many round trips, so that
/// who uses it loses little.
pub const HELD: Duration = Duration::from_secs(1);

/// How long a loan that was asked back is waited for before another one is. 100 ms: a living peer answers at once.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// A member: an entry, and which of those that had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberId {
    at: usize,
    generation: u32,
}

/// Receives that are lent to nobody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// For those that are missing: never promised.
    pub for_missing: u32,
    /// For the floors of members to come. When these have used it, loans are asked back.
    pub for_newcomers: u32,
}

/// There is no floor left for one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a connection needs {needed} of the {posted} receives that connections share, and {promised} are promised to {members} others"
)]
pub struct NoFloor {
    /// Receives of a floor.
    pub needed: u32,
    /// Receives of all.
    pub posted: u32,
    /// Receives of the members' floors and loans.
    pub promised: u32,
    /// Members.
    pub members: usize,
}

/// How the receives are divided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shares {
    /// Receives that were posted at first.
    pub posted: u32,
    /// Of these, floors of members.
    pub floors: u32,
    /// Lent, beyond the floors.
    pub lent: u32,
    /// Taken by messages that never completed, for example of connections that have ended since.
    pub missing: u32,
    /// Members.
    pub members: usize,
    /// Members that wait for a loan.
    pub waiting: usize,
}

impl Shares {
    /// Adds others.
    pub(crate) fn add(&mut self, other: &Self) {
        self.posted += other.posted;
        self.floors += other.floors;
        self.lent += other.lent;
        self.missing += other.missing;
        self.members += other.members;
        self.waiting += other.waiting;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Loans {
    posted: u32,
    kept: Kept,
    missing: u32,
    floors: u32,
    lent: u32,
    entries: Vec<Entry>,
    free: Vec<usize>,
    /// First come, first served; each once.
    waiting: VecDeque<MemberId>,
    /// With a change that they have not taken.
    changed: BTreeSet<MemberId>,
    recall: Option<Recall>,
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    member: Option<Member>,
}

#[derive(Debug)]
struct Member {
    floor: u32,
    loan: u32,
    /// Of `loan`, what it has not taken notice of.
    given: u32,
    keep: Option<u32>,
    /// Longest loan.
    most: u32,
    wanted: u32,
    /// When it was last lent something.
    since: Option<Instant>,
}

/// A loan that is asked back.
#[derive(Debug, Clone, Copy)]
struct Recall {
    from: MemberId,
    keep: u32,
    asked: Instant,
}

impl Loans {
    /// Of `posted` receives, those that are kept are lent to nobody.
    pub fn new(posted: u32, kept: Kept) -> Self {
        Self {
            posted,
            kept,
            missing: 0,
            floors: 0,
            lent: 0,
            entries: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            changed: BTreeSet::new(),
            recall: None,
        }
    }

    /// A new member with a floor of so many receives, and loans of at most `most`.
    ///
    /// # Errors
    ///
    /// All receives are promised.
    pub fn admit(&mut self, floor: u32, most: u32) -> Result<MemberId, NoFloor> {
        if floor > self.unpromised() {
            let (posted, promised) = (self.posted, self.floors + self.lent);
            let members = self.entries.len() - self.free.len();
            return Err(NoFloor { needed: floor, posted, promised, members });
        }
        self.floors += floor;
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() - 1
        });
        let entry = &mut self.entries[at];
        entry.generation = entry.generation.wrapping_add(1);
        let (loan, given, keep, wanted, since) = (0, 0, None, 0, None);
        entry.member = Some(Member { floor, loan, given, keep, most, wanted, since });
        Ok(MemberId { at, generation: entry.generation })
    }

    /// A member's floor is less by `count` from now on.
    pub fn lower_floor(&mut self, id: MemberId, count: u32, now: Instant) {
        if let Some(member) = self.member(id) {
            let count = count.min(member.floor);
            member.floor -= count;
            self.floors -= count;
        }
        self.serve(now);
    }

    /// A member says that it could use a loan that is greater by `count`.
    pub fn want(&mut self, id: MemberId, count: u32, now: Instant) {
        let Some(member) = self.member(id) else { return };
        member.wanted = count.min(member.most.saturating_sub(member.loan));
        if member.wanted > 0 && !self.waiting.contains(&id) {
            self.waiting.push_back(id);
        }
        self.serve(now);
    }

    /// A member has given `count` back.
    pub fn give_back(&mut self, id: MemberId, count: u32, now: Instant) {
        if let Some(member) = self.member(id) {
            let count = count.min(member.loan);
            member.loan -= count;
            let loan = member.loan;
            self.lent -= count;
            self.recall = self.recall.filter(|recall| recall.from != id || loan > recall.keep);
        }
        self.serve(now);
    }

    /// A member takes no more receives. Does nothing for one that has left.
    pub fn leave(&mut self, id: MemberId, now: Instant) {
        let entry = self.entries.get_mut(id.at).filter(|entry| entry.generation == id.generation);
        let Some(member) = entry.and_then(|entry| entry.member.take()) else { return };
        self.floors -= member.floor;
        self.lent -= member.loan;
        self.free.push(id.at);
        self.waiting.retain(|waiting| *waiting != id);
        self.changed.remove(&id);
        self.recall = self.recall.filter(|recall| recall.from != id);
        self.serve(now);
    }

    /// So many receives were taken and have not completed, although later ones have.
    pub fn set_missing(&mut self, missing: u32) {
        self.missing = missing;
    }

    /// Whether the reserve stands in for all that are missing.
    pub fn is_whole(&self) -> bool {
        self.missing <= self.kept.for_missing
    }

    /// Gives what is free to who waits, and asks back if there is nothing. Also called as time passes.
    pub fn serve(&mut self, now: Instant) {
        while self.unpromised() >= self.kept.for_newcomers {
            let Some(first) = self.waiting.front().copied() else { return };
            let free = self.unpromised().saturating_sub(self.kept.for_newcomers);
            if free == 0 {
                return self.ask_back(Some(first), now);
            }
            self.waiting.pop_front();
            let Some(member) = self.member(first) else { continue };
            let count = std::mem::take(&mut member.wanted).min(free.div_ceil(2));
            member.loan += count;
            member.given += count;
            member.keep = None;
            member.since = Some(now);
            self.lent += count;
            self.recall = self.recall.filter(|recall| recall.from != first);
            self.changed.insert(first);
        }
        self.ask_back(None, now);
    }

    /// The next change that its member has to be told.
    pub fn poll_changed(&mut self) -> Option<MemberId> {
        self.changed.pop_first()
    }

    /// What a member is to tell its peer: loans first.
    pub fn take_change(&mut self, id: MemberId) -> Option<Change> {
        let member = self.member(id)?;
        match std::mem::take(&mut member.given) {
            0 => member.keep.take().map(Change::Keep),
            given => Some(Change::Lend(given)),
        }
    }

    /// Whether a member waits for a loan.
    pub fn waits(&self, id: MemberId) -> bool {
        self.waiting.contains(&id)
    }

    /// A member's floor and its loan; 0 of one that has left.
    pub fn promised(&self, id: MemberId) -> u32 {
        let entry = self.entries.get(id.at).filter(|entry| entry.generation == id.generation);
        let member = entry.and_then(|entry| entry.member.as_ref());
        member.map_or(0, |member| member.floor + member.loan)
    }

    /// How the receives are divided now.
    pub fn shares(&self) -> Shares {
        Shares {
            posted: self.posted,
            floors: self.floors,
            lent: self.lent,
            missing: self.missing,
            members: self.entries.len() - self.free.len(),
            waiting: self.waiting.len(),
        }
    }

    fn unpromised(&self) -> u32 {
        let kept = self.kept.for_missing.max(self.missing);
        self.posted.saturating_sub(kept).saturating_sub(self.floors + self.lent)
    }

    /// Asks for a loan that `first` might have, or a newcomer, unless one is on its way back.
    fn ask_back(&mut self, first: Option<MemberId>, now: Instant) {
        let stuck = match self.recall {
            Some(recall) if now.saturating_duration_since(recall.asked) < PATIENCE => return,
            stuck => stuck.map(|recall| recall.from),
        };
        let own = first.map_or(0, |first| self.loan_of(first));
        let holders = self.holders().count();
        let lendable = (self.lent + self.unpromised()).saturating_sub(self.kept.for_newcomers);
        let poor = self.waiting.iter().filter(|id| self.loan_of(**id) == 0).count();
        let claims = u32::try_from(holders + poor).unwrap_or(u32::MAX);
        let fair = (lendable / claims.max(1)).max(1);
        let others = || self.holders().filter(|(id, _)| Some(*id) != first && Some(*id) != stuck);
        let largest = others().max_by_key(|(id, member)| (member.loan, std::cmp::Reverse(*id)));
        let oldest = others().min_by_key(|(id, member)| (member.since, *id));
        let held = |member: &Member| {
            member.since.is_none_or(|since| now.saturating_duration_since(since) >= HELD)
        };
        let victim = match (largest, oldest) {
            (Some((id, member)), _) if own < fair && member.loan > fair => Some((id, fair)),
            (Some((id, member)), _) if first.is_none() => Some((id, member.loan / 2)),
            (_, Some((id, member))) if held(member) => Some((id, 0)),
            _ => None,
        };
        // Nobody else is asked while who was asked last does not answer; it may still.
        let Some((from, keep)) = victim else { return };
        self.recall = Some(Recall { from, keep, asked: now });
        if let Some(member) = self.member(from) {
            member.keep = Some(keep);
            self.changed.insert(from);
        }
    }

    fn loan_of(&self, id: MemberId) -> u32 {
        let entry = self.entries.get(id.at).filter(|entry| entry.generation == id.generation);
        entry.and_then(|entry| entry.member.as_ref()).map_or(0, |member| member.loan)
    }

    fn holders(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        self.entries.iter().enumerate().filter_map(|(at, entry)| {
            let member = entry.member.as_ref().filter(|member| member.loan > 0)?;
            Some((MemberId { at, generation: entry.generation }, member))
        })
    }

    fn member(&mut self, id: MemberId) -> Option<&mut Member> {
        let entry = self.entries.get_mut(id.at)?;
        entry.member.as_mut().filter(|_| entry.generation == id.generation)
    }
}

#[cfg(test)]
mod tests;
