//! An id on its way through the states of a connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tokio::time::timeout;
use verbwire_core::transport::BoxFuture;
use verbwire_core::{Error, ErrorKind};

use super::channel::EventedId;
use super::event::CmEvent;
use super::id::CmId;
use super::partings::Parting;
use super::state::{State, Step};
use super::sysfs;
use crate::error;
use crate::nic::Wire;
use crate::verbs::nic::{self, VerbsNic};
use crate::verbs::reaper::on_thread;
use crate::verbs::ret::CallError;

/// Polls for an event that means something in `state`; the others are logged.
pub(super) fn poll_step(
    id: &EventedId,
    state: State,
    cx: &mut TaskContext<'_>,
) -> Poll<Result<(Step, CmEvent), Error>> {
    loop {
        let event = ready!(id.poll_event(cx)).map_err(no_events)?;
        match state.react(event.kind) {
            Step::Ignored => tracing::debug!(?state, ?event, "an event that means nothing here"),
            step => return Poll::Ready(Ok((step, event))),
        }
    }
}

fn no_events(error: CallError) -> Error {
    let message = "the RDMA connection manager gives no events";
    Error::with_source(ErrorKind::LocalResource, message, error)
}

/// The next event that means something in `state`.
pub(super) async fn next_step(id: &EventedId, state: State) -> Result<(Step, CmEvent), Error> {
    poll_fn(|cx| poll_step(id, state, cx)).await
}

/// Does the `work` of a state within its limit.
///
/// # Errors
///
/// Those of `work`; `TimedOut` with the message of `late`.
pub(super) async fn within<T>(
    state: State,
    work: impl Future<Output = Result<T, Error>>,
    late: impl FnOnce(Duration) -> String,
) -> Result<T, Error> {
    let Some(limit) = state.limit() else { return work.await };
    let done = timeout(limit, work).await;
    done.unwrap_or_else(|_elapsed| Err(Error::new(ErrorKind::TimedOut, late(limit))))
}

/// Opens the device that `id` is bound to, without blocking the runtime.
pub(super) fn open_device(id: &CmId) -> BoxFuture<'static, Result<Arc<VerbsNic>, Error>> {
    let found = id.device().zip(id.local_address());
    Box::pin(async move {
        let (name, local) = found.ok_or_else(|| {
            let message = "the connection manager has found no RDMA device";
            Error::new(ErrorKind::Unreachable, message)
        })?;
        let opened = on_thread(move || nic::open(&name, local)).await?;
        opened.map_err(|error| error::local("to open the RDMA device", error))
    })
}

/// Whether a port is down: its device has said so, or the kernel knows it already. The device's event comes a moment later, and
/// none comes of what was so before the device was opened.
fn is_port_down(nic: &VerbsNic, id: &CmId) -> bool {
    nic.is_down(id.port()) || sysfs::says_down(nic.device(), id.port())
}

/// Nothing is begun on a port that is down: nobody would answer, and see [`Link::is_held_back`].
///
/// # Errors
///
/// `Unreachable`: it is down.
pub(super) fn check_port(nic: &VerbsNic, id: &CmId) -> Result<(), Error> {
    if !is_port_down(nic, id) {
        return Ok(());
    }
    let message = format!("the link of RDMA device {} is down: check the cable", nic.device());
    Err(Error::new(ErrorKind::Unreachable, message))
}

/// An id of a connection, from the moment when the peer may know of it. Dropped in any state, it lets go of the
/// peer and is destroyed, now or when its device's thread says so.
pub(super) struct Link {
    /// `None` once the device's thread has it, and nobody asks for it any more.
    id: Option<EventedId>,
    nic: Arc<VerbsNic>,
    state: State,
    /// Whether the connection manager has said that there is no connection (any more).
    is_over: bool,
    /// Whether the port may be down, although the device has not said so.
    doubts_port: bool,
}

impl Link {
    pub(super) fn new(id: EventedId, nic: Arc<VerbsNic>, state: State) -> Self {
        Self { id: Some(id), nic, state, is_over: false, doubts_port: false }
    }

    fn evented(&self) -> &EventedId {
        self.id.as_ref().expect("a connection that ends is not asked for its id")
    }

    pub(super) fn id(&self) -> &CmId {
        self.evented().id()
    }

    pub(super) fn nic(&self) -> &Arc<VerbsNic> {
        &self.nic
    }

    /// The next event that means something in its state, which stays.
    pub(super) async fn next_step(&mut self) -> Result<(Step, CmEvent), Error> {
        poll_fn(|cx| self.poll_step(cx)).await
    }

    /// Polls for that. Pending for ever once the connection's end is left to the device's thread.
    pub(super) fn poll_step(
        &mut self,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<(Step, CmEvent), Error>> {
        let Some(id) = &self.id else { return Poll::Pending };
        let (step, event) = ready!(poll_step(id, self.state, cx))?;
        // The path to a peer can be lost while the connection stands: that one still has to be told.
        let is_path = self.state == State::Established && event.kind.is_about_path();
        self.is_over |= matches!(step, Step::Over | Step::Removed) && !is_path;
        Poll::Ready(Ok((step, event)))
    }

    /// Messages have failed. Nothing is said before it is known whether that is because the port is down.
    pub(super) fn doubt_port(&mut self) {
        self.doubts_port = !self.is_over;
    }

    /// The connection stands.
    pub(super) fn set_established(&mut self) {
        self.state = State::Established;
    }

    /// Disconnects a connection that stands, or answers the peer that has done so.
    pub(super) fn disconnect(&mut self) {
        if self.state != State::Established {
            return;
        }
        if self.is_held_back() {
            return self.part(State::HeldBack);
        }
        self.state = State::Parting;
        if let Err(error) = self.id().disconnect() {
            // The peer may have been first.
            tracing::debug!(%error, "a connection was not disconnected");
        }
    }

    /// Whether nothing must be said now: on InfiniBand a peer hears it only if the port is up, and soft-RoCE's
    /// queue pair for management never recovers from a message that it cannot send.
    fn is_held_back(&self) -> bool {
        let is_down = || self.doubts_port || is_port_down(&self.nic, self.id());
        self.nic.wire() == Wire::InfiniBand && is_down()
    }

    /// Leaves the id to the device's thread.
    fn part(&mut self, state: State) {
        self.state = state;
        if let Some(id) = self.id.take() {
            let id = id.into_id();
            let port = id.port();
            self.nic.part(Parting { id, port, state });
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.disconnect();
        match self.state {
            State::Parting if !self.is_over => self.part(State::Parting),
            // Destroyed, it would say that there will be no connection.
            State::Connecting | State::Accepting if self.is_held_back() => {
                self.part(State::HeldBack)
            }
            _ => {}
        }
    }
}
