//! Memory for replies that goes out with their requests: for long replies whose length is known before.

use std::sync::{Arc, Weak};

use verbwire_core::message::CallId;
use verbwire_core::transport::pressure::PressureWatch;

use super::{Region, Rendezvous};
use crate::device::Device;
use crate::pool::Tenant;
use crate::proto::rendezvous::wire::{Grant, HeadExtras};
use crate::proto::rendezvous::{BodyLen, Proof, Released};

/// Where memory for replies comes from.
pub(crate) struct Offers {
    /// Not kept: when the connection has ended, another peer may have its protection domain.
    device: Weak<Device>,
    pressure: PressureWatch,
    tenant: Tenant,
    /// Shorter replies come without.
    from: u64,
}

/// Memory for a reply, which the peer has not been told of.
#[derive(Debug)]
pub(crate) struct Offer {
    len: BodyLen,
    region: Region,
}

impl Offers {
    /// Offers to the peer of `tenant`, for replies longer than `threshold`.
    pub(crate) fn new(device: &Arc<Device>, tenant: Tenant, threshold: usize) -> Self {
        let (device, pressure) = (Arc::downgrade(device), device.landing().pressure());
        Self { device, pressure, tenant, from: (threshold as u64).saturating_add(1) }
    }

    /// What received messages hold of the memory.
    pub(crate) fn pressure(&self) -> PressureWatch {
        self.pressure.clone()
    }

    /// Memory for a reply of at most `len` bytes, if that is long and some is there now: nothing is waited for.
    pub(crate) fn make(&self, len: u64) -> Option<Offer> {
        let len = u32::try_from(len).ok().filter(|len| u64::from(*len) >= self.from)?;
        let len = BodyLen::new(len)?;
        let device = self.device.upgrade()?;
        let admitted = device.desk().admit_reply(len)?;
        let granted = device.landing().try_grant(self.tenant, len.bytes() as usize);
        // What it refuses it refuses as well when the reply asks by RTS, and then in words.
        let granted = granted.ok().flatten()?;
        Some(Offer { len, region: Region::new(granted, admitted) })
    }
}

impl Offer {
    /// The peer will not be told.
    pub(crate) fn take_back(self) {
        self.region.untold();
    }
}

impl Rendezvous {
    /// Whether the peer takes one more grant for a reply.
    pub(crate) fn may_offer(&self) -> bool {
        self.owner.may_advertise(self.offers.len())
    }

    /// Keeps memory for the reply of a call until its REQUEST is posted.
    pub(crate) fn offer(&mut self, call: CallId, mut offer: Offer) {
        self.is_busy = true;
        self.windows.bind(&mut offer.region);
        self.offers.push((call, offer));
    }

    /// Whether a REQUEST that waits has memory for its reply.
    pub(crate) fn has_offers(&self) -> bool {
        !self.offers.is_empty()
    }

    /// The grant for the reply of a call whose REQUEST is being posted: from now on the peer may write.
    pub(crate) fn advertise(&mut self, call: CallId) -> Option<Grant> {
        let Offer { len, region } = self.take_unposted(call)?;
        let place = region.place();
        match self.owner.advertise(call, len, region, place) {
            Ok(grant) => {
                self.advertised.push((call, grant.id));
                Some(grant)
            }
            Err(region) => {
                self.keep_untold(region);
                None
            }
        }
    }

    /// The REQUEST of a call will not say that there is memory for its reply.
    pub(super) fn drop_offer(&mut self, call: CallId) -> bool {
        let offer = self.take_unposted(call);
        let found = offer.is_some();
        offer.into_iter().for_each(|offer| self.keep_untold(offer.region));
        found
    }

    /// What a head about a call says, with the grant for its reply if it is a REQUEST that has one.
    pub(super) fn with_offer(&mut self, call: Option<CallId>, extras: HeadExtras) -> HeadExtras {
        let reply = call.and_then(|call| self.advertise(call));
        HeadExtras { reply, ..extras }
    }

    fn take_unposted(&mut self, call: CallId) -> Option<Offer> {
        let at = self.offers.iter().position(|(of, _)| *of == call)?;
        Some(self.offers.swap_remove(at).1)
    }

    /// It is dropped when the stage's lock is not held.
    fn keep_untold(&mut self, region: Region) {
        self.untold.push(Released { region, proof: Proof::NeverGiven });
    }
}
