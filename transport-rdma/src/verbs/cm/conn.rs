//! A connection that stands, as the connection manager and the device see it.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use verbwire_core::{Error, ErrorKind};

use super::event::CmEventKind;
use super::id::CmId;
use crate::nic::{CmConnection, Qp};
use crate::verbs::fate::Watch;
use crate::verbs::nic::VerbsNic;
use crate::verbs::qp::VerbsQp;

/// See the module. Dropped, it disconnects.
pub(super) struct VerbsConnection {
    id: Arc<CmId>,
    nic: Arc<VerbsNic>,
    qp: Arc<dyn Qp>,
    /// What the device says.
    watch: Option<Watch>,
    /// The first reason, which stays.
    over: Option<Error>,
}

impl VerbsConnection {
    pub(super) fn new(id: Arc<CmId>, nic: Arc<VerbsNic>, qp: Arc<dyn Qp>) -> Self {
        let own = qp.as_any().downcast_ref::<VerbsQp>();
        let watch = own.and_then(|own| own.watch(id.port()));
        Self { id, nic, qp, watch, over: None }
    }

    /// The reason that the connection manager or the device has given by now.
    fn poll_over(&self, cx: &mut TaskContext<'_>) -> Poll<Error> {
        if let Some(Poll::Ready(cause)) = self.watch.as_ref().map(|watch| watch.poll(cx)) {
            return Poll::Ready(cause);
        }
        loop {
            let event = match self.id.poll_event(cx) {
                Poll::Ready(Ok(event)) => event,
                Poll::Ready(Err(error)) => {
                    let message = "the RDMA connection manager gives no events any more";
                    return Poll::Ready(Error::with_source(ErrorKind::Lost, message, error));
                }
                Poll::Pending => return Poll::Pending,
            };
            match event.kind {
                CmEventKind::DISCONNECTED => {
                    return Poll::Ready(Error::new(ErrorKind::Lost, "the peer has disconnected"));
                }
                CmEventKind::DEVICE_REMOVAL => {
                    let cause = removed(self.nic.device());
                    self.nic.remove(&cause);
                    return Poll::Ready(cause);
                }
                CmEventKind::UNREACHABLE | CmEventKind::CONNECT_ERROR => {
                    let message = "the connection manager has lost the peer";
                    return Poll::Ready(Error::new(ErrorKind::Lost, message));
                }
                _ => tracing::debug!(?event, "an event that a connection does not expect"),
            }
        }
    }
}

impl CmConnection for VerbsConnection {
    fn poll_disconnected(&mut self, cx: &mut TaskContext<'_>) -> Poll<Error> {
        if self.over.is_none()
            && let Poll::Ready(cause) = self.poll_over(cx)
        {
            // InfiniBand leaves the queue pair as it is, and its receives would wait for ever.
            self.qp.fail();
            self.over = Some(cause);
        }
        self.over.clone().map_or(Poll::Pending, Poll::Ready)
    }

    fn disconnect(&mut self) {
        if let Err(error) = self.id.disconnect() {
            // The peer may have been first.
            tracing::debug!(%error, "a connection was not disconnected");
        }
    }
}

/// Why everything on a device ends.
pub(super) fn removed(device: &str) -> Error {
    Error::new(ErrorKind::Lost, format!("RDMA device {device} was removed from this machine"))
}
