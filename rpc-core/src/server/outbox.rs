//! Answers that no handler sends, until the transport takes them.
//!
//! One per slot: a client uses a slot again only when the call before has ended on its side, so the answer
//! to a newer use makes an older one late. That bounds the box by the number of slots, whatever the client
//! does and however slowly it reads.

use std::collections::{BTreeMap, VecDeque};

use crate::message::{CallId, Message};

/// Refusals, expired calls and CANCELLED, in the order of their slots' first answer; GOAWAY before them.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    go_away: Option<Message>,
    answers: BTreeMap<u32, Message>,
    /// The slots in `answers`, each once.
    order: VecDeque<u32>,
}

impl Outbox {
    /// Puts the answer to a call in; one to the same slot that still waits is replaced.
    pub(super) fn push(&mut self, call: CallId, answer: Message) {
        if self.answers.insert(call.slot, answer).is_none() {
            self.order.push_back(call.slot);
        }
    }

    /// Puts GOAWAY in, which goes first.
    pub(super) fn push_go_away(&mut self, message: Message) {
        self.go_away = Some(message);
    }

    /// Takes the next message out.
    pub(super) fn pop(&mut self) -> Option<Message> {
        if let Some(message) = self.go_away.take() {
            return Some(message);
        }
        let slot = self.order.pop_front()?;
        self.answers.remove(&slot)
    }

    /// Puts back a message that was popped and that the transport did not take.
    pub(super) fn put_back(&mut self, message: Message) {
        match message.head.call() {
            Some(call) => {
                self.answers.insert(call.slot, message);
                self.order.push_front(call.slot);
            }
            None => self.go_away = Some(message),
        }
    }

    /// Drops everything: the connection has ended.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{GoAway, Head};
    use crate::status::Executed;

    fn answer(slot: u32, generation: u32) -> (CallId, Message) {
        let call = CallId { slot, generation };
        (call, Message::bare(Head::Cancelled { call, executed: Executed::No }))
    }

    fn pop(outbox: &mut Outbox) -> Option<CallId> {
        outbox.pop().and_then(|message| message.head.call())
    }

    #[test]
    fn a_newer_answer_takes_the_place_of_an_older_one_of_its_slot() {
        let mut outbox = Outbox::default();
        for (slot, generation) in [(1, 0), (2, 0), (1, 1), (1, 2)] {
            let (call, message) = answer(slot, generation);
            outbox.push(call, message);
        }
        assert_eq!(pop(&mut outbox), Some(CallId { slot: 1, generation: 2 }));
        assert_eq!(pop(&mut outbox), Some(CallId { slot: 2, generation: 0 }));
        assert_eq!(pop(&mut outbox), None);
    }

    #[test]
    fn what_was_not_taken_is_the_next_again_and_go_away_goes_first() {
        let mut outbox = Outbox::default();
        for slot in [1, 2] {
            let (call, message) = answer(slot, 0);
            outbox.push(call, message);
        }
        let first = outbox.pop().expect("two wait");
        outbox.put_back(first);
        outbox.push_go_away(Message::bare(Head::GoAway { reason: GoAway::Draining }));
        let go_away = outbox.pop().expect("three wait");
        outbox.put_back(go_away);
        assert_eq!(pop(&mut outbox), None, "GOAWAY is about no call");
        assert_eq!(pop(&mut outbox).map(|call| call.slot), Some(1));
        assert_eq!(pop(&mut outbox).map(|call| call.slot), Some(2));
    }
}
