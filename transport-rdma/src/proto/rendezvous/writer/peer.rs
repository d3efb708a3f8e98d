//! What happens to a writer: the peer's CTS and ABORT, completions, this side's will, the queue pair's end.

use super::{
    Grant, GrantId, Held, Name, Origin, Outcome, RtsNumber, Slot, Stage, Transfer, TransferId, Use,
    Writer,
};
use crate::proto::rendezvous::body::{PAGE, SLACK};
use crate::proto::rendezvous::violation::Violation;
use crate::proto::rendezvous::wire::Names;

impl<S> Writer<S> {
    /// A CTS came; without an RTS its grant is a standing one.
    ///
    /// # Errors
    ///
    /// A grant that nobody asked for, one too many, or not what was asked for.
    pub fn handle_cts(&mut self, rts: Option<RtsNumber>, grant: Grant) -> Result<(), Violation> {
        self.check_grant(grant)?;
        let Some(number) = rts else {
            return self.take_unasked(grant, Origin::Standing, self.limits.standing, "standing");
        };
        let stage = Stage::Announced(number);
        let waiting = self.transfers.iter().find(|(_, transfer)| transfer.stage == stage);
        let Some((slot, transfer)) = waiting else {
            return self.check_late(number, grant.id);
        };
        let (len, expected) = (grant.len, transfer.body.len.grant_len());
        if len != expected {
            return Err(Violation::GrantLen { grant: grant.id, len, expected });
        }
        let id = TransferId(slot);
        self.held.push(Held { grant, origin: Origin::Asked(number), used: Use::By(id) });
        self.transfer_mut(slot).stage = Stage::Writing(grant.id);
        self.turns.push_back(id);
        Ok(())
    }

    /// A REQUEST came with a grant for its reply.
    ///
    /// # Errors
    ///
    /// As for [`handle_cts`](Self::handle_cts).
    pub fn handle_advertised(&mut self, grant: Grant) -> Result<(), Violation> {
        self.check_grant(grant)?;
        self.take_unasked(grant, Origin::Advertised, self.limits.advertised, "advertised")
    }

    /// An ABORT came: the peer does not want what it names. What it names and is closed here is on its way.
    ///
    /// # Errors
    ///
    /// It names an RTS that was never sent.
    pub fn handle_abort(&mut self, names: &Names) -> Result<(), Violation> {
        names.iter().try_for_each(|name| match name {
            Name::Rts(number) => self.handle_refused(number),
            Name::Grant(grant) => {
                self.handle_revoked(grant);
                Ok(())
            }
        })
    }

    fn handle_refused(&mut self, number: RtsNumber) -> Result<(), Violation> {
        if !number.is_before(self.next_rts) {
            return Err(Violation::UnknownRts { frame: "ABORT", number });
        }
        let stage = Stage::Announced(number);
        let waiting = self.transfers.iter().find(|(_, transfer)| transfer.stage == stage);
        if let Some((slot, _)) = waiting {
            self.end(TransferId(slot), Outcome::Refused);
        }
        Ok(())
    }

    fn handle_revoked(&mut self, grant: GrantId) {
        let Some((origin, used)) = self.close(grant) else { return };
        match (origin, used) {
            (_, Use::Idle | Use::Closing) => {}
            (Origin::Asked(_), Use::By(id)) => self.end(id, Outcome::Refused),
            // The peer has not seen the head, so it cannot mean the message.
            (Origin::Advertised | Origin::Standing, Use::By(id)) => {
                self.unqueue(id);
                let transfer = self.transfer_mut(id.0);
                transfer.stage = Stage::Queued;
                transfer.posted = 0;
                self.announces.push_back(id);
            }
        }
    }

    /// The message of a transfer need not be sent: its call has ended. Nothing happens if it is sent.
    pub fn give_up(&mut self, id: TransferId) {
        let Some(Transfer { stage, unused, .. }) = self.transfers.find(id.0) else { return };
        match (*stage, *unused) {
            (Stage::Ended(_), _) => return,
            (Stage::Queued, Some(grant)) => self.give_up_grant(grant),
            (Stage::Queued, None) => {}
            (Stage::Announced(number), _) => self.acks.push_back(Name::Rts(number)),
            (Stage::Writing(grant), _) => drop(self.close(grant)),
        }
        self.end(id, Outcome::Withdrawn);
    }

