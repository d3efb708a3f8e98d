//! A client's side of sessions: who may use which slot, and with which sequence.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::channel::Channel;
use super::stub::Client;
use crate::message::{SessionId, SlotUse};
use crate::proto::sessions::Opened;
use crate::request::{Request, Response};
use crate::status::{Executed, Status};
use crate::wire::session::{OpenReply, SERVICE};

/// Most slots that a session has here, whatever the server offers: they are kept in a list.
const MAX_SLOTS: u32 = 1 << 16;

/// A session at a server: calls that are repeated run once.
///
/// It belongs to no connection. A call that ended with [`Executed::Maybe`] because its connection was lost is made again over
/// a new one, with the same [`Slot`]; the server then runs it, waits for it, or repeats its answer, whichever keeps it from
/// running twice. Cheap to clone.
///
/// Each attempt has the same request, byte for byte: the server refuses another one, as far as it can tell by the length and
/// the first and the last 4 KiB. A message with a map is cloned for that, since one that is filled anew may be encoded in
/// another order.
///
/// ```no_run
/// # use verbwire_core as verbwire;
/// # use verbwire::{Channel, Executed, Request, Response, Status};
/// # struct Kv;
/// # impl Kv {
/// #     fn new(_: Channel) -> Self { Self }
/// #     async fn put(&self, _: Request<String>) -> Result<Response<()>, Status> { todo!() }
/// # }
/// # async fn connect() -> Channel { todo!() }
/// # async fn put_once(channel: Channel) -> Result<(), Status> {
/// let session = channel.open_session().await?;
/// let slot = session.slot().await;
/// let request = || {
///     let mut request = Request::new("a value".to_owned());
///     request.set_slot(slot.id());
///     request
/// };
/// let mut outcome = Kv::new(channel).put(request()).await;
/// if outcome.as_ref().is_err_and(|status| status.executed() == Executed::Maybe) {
///     outcome = Kv::new(connect().await).put(request()).await;
/// }
/// # outcome.map(drop)
/// # }
/// ```
#[derive(Clone)]
pub struct Session(Arc<Shared>);

struct Shared {
    opened: Opened,
    /// As many as there are slots that nobody has.
    free: Arc<Semaphore>,
    /// The last sequence of each of them.
    slots: Mutex<Vec<(u32, u64)>>,
}

/// A use of a slot: names one call, over all its attempts.
///
/// Dropped, the slot goes to the next caller. If the call still runs then, the next one's attempt stops it: keep this until
/// the call has an answer, or nobody wants one.
#[must_use = "it is given to a request by its id"]
pub struct Slot {
    id: SlotUse,
    session: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

impl Channel {
    /// Opens a session at the channel's server.
    ///
    /// # Errors
    ///
    /// `Unimplemented` if the server keeps no sessions, `ResourceExhausted` if it has as many as it keeps, and how else the
    /// call failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a session at the server, until its lease is over.
    pub async fn open_session(&self) -> Result<Session, Status> {
        let client = Client::new(self.clone(), &SERVICE);
        let reply: Response<OpenReply> = client.unary(0, Request::new(())).await?;
        Session::new(reply.into_inner().opened())
    }
}

impl Session {
    fn new(opened: Opened) -> Result<Self, Status> {
        let opened = Opened { slots: opened.slots.min(MAX_SLOTS), ..opened };
        if opened.slots == 0 {
            let message = "the server opened a session without slots; raise `slots` of its limits";
            return Err(Status::internal(message).with_executed(Executed::Yes));
        }
        let free = Arc::new(Semaphore::new(opened.slots as usize));
        // The lowest is the next.
        let slots = (0..opened.slots).rev().map(|slot| (slot, 0)).collect();
        Ok(Self(Arc::new(Shared { opened, free, slots: Mutex::new(slots) })))
    }

    /// Its name. A secret: whoever has it may use the session's slots and is given the answers that are kept.
    pub fn id(&self) -> SessionId {
        self.0.opened.session
    }

    /// How long the server keeps it without a call.
    pub fn lease(&self) -> Duration {
        self.0.opened.lease
    }

    /// The epoch that it was opened in.
    pub fn epoch(&self) -> u64 {
        self.0.opened.epoch
    }

    /// How many calls of it may be under way.
    pub fn slots(&self) -> u32 {
        self.0.opened.slots
    }

    /// A slot for a new call, when one is free. Who waits longest comes first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue.
    pub async fn slot(&self) -> Slot {
        let permit = Arc::clone(&self.0.free).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (slot, last) = slots.pop().expect("there are as many as permits");
        let id = SlotUse { session: self.id(), slot, sequence: last + 1 };
        Slot { id, session: Arc::clone(&self.0), _permit: permit }
    }
}

impl Slot {
    /// What to give to each attempt at the call: see [`Request::set_slot`].
    pub fn id(&self) -> SlotUse {
        self.id
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.session.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.push((self.id.slot, self.id.sequence));
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.0.opened).finish()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slot").field(&self.id).finish()
    }
}
