//! A landing region from its admission to its proof.

use bytes::Bytes;
use verbwire_core::Error;
use verbwire_core::message::Head;

use super::desk::Admitted;
use crate::nic::SendOp;
use crate::pool::{Fenced, GrantClosed, Granted, Isolation, QuarantineLevel, Quarantined, Target};
use crate::proto::rendezvous::wire::Place;
use crate::proto::rendezvous::{Fault, Proof, Released};

/// Memory for one body, with the right to grant it. Boxed, since it is moved often.
#[derive(Debug)]
pub(crate) struct Region(Box<Inner>);

#[derive(Debug)]
struct Inner {
    held: Held,
    target: Target,
    /// Given back when the grant is closed.
    _admitted: Admitted,
}

#[derive(Debug)]
enum Held {
    Granted(Granted),
    Quarantined(Quarantined),
    /// Only while it moves from one to the other.
    Moving,
}

const MOVED: &str = "a region leaves its place only while it goes into quarantine";

impl Region {
    pub(crate) fn new(granted: Granted, admitted: Admitted) -> Self {
        let target = granted.target();
        let held = Held::Granted(granted);
        Self(Box::new(Inner { held, target, _admitted: admitted }))
    }

    /// What the peer is told.
    pub(crate) fn place(&self) -> Place {
        Place { address: self.0.target.address, rkey: self.0.target.rkey }
    }

    /// How to bind its window, which must be posted before the peer is told; `None` where there are none.
    pub(super) fn bind(&mut self) -> Option<SendOp> {
        match &mut self.0.held {
            Held::Granted(granted) => granted.bind(),
            Held::Quarantined(_) | Held::Moving => None,
        }
    }

    /// How to end the peer's rights, if it may have some through a window.
    pub(super) fn invalidation(&self) -> Option<SendOp> {
        match &self.0.held {
            Held::Granted(granted) => granted.invalidation(),
            Held::Quarantined(quarantined) => quarantined.invalidation(),
            Held::Moving => unreachable!("{MOVED}"),
        }
    }

    /// Its window was invalidated with success, or its bind was not posted.
    pub(super) fn unbind(&mut self) {
        match &mut self.0.held {
            Held::Granted(granted) => granted.unbind(),
            Held::Quarantined(quarantined) => quarantined.unbind(),
            Held::Moving => unreachable!("{MOVED}"),
        }
    }

    /// The call is over and the grant is not, which the pool counts. Nothing happens the second time. Says whether that
    /// is too much for the pool.
    pub(crate) fn quarantine(&mut self) -> Option<Fault> {
        let held = &mut self.0.held;
        if let Held::Quarantined(_) = held {
            return None;
        }
        let Held::Granted(granted) = std::mem::replace(held, Held::Moving) else {
            unreachable!("{MOVED}")
        };
        let (quarantined, level) = granted.quarantine();
        *held = Held::Quarantined(quarantined);
        (level == QuarantineLevel::Exceeded).then_some(Fault::PoolQuarantineFull)
    }

    /// Nothing is written to it any more.
    pub(crate) fn release(released: Released<Self>) {
        let proof = match released.proof {
            Proof::NeverGiven => GrantClosed::by_silence(),
            Proof::Fin => Fenced::by_fin().into(),
            Proof::AbortAck => GrantClosed::by_abort_ack(),
            Proof::Destroyed => GrantClosed::by_destruction(),
        };
        match released.region.0.held {
            Held::Granted(granted) => granted.release(proof),
            Held::Quarantined(quarantined) => quarantined.release(proof),
            Held::Moving => unreachable!("{MOVED}"),
        }
    }

    /// The peer was never told of it.
    pub(crate) fn untold(self) {
        Self::release(Released { region: self, proof: Proof::NeverGiven });
    }

    /// A body is there, behind its FIN.
    ///
    /// # Errors
    ///
    /// There is no memory to copy it to.
    pub(crate) fn landed(
        self,
        (offset, len): (u32, usize),
        head: &Head,
        isolation: Isolation,
    ) -> Result<Bytes, Error> {
        let (fin, offset) = (Fenced::by_fin(), offset as usize);
        let landed = match self.0.held {
            Held::Granted(granted) => granted.landed(fin, offset, len),
            Held::Quarantined(quarantined) => quarantined.landed(fin, offset, len),
            Held::Moving => unreachable!("{MOVED}"),
        };
        let landed = landed.expect("the owner has checked the FIN against the grant");
        let landed = match head {
            Head::Message { .. } => landed.of_stream(),
            _ => landed,
        };
        Ok(landed.into_bytes(isolation)?)
    }
}
