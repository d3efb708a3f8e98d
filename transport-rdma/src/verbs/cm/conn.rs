//! A connection that stands, as the connection manager and the device see it.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use verbwire_core::{Error, ErrorKind};

use super::event::CmEventKind;
use super::link::Link;
use crate::nic::{CmConnection, Qp};
use crate::verbs::fate::Watch;
use crate::verbs::qp::VerbsQp;

/// See the module. Dropped, it disconnects.
pub(super) struct VerbsConnection {
    link: Link,
    qp: Arc<dyn Qp>,
    /// What the device says.
    watch: Option<Watch>,
    /// The first reason, which stays.
    over: Option<Error>,
}

impl VerbsConnection {
    pub(super) fn new(mut link: Link, qp: Arc<dyn Qp>) -> Self {
        link.set_established();
        let port = link.id().port();
        let own = qp.as_any().downcast_ref::<VerbsQp>();
        let watch = own.and_then(|own| own.watch(port));
        Self { link, qp, watch, over: None }
    }

    /// The reason that the connection manager or the device has given by now.
    fn poll_over(&mut self, cx: &mut TaskContext<'_>) -> Poll<Error> {
        if let Some(Poll::Ready(cause)) = self.watch.as_ref().map(|watch| watch.poll(cx)) {
            return Poll::Ready(cause);
        }
        // In its state, any event that means something is an end.
        self.link.poll_step(cx).map(|over| match over.map(|(_, event)| event.kind) {
            Ok(CmEventKind::DISCONNECTED) => {
                Error::new(ErrorKind::Lost, "the peer has disconnected")
            }
            Ok(CmEventKind::DEVICE_REMOVAL) => removed(self.link.nic().device()),
            Ok(_) => Error::new(ErrorKind::Lost, "the connection manager has lost the peer"),
            Err(error) => error,
        })
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
        // A link that has gone down fails messages before the device says so.
        if self.qp.as_any().downcast_ref::<VerbsQp>().is_some_and(VerbsQp::has_failed) {
            self.link.doubt_port();
        }
        self.link.disconnect();
    }
}

/// Why everything on a device ends.
pub(in crate::verbs) fn removed(device: &str) -> Error {
    Error::new(ErrorKind::Lost, format!("RDMA device {device} was removed from this machine"))
}