    /// No reply will use this advertised grant, and none will say so. Nothing happens if it is in use or closed.
    pub fn give_up_grant(&mut self, grant: GrantId) {
        if self.held.iter().any(|held| held.grant.id == grant && held.used == Use::Idle) {
            self.close(grant);
        }
    }

    /// A RESPONSE is being posted that does not use this advertised grant. Returns the grant if the RESPONSE
    /// must say so.
    pub fn decline(&mut self, grant: GrantId) -> Option<GrantId> {
        let is_it = |held: &Held| held.grant.id == grant && held.used == Use::Idle;
        let at = self.held.iter().position(is_it)?;
        self.held.swap_remove(at);
        Some(grant)
    }

    /// A Write of this transfer is complete, or flushed. Nothing happens if none is in flight.
    pub fn handle_written(&mut self, id: TransferId) {
        let transfer = self.transfers.find_mut(id.0).filter(|transfer| transfer.in_flight > 0);
        let Some(transfer) = transfer else { return };
        transfer.in_flight -= 1;
        self.in_flight -= 1;
        if transfer.in_flight == 0 && matches!(transfer.stage, Stage::Ended(_)) {
            self.ended.push_back(id);
        }
    }

    /// The queue pair is destroyed: no Write is in flight, and nothing is sent any more.
    pub fn handle_destroyed(&mut self) {
        self.held.clear();
        self.acks.clear();
        self.in_flight = 0;
        let all: Vec<_> = self.transfers.iter().map(|(slot, _)| TransferId(slot)).collect();
        for id in all {
            let transfer = self.transfer_mut(id.0);
            let in_flight = std::mem::take(&mut transfer.in_flight);
            match (transfer.stage, in_flight) {
                (Stage::Ended(_), 0) => {}
                (Stage::Ended(_), _) => self.ended.push_back(id),
                _ => self.end(id, Outcome::Lost),
            }
        }
    }

    /// Begins to close a grant by ABORT_ACK; returns what it was and what used it. `None` if that has begun
    /// before, or there is no such grant.
    fn close(&mut self, grant: GrantId) -> Option<(Origin, Use)> {
        let held = self.held_mut(grant).filter(|held| held.used != Use::Closing)?;
        let was = (held.origin, held.used);
        held.used = Use::Closing;
        self.acks.push_back(Name::Grant(grant));
        Some(was)
    }

    fn take_unasked(
        &mut self,
        grant: Grant,
        origin: Origin,
        limit: usize,
        what: &'static str,
    ) -> Result<(), Violation> {
        let (len, expected) = (grant.len, SLACK + 1);
        if len < expected {
            return Err(Violation::GrantLen { grant: grant.id, len, expected });
        }
        if self.held.iter().filter(|held| held.origin == origin).count() >= limit {
            return Err(Violation::TooManyGrants { what, limit });
        }
        self.held.push(Held { grant, origin, used: Use::Idle });
        Ok(())
    }

    fn check_grant(&self, grant: Grant) -> Result<(), Violation> {
        let Grant { id, place, len } = grant;
        let address = place.address;
        if !address.is_multiple_of(PAGE) || address.checked_add(len).is_none() {
            return Err(Violation::GrantPlace { grant: id, address, len });
        }
        if self.held.iter().any(|held| held.grant.id == id) {
            return Err(Violation::GrantInUse { grant: id });
        }
        Ok(())
    }

    /// A CTS for an RTS that does not wait is late if it was taken back, for which ABORT_ACK has closed it.
    fn check_late(&self, number: RtsNumber, grant: GrantId) -> Result<(), Violation> {
        if self.held.iter().any(|held| held.origin == Origin::Asked(number)) {
            return Err(Violation::SecondCts { number, grant });
        }
        if !number.is_before(self.next_rts) {
            return Err(Violation::UnknownRts { frame: "CTS", number });
        }
        Ok(())
    }

    fn transfer_mut(&mut self, slot: Slot) -> &mut Transfer<S> {
        self.transfers.find_mut(slot).expect("grants and queues name transfers that are there")
    }
}
