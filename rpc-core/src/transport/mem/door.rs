//! Names of listeners in this process, and who waits at them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::sync::oneshot;

use super::connection::MemConnection;
use crate::error::{Error, ErrorKind};
use crate::transport::{Accepting, BoxFuture, Established, Listener, LocalSide, Target, Ticket};

static DOORS: Mutex<BTreeMap<String, Weak<Door>>> = Mutex::new(BTreeMap::new());

/// Where clients of one name wait to be accepted.
#[derive(Default)]
pub(super) struct Door(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    knocks: VecDeque<Knock>,
    listener: Option<Waker>,
}

/// A client that wants in. Its queue place is bounded by the client itself, which waits for the answer.
pub(super) struct Knock {
    pub(super) local: LocalSide,
    pub(super) answer: oneshot::Sender<Result<Established, Error>>,
}

impl Door {
    pub(super) fn find(name: &str) -> Option<Arc<Self>> {
        doors().get(name)?.upgrade()
    }

    pub(super) fn knock(&self, knock: Knock) {
        let listener = {
            let mut waiting = self.lock();
            waiting.knocks.push_back(knock);
            waiting.listener.take()
        };
        listener.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn doors() -> MutexGuard<'static, BTreeMap<String, Weak<Door>>> {
    DOORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one that opens the door.
pub(super) struct MemListener {
    target: Target,
    door: Arc<Door>,
}

impl MemListener {
    pub(super) fn bind(target: &Target) -> Result<Self, Error> {
        let mut doors = doors();
        if doors.get(target.address()).is_some_and(|door| door.strong_count() > 0) {
            let message = format!("{target} is in use in this process: take another name");
            return Err(Error::new(ErrorKind::LocalResource, message));
        }
        let door = Arc::new(Door::default());
        doors.insert(target.address().to_owned(), Arc::downgrade(&door));
        Ok(Self { target: target.clone(), door })
    }
}

impl Drop for MemListener {
    fn drop(&mut self) {
        doors().remove(self.target.address());
    }
}

impl Listener for MemListener {
    fn local_target(&self) -> &Target {
        &self.target
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>> {
        let mut waiting = self.door.lock();
        // A client that has given up is not let in.
        while let Some(knock) = waiting.knocks.pop_front() {
            if !knock.answer.is_closed() {
                let target = self.target.clone();
                return Poll::Ready(Ok(Box::new(MemAccepting { target, knock })));
            }
        }
        waiting.listener = Some(cx.waker().clone());
        Poll::Pending
    }
}

struct MemAccepting {
    target: Target,
    knock: Knock,
}

impl Accepting for MemAccepting {
    fn peer(&self) -> String {
        format!("a client of {}", self.target)
    }

    fn ticket(&self) -> Option<Ticket> {
        self.knock.local.ticket
    }

    fn refuse(self: Box<Self>, why: &str) {
        let message = format!("the server at {} refused: {why}", self.target);
        let error = Error::new(ErrorKind::Unreachable, message);
        // The client may have given up.
        let _told = self.knock.answer.send(Err(error));
    }

    fn handshake(
        self: Box<Self>,
        local: LocalSide,
    ) -> BoxFuture<'static, Result<Established, Error>> {
        let Self { target, knock } = *self;
        let (client_hello, server_hello) = (knock.local.hello.clone(), local.hello.clone());
        let (client, server) = MemConnection::pair(&target, knock.local, local);
        let sent = knock.answer.send(Ok(Established { connection: client, peer: server_hello }));
        let outcome = match sent {
            Ok(()) => Ok(Established { connection: server, peer: client_hello }),
            Err(_gone) => Err(Error::new(ErrorKind::Lost, "the client gave up while it connected")),
        };
        Box::pin(std::future::ready(outcome))
    }
}
