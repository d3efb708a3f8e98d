//! Grants that a server gives each client for requests to come, and gives anew when they are used.
//!
//! A long request then needs no round trip for its grant. The memory is held by clients that may never send anything, so they
//! get what is left over: only while nobody at the device's desk waits, a bounded part of what may be granted, and
//! as soon as a body waits for landing memory they are asked to give it back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::desk::{Admitted, Client};
use super::granting::{Landing, NEVER};
use super::{Region, Rendezvous};
use crate::device::Device;
use crate::pool::Tenant;
use crate::poster::SendQueue;
use crate::proto::rendezvous::BodyLen;

/// The driver's part: memory for such grants.
pub(super) struct Stands {
    /// Longest request.
    len: BodyLen,
    /// The next grant, with the right to give it.
    coming: Option<(Admitted, Landing)>,
}

impl Stands {
    /// For requests of up to `len` bytes.
    pub(super) fn new(len: BodyLen) -> Self {
        Self { len, coming: None }
    }

    /// Takes memory back if others want it; else gives the grants that are missing.
    pub(super) fn poll(
        &mut self,
        (device, tenant): (&Arc<Device>, Tenant),
        client: &Client,
        queue: &SendQueue,
        cx: &mut Context<'_>,
    ) {
        if client.take_recalled() {
            self.coming = None;
            let now = Instant::now();
            queue.with_staged(|staged| staged.recall_standing(now));
        }
        while queue.with_staged(|staged| staged.lacks_standing()) {
            if self.coming.is_none() {
                let len = self.len.bytes() as usize;
                let memory = || device.landing().grant(tenant, len, Instant::now() + NEVER);
                let admitted = device.desk().admit_standing(self.len);
                self.coming = admitted.map(|admitted| (admitted, Box::pin(memory()) as Landing));
            }
            let Some((_, memory)) = &mut self.coming else { return };
            let Poll::Ready(granted) = Pin::new(memory).poll(cx) else { return };
            let Some((admitted, _)) = self.coming.take() else { return };
            match granted {
                Ok(granted) => {
                    let region = Region::new(granted, admitted);
                    let unwanted = queue.with_staged(|staged| staged.stand(self.len, region));
                    unwanted.into_iter().for_each(Region::untold);
                }
                // Requests ask by RTS then, and are told in words.
                Err(error) => {
                    tracing::debug!(%error, "no memory for a standing grant");
                    return;
                }
            }
        }
    }
}

impl Rendezvous {
    /// Whether there are fewer standing grants than the peer is to have.
    pub(crate) fn lacks_standing(&self) -> bool {
        self.owner.standing().count() < self.standing
    }

    /// A region for any request of at most `len` bytes; its CTS is due.
    pub(crate) fn stand(&mut self, len: BodyLen, mut region: Region) {
        // Its bind goes out before any frame that is taken from now on.
        self.windows.bind(&mut region);
        let place = region.place();
        self.owner.stand(len, region, place);
    }

    /// The memory of standing grants is wanted back. Requests that are being written to it are not lost.
    pub(crate) fn recall_standing(&mut self, now: Instant) {
        let standing: Vec<_> = self.owner.standing().collect();
        for grant in standing {
            if let Err(fault) = self.owner.revoke(grant, now) {
                self.fault.get_or_insert(fault);
            }
        }
    }
}
