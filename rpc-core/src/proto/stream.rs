//! The rules of streams: order, windows, and the end.
//!
//! A stream is one direction of one call: [`SendStream`] at the side that sends its messages, [`RecvStream`] at the
//! other. Both are pure, and the same on client and server.
//!
//! **Order.** Messages are numbered from 0. A long one may be overtaken by shorter ones behind it, and by the end;
//! so the end says how many there are, and the receiver puts them in order.
//!
//! **Window.** A message costs its length and [`COST`]. The sender may send the next one as long as what it has sent
//! costs less than what it was granted since the beginning of the stream: so one message may go beyond, and none is too long.
//! The receiver grants more when its user has taken messages, not when they arrive. What waits at the receiver
//! therefore costs less than its window and one message.
//!
//! Nothing is shared between streams: one that nobody reads keeps no other from going on.

mod call;
mod holding;

use std::collections::{BTreeMap, VecDeque};

pub use call::{CallStreams, Over};

/// What a message costs beside its length: what it takes to keep track of it.
pub const COST: u64 = 64;

/// Grants go out in steps of a window's fraction, so that they are few.
const GRANTS_PER_WINDOW: u64 = 4;

/// Windows of new streams, in bytes, as both HELLOs announced.
#[derive(Debug, Clone, Copy)]
pub struct StreamWindows {
    /// Of streams to this side.
    pub local: u32,
    /// Of streams to the peer.
    pub peer: u32,
}

/// The side of a stream that sends its messages.
#[derive(Debug)]
pub struct SendStream {
    /// Messages that were numbered.
    count: u32,
    /// What they cost.
    sent: u64,
    granted: u64,
    state: State,
}

/// Whether messages can follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Ended,
}

/// What is known of the message behind one that was numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It may be sent.
    MayGo,
    /// It has to wait, as far as this is known.
    MayWait,
}

impl SendStream {
    /// A stream to a peer that announced this window.
    pub fn new(window: u32) -> Self {
        Self { count: 0, sent: 0, granted: u64::from(window), state: State::Open }
    }

    /// Whether the next message may be sent.
    pub fn may_send(&self) -> bool {
        self.state == State::Open && self.sent < self.granted
    }

    /// The number of the next message, whose body has `len` bytes; it is going to be sent.
    pub fn number(&mut self, len: usize) -> u32 {
        let number = self.count;
        self.count = self.count.wrapping_add(1);
        self.sent = self.sent.saturating_add(cost(len));
        number
    }

    /// The peer lets more come. Says whether this allows a message that was not allowed before.
    pub fn handle_window(&mut self, granted: u64) -> bool {
        let could = self.may_send();
        self.granted = self.granted.max(granted);
        !could && self.may_send()
    }

    /// Ends the stream; how many messages it had.
    pub fn end(&mut self) -> u32 {
        self.state = State::Ended;
        self.count
    }
}

/// The side of a stream that receives its messages.
#[derive(Debug)]
pub struct RecvStream<M> {
    window: u64,
    /// What the sender may have sent. Never falls.
    granted: u64,
    /// What the messages cost that the user has taken.
    taken: u64,
    /// What all messages cost that are here or were.
    received: u64,
    /// What the first `arrived` of them cost.
    in_order: u64,
    /// Messages that are here or were, without a gap.
    arrived: u64,
    /// The latest message, by its number, and what it cost.
    latest: Option<(u64, u64)>,
    /// Without a gap, to be taken.
    ready: VecDeque<(M, u64)>,
    /// Behind a gap. Of a closed stream, without their bodies.
    early: BTreeMap<u64, (Option<M>, u64)>,
    /// How many messages there are.
    total: Option<u64>,
    user: User,
}

/// Whether somebody wants the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum User {
    Reads,
    Gone,
}

/// A message that was taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken<M> {
    /// The message.
    pub message: M,
    /// What the sender is to be told, if it is worth telling: what it may have sent.
    pub granted: Option<u64>,
}

/// What a message or an end changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing that the user sees.
    Nothing,
    /// There is something to take, or the end.
    News,
}

impl<M> RecvStream<M> {
    /// A stream to this side, which announced `window`.
    pub fn new(window: u32) -> Self {
        let window = u64::from(window);
        Self {
            window,
            granted: window,
            taken: 0,
            received: 0,
            in_order: 0,
            arrived: 0,
            latest: None,
            ready: VecDeque::new(),
            early: BTreeMap::new(),
            total: None,
            user: User::Reads,
        }
    }

    /// A message of `len` bytes came in.
    ///
    /// # Errors
    ///
    /// The sender broke a rule.
    pub fn handle_message(
        &mut self,
        number: u32,
        len: usize,
        message: M,
    ) -> Result<Change, Violation> {
        let full = self.full(number);
        if full < self.arrived || self.early.contains_key(&full) {
            return Err(Violation::Repeated { number });
        }
        if let Some(total) = self.total.filter(|total| full >= *total) {
            return Err(Violation::BehindEnd { number, total });
        }
        self.check_window(full, number)?;
        let cost = cost(len);
        let latest = self.latest.filter(|(latest, _)| *latest > full).unwrap_or((full, cost));
        let received = self.received.saturating_add(cost);
        if received - latest.1 >= self.granted {
            return Err(Violation::Window { number, granted: self.granted });
        }
        self.received = received;
        self.latest = Some(latest);
        let message = (self.user == User::Reads).then_some(message);
        if full > self.arrived {
            self.early.insert(full, (message, cost));
            return Ok(Change::Nothing);
        }
        self.arrive(message, cost);
        while let Some((message, cost)) = self.early.remove(&self.arrived) {
            self.arrive(message, cost);
        }
        Ok(Change::News)
    }

