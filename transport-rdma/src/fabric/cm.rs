//! The connection manager: how queue pairs find each other, and how each side learns of the end.
//!
//! ```text
//!  connecting side                          accepting side
//!  connect ───────────── Request ─────────► backlog ─► ConnectRequest
//!                                            accept: its queue pair is ready
//!  its queue pair is ready ◄──── Answer ────
//!  Connected ─────────── Established ──────► Connected
//! ```
//!
//! Owns every connection from the attempt until both sides have let go of it. Its messages are no part of the
//! queue pairs' traffic: on InfiniBand a disconnect can overtake data, and leaves the queue pairs as they are. On
//! iWARP the end of a connection is the end of its stream, and flushes both.

mod conn;
mod handles;
mod listen;

pub(super) use conn::{CmEvent, Conn, ConnId, EndId, Role};
pub(super) use handles::FabricCm;
pub(super) use listen::{ListenAddress, Listening};

use std::mem;
use std::task::{Context, Poll};

use verbwire_core::{Error, ErrorKind};

use super::host::{HostId, Life};
use super::network::Network;
use super::qp::{Phase, QpId};
use super::schedule::Event;
use super::wire::Wire;
use crate::nic::{MAX_PRIVATE_DATA, Wire as WireKind};
use conn::{End, Holder, Outcome};

impl Network {
    /// Begins to connect.
    fn connect(
        &mut self,
        (host, qp): (HostId, QpId),
        address: &str,
        private_data: Vec<u8>,
    ) -> Result<(EndId, String), Error> {
        check_private_data(&private_data)?;
        self.check_usable(host, qp)?;
        let conn = ConnId(self.next_id());
        let local = self.ephemeral_address(host);
        let mut active = End::new(Some(host), local.clone());
        active.qp = Some(qp);
        active.private_data = private_data;
        let passive = End::new(None, address.to_owned());
        self.conns.insert(conn, Conn { active, passive });
        let end = EndId { conn, role: Role::Active };
        self.assign(qp, end);
        self.send_cm(CmEvent::Request(conn));
        Ok((end, local))
    }

    /// Accepts with a queue pair.
    fn accept(
        &mut self,
        id: ConnId,
        (host, qp): (HostId, QpId),
        private_data: Vec<u8>,
    ) -> Result<(), Error> {
        check_private_data(&private_data)?;
        self.check_usable(host, qp)?;
        let gave_up = || Error::new(ErrorKind::Lost, "the peer gave up while it connected");
        let conn = self.conns.get_mut(&id).ok_or_else(gave_up)?;
        if let Some(error) = &conn.passive.over {
            return Err(error.clone());
        }
        conn.passive.qp = Some(qp);
        conn.passive.private_data = private_data;
        let peer = conn.active.qp.ok_or_else(gave_up)?;
        self.assign(qp, EndId { conn: id, role: Role::Passive });
        self.make_ready(qp, peer);
        self.send_cm(CmEvent::Answer(id));
        Ok(())
    }

    /// The other side's private data, once the connection stands.
    fn poll_outcome(&mut self, end: EndId, cx: &Context<'_>) -> Poll<Result<Vec<u8>, Error>> {
        let Some(conn) = self.conns.get_mut(&end.conn) else { return Poll::Pending };
        let side = conn.side(end.role);
        match mem::replace(&mut side.outcome, Outcome::Taken) {
            Outcome::Known(outcome) => Poll::Ready(outcome),
            other => {
                side.outcome = other;
                self.after.wait(&mut side.waker, cx);
                Poll::Pending
            }
        }
    }

    fn poll_over(&mut self, end: EndId, cx: &Context<'_>) -> Poll<Error> {
        let Some(conn) = self.conns.get_mut(&end.conn) else { return Poll::Pending };
        let side = conn.side(end.role);
        if let Some(error) = &side.over {
            return Poll::Ready(error.clone());
        }
        self.after.wait(&mut side.waker, cx);
        Poll::Pending
    }

