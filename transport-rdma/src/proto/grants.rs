//! Whose landing memory is granted next: one queue per connection, one bound per device.
//!
//! Granting is what paces senders: a body that has no grant stays where it is. So what all peers together may be
//! writing to a device is bounded, and connections take turns. A grant counts with what its writer can have in
//! flight at a time, the smaller of its length and the write window; a standing one with the memory that it holds.
//!
//! Pure. Owns no memory; who is admitted asks the pool for it afterwards. Grants that nobody asked for get
//! what is left over while nobody waits, so that they never hold up those who do.

use std::collections::VecDeque;

/// What bounds the grants of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantLimits {
    /// Bytes that are granted at a time.
    pub granted: u64,
    /// Bytes that a writer has in flight at a time, per connection.
    pub window: u64,
    /// Bytes of standing grants, of those that are granted.
    pub standing: u64,
}

/// See the module. `C` names a connection, `T` what waits on it.
#[derive(Debug)]
pub struct GrantScheduler<C, T> {
    limits: GrantLimits,
    granted: u64,
    /// Of `granted`, what standing grants have.
    standing: u64,
    /// Connections with something that waits; the first is the next.
    turns: VecDeque<Turn<C, T>>,
}

#[derive(Debug)]
struct Turn<C, T> {
    connection: C,
    /// Never empty.
    waiting: VecDeque<(T, Cost)>,
}

/// Bytes that a grant counts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost(u64);

/// The right to grant, once. Goes back by [`GrantScheduler::release`] when the grant is closed.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is never released is never granted again"]
pub struct Admission {
    cost: Cost,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Asked,
    Standing,
}

/// A grant that nobody asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unasked {
    /// For the reply of a request that is being sent.
    Reply,
    /// For any request. These have a bound of their own, and count with their whole length, since they are held by
    /// peers that may never send anything.
    Standing,
}

impl<C: Copy + Eq, T: Eq> GrantScheduler<C, T> {
    /// Nothing granted.
    pub fn new(limits: GrantLimits) -> Self {
        Self { limits, granted: 0, standing: 0, turns: VecDeque::new() }
    }

    /// A body of `len` bytes waits on this connection.
    pub fn request(&mut self, connection: C, ticket: T, len: u64) {
        let entry = (ticket, self.cost(len));
        match self.turns.iter_mut().find(|turn| turn.connection == connection) {
            Some(turn) => turn.waiting.push_back(entry),
            None => self.turns.push_back(Turn { connection, waiting: VecDeque::from([entry]) }),
        }
    }

    /// The next that may be granted, first in first out on each connection, the connections in turns. One that
    /// does not fit is waited for, however short the others are; alone each fits.
    pub fn poll_admitted(&mut self) -> Option<(C, T, Admission)> {
        let (_, cost) = self.turns.front()?.waiting.front()?;
        if !self.fits(*cost) {
            return None;
        }
        let mut turn = self.turns.pop_front()?;
        let (ticket, cost) = turn.waiting.pop_front()?;
        let connection = turn.connection;
        if !turn.waiting.is_empty() {
            self.turns.push_back(turn);
        }
        self.granted += cost.0;
        Some((connection, ticket, Admission { cost, kind: Kind::Asked }))
    }

    /// Admits a grant of `len` bytes that nobody asked for, if there is room and nobody waits.
    pub fn admit_unasked(&mut self, len: u64, what: Unasked) -> Option<Admission> {
        let cost = match what {
            Unasked::Reply => self.cost(len),
            Unasked::Standing => Cost(len),
        };
        if !self.turns.is_empty() || !self.fits(cost) {
            return None;
        }
        let kind = match what {
            Unasked::Reply => Kind::Asked,
            Unasked::Standing if self.standing + cost.0 > self.limits.standing => return None,
            Unasked::Standing => {
                self.standing += cost.0;
                Kind::Standing
            }
        };
        self.granted += cost.0;
        Some(Admission { cost, kind })
    }

    /// A grant is closed, or was not given after all. Others may be admitted now.
    pub fn release(&mut self, admission: Admission) {
        let Admission { cost, kind } = admission;
        self.granted -= cost.0;
        if kind == Kind::Standing {
            self.standing -= cost.0;
        }
    }

    /// What waits need not be granted. Nothing happens if it was admitted. Others may be admitted now.
    pub fn withdraw(&mut self, connection: C, ticket: &T) {
        if let Some(turn) = self.turns.iter_mut().find(|turn| turn.connection == connection) {
            turn.waiting.retain(|(waiting, _)| waiting != ticket);
        }
        self.turns.retain(|turn| !turn.waiting.is_empty());
    }

    /// A connection has ended: nothing of it waits any more. What it was granted goes back as always. Others may
    /// be admitted now.
    pub fn remove(&mut self, connection: C) {
        self.turns.retain(|turn| turn.connection != connection);
    }

    /// Bytes that are granted, as they count.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    fn cost(&self, len: u64) -> Cost {
        Cost(len.min(self.limits.window))
    }

    /// What is alone fits. Standing grants are no company: they may be there for as long as their connections.
    fn fits(&self, cost: Cost) -> bool {
        self.granted == self.standing || self.granted.saturating_add(cost.0) <= self.limits.granted
    }
}

#[cfg(test)]
mod tests;
