//! The two queues of an in-process connection.

use std::any::{Any, TypeId};
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::{Error, ErrorKind};
use crate::message::{CallId, Message};
use crate::transport::{
    Announced, BoxFuture, Connection, Incoming, LocalSide, Outgoing, Path, Placement,
    PlacementHook, SendError, Target,
};
use crate::wire::status::ALWAYS_ACCEPTED;
use crate::wire::{Hello, WireError};

/// Messages that wait in one direction before the sender is told to wait. Bodies are held by reference.
const QUEUE: usize = 1024;

/// One end of an in-process connection.
pub(super) struct MemConnection {
    path: Path,
    inbox: Arc<Inbox>,
    outbox: Arc<Inbox>,
    limits: Hello,
    placement: Arc<dyn PlacementHook>,
}

/// What one end receives.
#[derive(Default)]
struct Inbox(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    receiver: Option<Waker>,
    senders: Vec<Waker>,
    ended: Option<Ended>,
}

/// Why nothing more goes through a queue, as its two ends report it: who closed knows the cause, the
/// other only that the peer is gone.
struct Ended {
    for_sender: Error,
    for_receiver: Error,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the queue, unless it has ended before, and wakes everybody.
    fn end(&self, ended: Ended) {
        let wakers = {
            let mut queue = self.lock();
            queue.ended.get_or_insert(ended);
            let receiver = queue.receiver.take();
            mem::take(&mut queue.senders).into_iter().chain(receiver)
        };
        wakers.for_each(Waker::wake);
    }
}

impl MemConnection {
    pub(super) fn pair(
        target: &Target,
        client: LocalSide,
        server: LocalSide,
    ) -> (Arc<Self>, Arc<Self>) {
        let (to_client, to_server) = (Arc::new(Inbox::default()), Arc::new(Inbox::default()));
        let end = |side: LocalSide, inbox: &Arc<Inbox>, outbox: &Arc<Inbox>, names: [&str; 2]| {
            Arc::new(Self {
                path: Path {
                    transport: "mem",
                    local: names[0].to_owned(),
                    peer: names[1].to_owned(),
                },
                inbox: Arc::clone(inbox),
                outbox: Arc::clone(outbox),
                limits: side.hello,
                placement: side.placement,
            })
        };
        let name = target.address();
        (
            end(client, &to_client, &to_server, ["client", name]),
            end(server, &to_server, &to_client, [name, "client"]),
        )
    }

    /// Whether a received message is to be delivered.
    fn check(&self, message: &Message, landing: usize) -> Result<bool, Error> {
        let len = message.body.len();
        let max = self.limits.max_message_size.max(ALWAYS_ACCEPTED as u64);
        if len as u64 > max {
            let error = WireError::TooLong {
                what: "message body",
                len: len as u64,
                limit_name: "max_message_size",
                limit: max,
            };
            return Err(Error::new(ErrorKind::PeerFault, error.to_string()));
        }
        // As on a byte transport, where such a body does not come with its head.
        let announced = len as u64 > u64::from(self.limits.max_frame_body);
        let (head, metadata) = (&message.head, &message.metadata);
        let place = || self.placement.place(Announced { head, metadata, len, landing });
        Ok(!announced || place() != Placement::Refuse)
    }
}

impl Drop for MemConnection {
    /// Who gives an end up without closing it, half-made for example, leaves no peer that waits for it.
    fn drop(&mut self) {
        self.close(Error::new(ErrorKind::Closed, "the connection was dropped"));
    }
}

impl Connection for MemConnection {
    fn try_send(&self, outgoing: Outgoing) -> Result<(), SendError> {
        let receiver = {
            let mut queue = self.outbox.lock();
            if let Some(ended) = &queue.ended {
                return Err(SendError::Closed(ended.for_sender.clone()));
            }
            if queue.messages.len() >= QUEUE {
                return Err(SendError::Full(Box::new(outgoing)));
            }
            queue.messages.push_back(outgoing.message);
            queue.receiver.take()
        };
        receiver.into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.outbox.lock();
        if queue.ended.is_some() || queue.messages.len() < QUEUE {
            return Poll::Ready(());
        }
        queue.senders.push(cx.waker().clone());
        Poll::Pending
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) -> Poll<Result<(), Error>> {
        let (messages, senders) = {
            let mut queue = self.inbox.lock();
            if queue.messages.is_empty() {
                if let Some(ended) = &queue.ended {
                    return Poll::Ready(Err(ended.for_receiver.clone()));
                }
                queue.receiver = Some(cx.waker().clone());
                return Poll::Pending;
            }
            (mem::take(&mut queue.messages), mem::take(&mut queue.senders))
        };
        senders.into_iter().for_each(Waker::wake);
        let mut landing = 0;
        for message in messages {
            match self.check(&message, landing) {
                Ok(true) => {
                    landing += message.body.len();
                    received.push(Incoming { message });
                }
                Ok(false) => {}
                Err(violation) => self.close(violation),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Nothing to do: messages are queued whole, and what arrives for an ended call is ignored anyway.
    fn revoke(&self, _call: CallId) {}

    fn close(&self, cause: Error) {
        let lost = Error::new(ErrorKind::Lost, "the peer closed the connection");
        self.inbox.lock().messages.clear();
        self.inbox.end(Ended { for_sender: lost.clone(), for_receiver: cause.clone() });
        self.outbox.end(Ended { for_sender: cause, for_receiver: lost });
    }

    fn retire(&self) -> BoxFuture<'static, ()> {
        self.close(Error::new(ErrorKind::Closed, "the connection was retired"));
        Box::pin(std::future::ready(()))
    }

    fn path(&self) -> Path {
        self.path.clone()
    }

    fn capability(&self, _id: TypeId) -> Option<&(dyn Any + Send + Sync)> {
        None
    }
}
