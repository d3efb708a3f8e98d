//! What must be true after each action, and where nothing more can happen.

use super::world::{Link, Message, Qp, Region, World};
use crate::proto::rendezvous::Outcome;

impl World {
    /// Takes what the machines give back, and checks that they may.
    pub(super) fn settle(&mut self) {
        while let Some(released) = self.owner.poll_released() {
            self.free(released.region);
        }
        while let Some(rts) = self.owner.poll_dropped() {
            let dropped = self.messages.iter_mut().find(|message| message.known == Some(rts));
            dropped.expect("its head came").dropped += 1;
        }
        while let Some(ended) = self.writer.poll_ended() {
            let is_its = |(_, message): &&(_, usize)| *message == ended.source;
            assert!(
                self.writes.iter().find(is_its).is_none(),
                "message {} is given back while the NIC reads it",
                ended.source
            );
            let message = &mut self.messages[ended.source];
            assert_eq!(message.outcome, None, "message {} ends twice", ended.source);
            message.outcome = Some(ended.outcome);
        }
        for message in &self.messages {
            let ends = message.delivered + message.discarded + message.dropped;
            assert!(ends <= 1, "{message:?} ends {ends} times");
        }
    }

    /// Checks a world in which nothing more can happen.
    pub(super) fn check_end(&self) {
        assert!(self.up.is_empty() && self.down.is_empty() && self.writes.is_empty());
        assert!(self.regions.iter().all(|region| *region == Region::Free), "{:?}", self.regions);
        assert_eq!((self.owner.open_grants(), self.owner.open_requests()), (0, 0));
        assert_eq!(self.owner.quarantined(), 0);
        assert_eq!((self.writer.transfers(), self.writer.open_grants()), (0, 0));
        let has_begun = |message: &&Message| message.transfer.is_some();
        for message in self.messages.iter().filter(has_begun) {
            assert!(message.outcome.is_some(), "{message:?} never ends");
        }
        if self.link == Link::Whole {
            self.check_whole_end();
        }
    }

    fn check_whole_end(&self) {
        assert_eq!((self.owner_qp, self.writer_qp), (Qp::Alive, Qp::Alive));
        for (grant, rts) in &self.told {
            let by_rts = rts.map_or(0, |rts| self.withdrawn.get(&rts).copied().unwrap_or(0));
            let closings = self.closings.get(grant).copied().unwrap_or(0) + by_rts;
            assert_eq!(closings, 1, "grant {grant} is closed {closings} times");
        }
        for message in &self.messages {
            let arrived = (message.delivered, message.discarded, message.dropped);
            match message.outcome {
                Some(Outcome::Sent) if message.unwanted => {
                    assert_eq!((arrived.0 + arrived.1, arrived.2), (1, 0), "{message:?}");
                }
                Some(Outcome::Sent) => assert_eq!(arrived, (1, 0, 0), "{message:?}"),
                Some(Outcome::Withdrawn) => {
                    assert!(message.given_up && arrived.0 + arrived.1 == 0, "{message:?}");
                    assert!(message.unwanted || message.known.is_none() || arrived.2 == 1);
                }
                Some(Outcome::Refused) => {
                    assert!(message.unwanted && arrived == (0, 0, 0), "{message:?}");
                }
                Some(Outcome::Lost) => panic!("{message:?} is lost on a whole connection"),
                None => assert!(message.declined, "{message:?}"),
            }
        }
    }
}