    /// Ends a connection, an attempt or a request from one side.
    fn disconnect(&mut self, id: EndId) {
        let Some(conn) = self.conns.get_mut(&id.conn) else { return };
        let side = conn.side(id.role);
        if side.holder != Holder::Held {
            return;
        }
        side.holder = Holder::Closing;
        if side.over.is_some() {
            return;
        }
        let qp = side.qp;
        if id.role == Role::Passive && qp.is_none() {
            return self.send_cm(CmEvent::Refusal(id.conn, Vec::new()));
        }
        let closed = Error::new(ErrorKind::Closed, "this side has disconnected");
        let ready =
            qp.filter(|qp| self.qps.get(qp).is_some_and(|state| state.phase == Phase::Ready));
        match (self.behaviour.wire, ready) {
            (WireKind::Iwarp, Some(qp)) => {
                self.end_side(id, closed);
                self.enter_error(qp);
            }
            _ => {
                let told = Error::new(ErrorKind::Lost, "the peer has disconnected");
                self.send_cm(CmEvent::Over(id.other(), told));
                let round_trip = self.wire_delay(0) + self.wire_delay(0);
                self.schedule(round_trip, Event::Cm(CmEvent::Over(id, closed)));
            }
        }
    }

    /// Refuses a request.
    fn reject(&mut self, id: ConnId, mut private_data: Vec<u8>) {
        private_data.truncate(MAX_PRIVATE_DATA);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.passive.holder = Holder::Closing;
            self.send_cm(CmEvent::Refusal(id, private_data));
        }
    }

    /// Lets go of one side, which disconnects it.
    fn leave(&mut self, end: EndId) {
        self.disconnect(end);
        if let Some(conn) = self.conns.get_mut(&end.conn) {
            conn.side(end.role).holder = Holder::Gone;
        }
        self.forget_left(end.conn);
    }

    fn forget_left(&mut self, id: ConnId) {
        let left = |conn: &Conn| {
            [&conn.active, &conn.passive].iter().all(|end| end.holder == Holder::Gone)
        };
        if self.conns.get(&id).is_some_and(left)
            && let Some(conn) = self.conns.remove(&id)
        {
            self.after.discard(conn.active.waker);
            self.after.discard(conn.passive.waker);
        }
    }

    pub(super) fn handle_cm(&mut self, event: CmEvent) {
        match event {
            CmEvent::Request(id) => self.handle_request(id),
            CmEvent::Answer(id) => self.handle_answer(id),
            CmEvent::Established(id) => {
                let Some(conn) = self.conns.get_mut(&id) else { return };
                let data = conn.active.private_data.clone();
                self.conclude(EndId { conn: id, role: Role::Passive }, Ok(data));
            }
            CmEvent::Refusal(id, data) => {
                let Some(conn) = self.conns.get_mut(&id) else { return };
                let address = &conn.passive.address;
                let words = String::from_utf8_lossy(&data);
                let reason = if data.is_empty() { "refused" } else { &*words };
                let message = format!("connecting to {address} over the fabric: {reason}");
                let error = Error::new(ErrorKind::Unreachable, message);
                self.end_side(EndId { conn: id, role: Role::Active }, error);
            }
            CmEvent::Over(end, error) => self.end_both(end, error),
            CmEvent::TimedOut(end, error) => {
                let conn = self.conns.get_mut(&end.conn);
                if conn.is_some_and(|conn| conn.side(end.role).is_pending()) {
                    self.end_both(end, error);
                }
            }
        }
    }

    /// The accepting side has answered.
    fn handle_answer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (active, passive) = (&conn.active, &conn.passive);
        let data = passive.private_data.clone();
        let (waits, host) = (active.is_pending() && active.holder == Holder::Held, active.host);
        let pair = active.qp.zip(passive.qp);
        let idle =
            pair.filter(|(qp, _)| self.qps.get(qp).is_some_and(|qp| qp.phase == Phase::Idle));
        if let (true, Some((qp, peer))) = (waits, idle) {
            self.make_ready(qp, peer);
            self.conclude(EndId { conn: id, role: Role::Active }, Ok(data));
            return self.send_cm(CmEvent::Established(id));
        }
        // A dead host does not even say that it gave up.
        if host.is_some_and(|host| self.host(host).life == Life::Alive) {
            let error = Error::new(ErrorKind::Lost, "the peer gave up while it connected");
            let passive = EndId { conn: id, role: Role::Passive };
            self.send_cm(CmEvent::Over(passive, error));
        }
    }

    fn conclude(&mut self, end: EndId, outcome: Result<Vec<u8>, Error>) {
        let Some(conn) = self.conns.get_mut(&end.conn) else { return };
        let side = conn.side(end.role);
        if side.is_pending() {
            side.outcome = Outcome::Known(outcome);
            self.after.wake(&mut side.waker);
        }
    }

    /// The connection is over for one side.
    fn end_side(&mut self, end: EndId, error: Error) {
        let Some(conn) = self.conns.get_mut(&end.conn) else { return };
        let side = conn.side(end.role);
        side.end(error);
        self.after.wake(&mut side.waker);
    }

    /// The connection is over for one side, and on iWARP its queue pair with it.
    fn end_both(&mut self, end: EndId, error: Error) {
        self.end_side(end, error);
        let qp = self.conns.get_mut(&end.conn).and_then(|conn| conn.side(end.role).qp);
        if let (WireKind::Iwarp, Some(qp)) = (self.behaviour.wire, qp) {
            self.enter_error(qp);
        }
    }

    /// The stream of a queue pair has ended, on iWARP.
    pub(super) fn end_connection_of(&mut self, qp: QpId) {
        if let Some(end) = self.qps.get(&qp).and_then(|qp| qp.end) {
            self.end_side(end, Error::new(ErrorKind::Lost, "the connection's stream has ended"));
        }
    }

    /// Disconnects everything of a host whose process ends.
    pub(super) fn hang_up(&mut self, host: HostId) {
        for end in self.ends_of(host) {
            self.disconnect(end);
        }
    }

    /// Ends the connections of a host that is dead; peers in the middle of connecting wait in vain.
    pub(super) fn bury_connections(&mut self, host: HostId) {
        self.close_listeners(host);
        for end in self.ends_of(host) {
            self.end_side(end, Error::new(ErrorKind::Lost, "this host is dead"));
            let Some(conn) = self.conns.get_mut(&end.conn) else { continue };
            if conn.side(end.other().role).is_pending() {
                self.give_up(end.other());
            }
        }
    }

    /// One side waits for a host that does not answer.
    fn give_up(&mut self, end: EndId) {
        let time = self.config.cm_timeout;
        let message = format!("the peer's host did not answer the connection manager in {time:?}");
        let error = Error::new(ErrorKind::TimedOut, message);
        self.schedule(time, Event::Cm(CmEvent::TimedOut(end, error)));
    }

    fn ends_of(&self, host: HostId) -> Vec<EndId> {
        let mut ends = Vec::new();
        for (id, conn) in &self.conns {
            for (role, end) in [(Role::Active, &conn.active), (Role::Passive, &conn.passive)] {
                if end.host == Some(host) {
                    ends.push(EndId { conn: *id, role });
                }
            }
        }
        ends
    }

    fn send_cm(&mut self, event: CmEvent) {
        let delay = self.wire_delay(0);
        self.schedule(delay, Event::Cm(event));
    }

    fn assign(&mut self, qp: QpId, end: EndId) {
        if let Some(state) = self.qps.get_mut(&qp) {
            state.end = Some(end);
        }
    }

    fn make_ready(&mut self, qp: QpId, peer: QpId) {
        if let Some(state) = self.qps.get_mut(&qp) {
            state.phase = Phase::Ready;
            state.peer = Some(peer);
            self.wires.insert(qp, Wire::new(peer));
        }
    }

    /// A queue pair can be connected once, on its own host.
    fn check_usable(&mut self, host: HostId, qp: QpId) -> Result<(), Error> {
        self.check_alive(host, "rdma_connect")
            .map_err(|error| Error::with_source(ErrorKind::Lost, "using the device", error))?;
        let usable = self.qps.get(&qp).is_some_and(|state| {
            state.host == host && state.phase == Phase::Idle && state.end.is_none()
        });
        if usable {
            return Ok(());
        }
        let message = "a queue pair that is connected, failed or of another device cannot be \
                       connected: make a new one";
        Err(Error::new(ErrorKind::InvalidInput, message))
    }
}

fn check_private_data(data: &[u8]) -> Result<(), Error> {
    if data.len() <= MAX_PRIVATE_DATA {
        return Ok(());
    }
    let len = data.len();
    let message = format!("{len} bytes of private data are more than {MAX_PRIVATE_DATA}");
    Err(Error::new(ErrorKind::InvalidInput, message))
}
