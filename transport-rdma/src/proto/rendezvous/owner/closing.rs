//! How grants end: by the peer's FIN and ABORT_ACK, by this side's will, by time, by the queue pair's end.

use tokio::time::Instant;

use super::{
    Arrived, Carrier, Fault, Fin, Given, GrantId, Landed, Name, Names, Owner, Proof, Purpose,
    Released, Request, RtsNumber, State, Violation, slot,
};
use crate::proto::rendezvous::body::BodyLen;

impl<R> Owner<R> {
    /// A FIN came.
    ///
    /// # Errors
    ///
    /// It names no open grant, one for something else, or a body that does not fit what was announced.
    pub fn handle_fin(&mut self, fin: Fin, carrier: Carrier) -> Result<Arrived<R>, Violation> {
        let id = fin.grant;
        let len = self.check(fin, self.told("FIN", id)?, carrier)?;
        let given = self.close(id).expect("found above");
        let rts = given.purpose.rts();
        rts.and_then(|number| self.forget(number));
        let Given { region, state, purpose, .. } = given;
        // Revoking a standing grant asks for the memory, and says nothing of the request that crossed it.
        if state == State::Revoked && purpose != Purpose::Standing {
            self.released.push_back(Released { region, proof: Proof::Fin });
            return Ok(Arrived::Discarded);
        }
        Ok(Arrived::Landed(Landed { region, offset: fin.offset, len, crc: fin.crc, rts }))
    }

    /// An ABORT_ACK came.
    ///
    /// # Errors
    ///
    /// It names an RTS or a grant that never was, or a grant that is closed.
    pub fn handle_abort_ack(&mut self, names: &Names) -> Result<(), Violation> {
        names.iter().try_for_each(|name| match name {
            Name::Rts(number) => self.handle_withdrawn(number),
            Name::Grant(id) => self.handle_unused(id),
        })
    }

    /// The writer closed a grant without a body: by ABORT_ACK, or a RESPONSE says so.
    ///
    /// # Errors
    ///
    /// The grant is not open.
    pub fn handle_unused(&mut self, id: GrantId) -> Result<(), Violation> {
        self.told("ABORT_ACK", id)?;
        self.release(id, Proof::AbortAck);
        Ok(())
    }

    /// The writer takes an RTS back. It has no CTS for it, and will ignore one that is on its way.
    fn handle_withdrawn(&mut self, number: RtsNumber) -> Result<(), Violation> {
        if !number.is_before(self.next_rts) {
            return Err(Violation::UnknownRts { frame: "ABORT_ACK", number });
        }
        let Some(&Request { grant, .. }) = self.request(number) else {
            // It was given up here; if its ABORT still waits, nobody needs it.
            self.aborts.retain(|name| *name != Name::Rts(number));
            return Ok(());
        };
        match grant {
            Some(id) if !self.take_back(id) => self.release(id, Proof::AbortAck),
            _ => self.drop_request(number),
        }
        Ok(())
    }

    /// The body of an RTS is not wanted: it is refused, or its call has ended. Nothing happens if the body is
    /// here, or will not come.
    ///
    /// # Errors
    ///
    /// Too much memory waits for proofs: the queue pair must be destroyed.
    pub fn give_up(&mut self, number: RtsNumber, now: Instant) -> Result<(), Fault> {
        let Some(request) = self.requests.iter_mut().find(|rts| rts.number == number) else {
            return Ok(());
        };
        request.deadline = None;
        let grant = request.grant;
        match grant {
            Some(id) if !self.take_back(id) => self.revoke(id, now),
            _ => {
                self.forget(number);
                self.aborts.push_back(Name::Rts(number));
                Ok(())
            }
        }
    }

    /// A grant that nobody asked for is taken back: an advertised one since its reply is not wanted, a standing
    /// one since its memory is. Nothing happens if it is closed.
    ///
    /// # Errors
    ///
    /// As for [`give_up`](Self::give_up).
    pub fn revoke(&mut self, id: GrantId, now: Instant) -> Result<(), Fault> {
        if self.take_back(id) {
            return Ok(());
        }
        let open = self.grants.find_mut(slot(id)).filter(|given| given.state == State::Open);
        let Some(given) = open else { return Ok(()) };
        given.state = State::Revoked;
        self.quarantined += given.len;
        self.silent_since.get_or_insert(now);
        self.aborts.push_back(Name::Grant(id));
        let (bytes, cap) = (self.quarantined, self.limits.quarantine);
        if bytes > cap { Err(Fault::QuarantineFull { bytes, cap }) } else { Ok(()) }
    }

