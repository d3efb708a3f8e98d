//! Tickets of second paths at a server: which are out, and which one admits whom.
//!
//! ```text
//!            issue             redeem, once
//!   (none) ─────────► out ──────────────────► (none)
//!                      │ its time is over, its connection has ended, or the connection was given a newer one
//!                      └────────────────────► (none)
//! ```
//!
//! Owns what is out, with its end, and how many were turned away and why. Where tokens come from is not its business; they
//! are random. A token is looked for by what is claimed beside it, the number of a connection, which is no secret; so that
//! how long a look-up takes tells nothing about tokens, and the token itself is compared in constant time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::deadlines::deadline_after;
use crate::transport::Ticket;

/// Connections whose used or expired tickets are remembered, so that a refusal can say what was wrong. 1024: only words depend
/// on it.
const REMEMBERED: usize = 1024;

/// Tickets of one server. A connection has at most one at a time, since it makes one attempt at a time; a newer one takes
/// the place of the older.
#[derive(Debug)]
pub struct Tickets {
    lifetime: Duration,
    most: usize,
    out: BTreeMap<u64, Out>,
    /// The last ones that are not out any more, oldest first.
    gone: VecDeque<(u64, [u8; 16], Refused)>,
    counts: TicketCounts,
}

#[derive(Debug)]
struct Out {
    ticket: Ticket,
    until: Instant,
}

/// Why a peer is turned away at a listener that asks for tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It brought none.
    #[error("a ticket is needed here: connect by auto://")]
    Missing,
    /// Nobody was given this one here.
    #[error("the ticket is not known here")]
    Unknown,
    /// It is older than its lifetime.
    #[error("the ticket has expired: ask for a new one")]
    Expired,
    /// It has admitted somebody, or a newer one took its place.
    #[error("the ticket was used, or there is a newer one")]
    Used,
    /// It is good, and another connection's or client's.
    #[error("the ticket is another connection's")]
    NotYours,
}

/// As many tickets are out as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{most} tickets of second paths are out, which is as many as there may be; try again later"
)]
pub struct TooMany {
    /// The bound.
    pub most: usize,
}

/// How many tickets were given out, and what became of those who came with one or without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TicketCounts {
    /// Given out.
    pub issued: u64,
    /// Peers that were let in.
    pub redeemed: u64,
    /// Turned away without a ticket.
    pub missing: u64,
    /// With one that nobody was given.
    pub unknown: u64,
    /// With one that was too old.
    pub expired: u64,
    /// With one that was used.
    pub used: u64,
    /// With one of another connection or client.
    pub not_yours: u64,
}

impl Tickets {
    /// No tickets. Each will admit for `lifetime`; at most `most` are out at a time.
    pub fn new(lifetime: Duration, most: usize) -> Self {
        let counts = TicketCounts::default();
        Self { lifetime, most, out: BTreeMap::new(), gone: VecDeque::new(), counts }
    }

    /// How long a ticket admits.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// What happened so far.
    pub fn counts(&self) -> TicketCounts {
        self.counts
    }

    /// Tickets that admit somebody.
    pub fn out(&self) -> usize {
        self.out.len()
    }

    /// Gives out a ticket with a fresh random token, in the place of one that its connection has.
    ///
    /// # Errors
    ///
    /// As many are out as may be.
    pub fn issue(&mut self, now: Instant, ticket: Ticket) -> Result<(), TooMany> {
        if let Some(older) = self.out.remove(&ticket.connection) {
            self.remember(older.ticket, Refused::Used);
        }
        if self.out.len() >= self.most {
            self.expire(now);
        }
        if self.out.len() >= self.most {
            return Err(TooMany { most: self.most });
        }
        let until = deadline_after(now, self.lifetime);
        self.out.insert(ticket.connection, Out { ticket, until });
        self.counts.issued += 1;
        Ok(())
    }

    /// Lets the bearer in, once. Returns the connection that it belongs to.
    ///
    /// # Errors
    ///
    /// Why not. The ticket that was claimed to be somebody's stays good for its owner.
    pub fn redeem(&mut self, now: Instant, shown: Option<Ticket>) -> Result<u64, Refused> {
        let outcome = shown.ok_or(Refused::Missing).and_then(|shown| self.take(now, shown));
        let counts = &mut self.counts;
        *match &outcome {
            Ok(_) => &mut counts.redeemed,
            Err(Refused::Missing) => &mut counts.missing,
            Err(Refused::Unknown) => &mut counts.unknown,
            Err(Refused::Expired) => &mut counts.expired,
            Err(Refused::Used) => &mut counts.used,
            Err(Refused::NotYours) => &mut counts.not_yours,
        } += 1;
        outcome
    }

    fn take(&mut self, now: Instant, shown: Ticket) -> Result<u64, Refused> {
        let number = shown.connection;
        let Some(out) = self.out.get(&number).filter(|out| same(&out.ticket, &shown)) else {
            return Err(self.why_not(&shown));
        };
        if out.ticket.incarnation != shown.incarnation {
            return Err(Refused::NotYours);
        }
        let is_late = now >= out.until;
        self.out.remove(&number);
        self.remember(shown, if is_late { Refused::Expired } else { Refused::Used });
        if is_late { Err(Refused::Expired) } else { Ok(number) }
    }

    /// Why a token does not admit what it was shown for.
    fn why_not(&self, shown: &Ticket) -> Refused {
        let remembered = self.gone.iter().find(|(_, token, _)| *token == shown.token);
        if let Some((connection, _, why)) = remembered {
            return if *connection == shown.connection { *why } else { Refused::NotYours };
        }
        // Who has a token learns no more from this than by using it.
        if self.out.values().any(|out| same(&out.ticket, shown)) {
            return Refused::NotYours;
        }
        Refused::Unknown
    }

    /// The connection has ended: its ticket admits nobody any more.
    pub fn forget(&mut self, connection: u64) {
        if let Some(out) = self.out.remove(&connection) {
            self.remember(out.ticket, Refused::Expired);
        }
    }

    fn expire(&mut self, now: Instant) {
        let late: Vec<u64> = self
            .out
            .iter()
            .filter(|(_, out)| now >= out.until)
            .map(|(number, _)| *number)
            .collect();
        late.into_iter().for_each(|number| self.forget(number));
    }

    fn remember(&mut self, ticket: Ticket, why: Refused) {
        if self.gone.len() == REMEMBERED {
            self.gone.pop_front();
        }
        self.gone.push_back((ticket.connection, ticket.token, why));
    }
}

/// Whether two tokens are the same, in a time that does not depend on where they differ.
fn same(one: &Ticket, other: &Ticket) -> bool {
    one.token.iter().zip(&other.token).fold(0, |diff, (one, other)| diff | (one ^ other)) == 0
}

#[cfg(test)]
mod tests;
