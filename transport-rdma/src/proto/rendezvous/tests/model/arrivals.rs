//! What arrives on either side, and what it must be.

use super::world::{CHUNK, Down, Region, STRIDE, Up, World, call, len};
use crate::proto::rendezvous::wire::{Fin, Frame, GrantId, Name, Place};
use crate::proto::rendezvous::{Arrived, Carrier, Landed};

impl World {
    pub(super) fn complete(&mut self) {
        let (transfer, _) = self.writes.pop_front().expect("one is in flight");
        self.landed_writes = self.landed_writes.saturating_sub(1);
        self.writer.handle_written(transfer);
    }

    pub(super) fn deliver_down(&mut self) {
        let before = self.writer.clone();
        match self.down.pop_front().expect("one is on its way") {
            Down::Request { message, grant } => {
                self.messages[message].offered = true;
                self.writer.handle_advertised(grant).expect("an honest peer");
            }
            Down::Frame(Frame::Cts { rts, grant }) => {
                self.writer.handle_cts(rts, grant).expect("an honest peer");
                if self.writer == before {
                    self.crossings.insert("a CTS comes late");
                }
            }
            Down::Frame(Frame::Abort(names)) => {
                self.writer.handle_abort(&names).expect("an honest peer");
                if self.writer == before {
                    self.crossings.insert("an ABORT finds nothing");
                }
            }
            Down::Frame(other) => panic!("an owner does not send {other:?}"),
        }
    }

    pub(super) fn deliver_up(&mut self) {
        let grants = self.owner.open_grants();
        match self.up.pop_front().expect("one is on its way") {
            Up::Write { message, start, place } => self.land(message, start, place),
            Up::Head { message, rts, unused } => {
                self.unused(unused);
                let len = len(self.messages[message].plan.len);
                self.owner.handle_rts(rts, len, None).expect("an honest peer");
                self.messages[message].known = Some(rts);
                if self.messages[message].unwanted {
                    self.owner.give_up(rts, self.now).expect("no cap");
                }
            }
            Up::Written { message, fin } => {
                let plan = self.messages[message].plan;
                let carrier = match plan.advertised {
                    0 => Carrier::Request(len(plan.len)),
                    _ => Carrier::Response(call(message), len(plan.len)),
                };
                self.finish(message, fin, carrier);
            }
            Up::Fin(fin) => {
                let rts = self.told[&fin.grant];
                let message = self.messages.iter().position(|message| message.known == rts);
                self.finish(message.expect("its head came"), fin, Carrier::Frame);
            }
            Up::Response { unused } => self.unused(unused),
            Up::AbortAck(names) => {
                self.owner.handle_abort_ack(&names).expect("an honest peer");
                let has_rts = names.iter().any(|name| matches!(name, Name::Rts(_)));
                if has_rts && names.iter().count() == 1 && self.owner.open_grants() < grants {
                    self.crossings.insert("an ABORT_ACK of an RTS closes its grant");
                }
            }
        }
    }

    fn unused(&mut self, grant: Option<GrantId>) {
        grant.inspect(|id| self.owner.handle_unused(*id).expect("an honest peer"));
    }

    fn finish(&mut self, message: usize, fin: Fin, carrier: Carrier) {
        match self.owner.handle_fin(fin, carrier).expect("an honest peer") {
            Arrived::Landed(landed) => {
                self.check_whole(message, &landed);
                self.messages[message].delivered += 1;
                self.free(landed.region);
            }
            Arrived::Discarded => {
                self.messages[message].discarded += 1;
                self.crossings.insert("the FIN comes after all");
            }
        }
    }

    fn check_whole(&self, message: usize, landed: &Landed<usize>) {
        let first = (landed.region as u64 + 1) * STRIDE + u64::from(landed.offset);
        assert_eq!(landed.len.bytes(), self.messages[message].plan.len);
        for start in (0..landed.len.bytes()).step_by(CHUNK as usize) {
            let chunk = (message, start, first + u64::from(start));
            assert!(self.memory[landed.region].contains(&chunk), "{chunk:?} is missing");
        }
    }

    /// A Write takes effect in the owner's memory.
    fn land(&mut self, message: usize, start: u32, place: Place) {
        if self.landed_writes < self.writes.len() {
            self.landed_writes += 1;
        }
        let region = usize::try_from(place.address / STRIDE).expect("small") - 1;
        assert_eq!(
            self.regions[region],
            Region::Granted(place.rkey),
            "a Write of message {message} lands in memory that is not granted to it"
        );
        self.memory[region].insert((message, start, place.address));
    }
}