    /// Something arrived on the queue pair: the peer lives.
    pub fn handle_arrival(&mut self, now: Instant) {
        if let Some(since) = &mut self.silent_since {
            *since = now;
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let revoked = self.silent_since.and_then(|since| self.revoked_until(since));
        [revoked, self.next_expiry].into_iter().flatten().min()
    }

    /// Until when a peer that is silent since then may keep what is revoked; `None` for ever.
    fn revoked_until(&self, since: Instant) -> Option<Instant> {
        since.checked_add(self.limits.revoke_timeout)
    }

    /// Time has passed: bodies whose deadline has come are given up.
    ///
    /// # Errors
    ///
    /// The peer gives no proof, or too much memory waits for some: the queue pair must be destroyed.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Fault> {
        let timeout = self.limits.revoke_timeout;
        let until = self.silent_since.and_then(|since| self.revoked_until(since));
        if until.is_some_and(|until| until <= now) {
            let revoked = self.grants.iter().filter(|(_, given)| given.state == State::Revoked);
            return Err(Fault::RevokeTimeout { grants: revoked.count(), timeout });
        }
        if self.next_expiry.is_none_or(|next| now < next) {
            return Ok(());
        }
        let is_due = |request: &Request| request.deadline.is_some_and(|deadline| deadline <= now);
        while let Some(due) = self.requests.iter().find(|request| is_due(request)) {
            let number = due.number;
            self.dropped.push_back(number);
            self.give_up(number, now)?;
        }
        self.next_expiry = self.requests.iter().filter_map(|request| request.deadline).min();
        Ok(())
    }

    /// The queue pair is destroyed: nothing is written any more, and nothing comes. All regions come back.
    pub fn handle_destroyed(&mut self) {
        self.requests.clear();
        self.cts.clear();
        self.aborts.clear();
        self.dropped.clear();
        self.next_expiry = None;
        let all: Vec<_> = self.grants.iter().map(|(slot, _)| slot).collect();
        all.into_iter().for_each(|slot| self.release(super::id(slot), Proof::Destroyed));
    }

    /// A grant that is not closed, and of which the peer was told.
    fn told(&self, frame: &'static str, grant: GrantId) -> Result<&Given<R>, Violation> {
        match self.grants.find(slot(grant)) {
            Some(given) if given.state != State::Queued => Ok(given),
            None if self.grants.is_past(slot(grant)) => {
                Err(Violation::ClosedGrant { frame, grant })
            }
            _ => Err(Violation::UnknownGrant { frame, grant }),
        }
    }

    /// Checks a FIN against what was granted; returns the body's length.
    fn check(&self, fin: Fin, given: &Given<R>, carrier: Carrier) -> Result<BodyLen, Violation> {
        let grant = fin.grant;
        let announced = match (given.purpose, carrier) {
            (Purpose::Rts(number), Carrier::Frame) => self.request(number).map(|rts| rts.len),
            (Purpose::Standing, Carrier::Request(len)) => Some(len),
            (Purpose::Reply(call), Carrier::Response(of, len)) if call == of => Some(len),
            _ => None,
        };
        let announced = announced.ok_or(Violation::ForeignGrant { carrier, grant })?;
        if fin.len != announced.bytes() {
            let expected = announced.bytes();
            return Err(Violation::FinLen { grant, len: fin.len, expected });
        }
        let offset = u64::from(fin.offset);
        let (end, room) = (offset + u64::from(fin.len), given.len);
        if end > room {
            return Err(Violation::FinRange { grant, offset, end, room });
        }
        Ok(announced)
    }

    /// Takes a grant back of which the peer has not been told. `false` if it is none such.
    fn take_back(&mut self, id: GrantId) -> bool {
        let queued = self.grants.find(slot(id)).filter(|given| given.state == State::Queued);
        if queued.is_none() {
            return false;
        }
        self.cts.retain(|queued| *queued != id);
        let Given { region, .. } = self.close(id).expect("found above");
        self.released.push_back(Released { region, proof: Proof::NeverGiven });
        true
    }

    /// Closes a grant without a body.
    fn release(&mut self, id: GrantId, proof: Proof) {
        let Some(Given { region, purpose, state, .. }) = self.close(id) else { return };
        match (purpose.rts(), state) {
            // Whoever gave it up knows.
            (Some(number), State::Revoked) => {
                self.forget(number);
            }
            (Some(number), State::Queued | State::Open) => self.drop_request(number),
            (None, _) => {}
        }
        self.released.push_back(Released { region, proof });
    }

    fn close(&mut self, id: GrantId) -> Option<Given<R>> {
        let given = self.grants.remove(slot(id))?;
        if given.state == State::Revoked {
            // An ABORT that still waits would name nothing.
            self.aborts.retain(|name| *name != Name::Grant(id));
            self.quarantined -= given.len;
            if self.quarantined == 0 {
                self.silent_since = None;
            }
        }
        Some(given)
    }

    /// Ends an RTS whose body this side still waits for.
    fn drop_request(&mut self, number: RtsNumber) {
        if self.forget(number).is_some() {
            self.dropped.push_back(number);
        }
    }

    fn forget(&mut self, number: RtsNumber) -> Option<Request> {
        let at = self.requests.iter().position(|request| request.number == number)?;
        Some(self.requests.swap_remove(at))
    }

    fn request(&self, number: RtsNumber) -> Option<&Request> {
        self.requests.iter().find(|request| request.number == number)
    }
}