    /// The sender says how many messages there are.
    ///
    /// # Errors
    ///
    /// The sender broke a rule.
    pub fn handle_end(&mut self, messages: u32) -> Result<Change, Violation> {
        if self.total.is_some() {
            return Err(Violation::EndedTwice);
        }
        let total = self.full(messages);
        let has_more = self.latest.is_some_and(|(latest, _)| latest >= total);
        if total < self.arrived || has_more {
            return Err(Violation::ShortEnd { messages });
        }
        if total > self.arrived {
            self.check_window(total - 1, messages.wrapping_sub(1))?;
        }
        self.total = Some(total);
        Ok(if self.is_complete() { Change::News } else { Change::Nothing })
    }

    /// The next message, if it is here.
    pub fn take(&mut self) -> Option<Taken<M>> {
        let (message, cost) = self.ready.pop_front()?;
        self.taken = self.taken.saturating_add(cost);
        let grantable = self.taken.saturating_add(self.window);
        let step = (self.window / GRANTS_PER_WINDOW).max(1);
        let is_worth_it = self.total.is_none() && grantable - self.granted >= step;
        let granted = is_worth_it.then(|| {
            self.granted = grantable;
            grantable
        });
        Some(Taken { message, granted })
    }

    /// Messages that are here and have not been taken.
    pub fn waiting(&self) -> usize {
        self.ready.len() + self.early.len()
    }

    /// Whether a message is here that waits for an earlier one.
    pub fn has_gap(&self) -> bool {
        !self.early.is_empty()
    }

    /// Whether a message is here to be taken.
    pub fn has_message(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The message that is taken next, if it is here.
    pub fn next(&self) -> Option<&M> {
        self.ready.front().map(|(message, _)| message)
    }

    /// What the messages cost that are here and have not been taken, also behind a gap.
    pub fn waiting_cost(&self) -> u64 {
        if self.is_read() { self.received - self.taken } else { 0 }
    }

    /// Whether the end is known and every message has come.
    pub fn is_complete(&self) -> bool {
        self.total == Some(self.arrived)
    }

    /// Nobody takes what is here or comes: it is dropped. The rules still hold for the sender.
    pub fn close(&mut self) {
        self.user = User::Gone;
        self.ready = VecDeque::new();
        self.early.values_mut().for_each(|(message, _)| *message = None);
    }

    /// Whether somebody takes the messages.
    pub fn is_read(&self) -> bool {
        self.user == User::Reads
    }

    /// A number that does not wrap. What lies before the next expected one becomes huge, or less than `arrived`.
    fn full(&self, number: u32) -> u64 {
        let expected = u32::try_from(self.arrived & u64::from(u32::MAX)).expect("masked");
        let ahead = number.wrapping_sub(expected);
        if ahead > u32::MAX / 2 {
            let behind = u64::from(expected.wrapping_sub(number));
            // Of a stream that has not had so many, it is far ahead instead.
            return self.arrived.checked_sub(behind).unwrap_or(u64::MAX);
        }
        self.arrived + u64::from(ahead)
    }

    /// Every message before this one has cost something.
    fn check_window(&self, full: u64, number: u32) -> Result<(), Violation> {
        let missing = full.saturating_sub(self.arrived).saturating_mul(COST);
        if self.in_order.saturating_add(missing) < self.granted {
            return Ok(());
        }
        Err(Violation::Window { number, granted: self.granted })
    }

    /// The next message has no gap before it: it can be taken.
    fn arrive(&mut self, message: Option<M>, cost: u64) {
        self.arrived += 1;
        self.in_order = self.in_order.saturating_add(cost);
        self.ready.extend(message.map(|message| (message, cost)));
    }
}

/// What the sender of a stream did wrong. Ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A number that was there before.
    #[error("message {number} of the stream came twice")]
    Repeated {
        /// The number.
        number: u32,
    },
    /// More than was granted.
    #[error("message {number} of the stream is beyond its window, {granted} bytes were granted")]
    Window {
        /// The number.
        number: u32,
        /// What was granted since the beginning.
        granted: u64,
    },
    /// A message that the end does not count.
    #[error("message {number} of the stream came, which has ended after {total} messages")]
    BehindEnd {
        /// The number.
        number: u32,
        /// How many messages there are.
        total: u64,
    },
    /// An end that leaves out messages that have come.
    #[error("the stream ends after {messages} messages, more have come")]
    ShortEnd {
        /// What the end says.
        messages: u32,
    },
    /// A second end.
    #[error("the stream ended twice")]
    EndedTwice,
}

fn cost(len: usize) -> u64 {
    COST.saturating_add(len as u64)
}

#[cfg(test)]
mod tests;
