//! The NIC seam: what the transport needs of a device that speaks verbs.
//!
//! Two sides implement it: `verbs` (rdma-sys) and `fabric` (a software NIC in this process). The names are
//! those of the verbs manual pages, and so is the meaning, as far as soft-RoCE and soft-iWARP agree on it.
//!
//! # Contract
//!
//! **Who owns a buffer when.** A [`Sge`] names memory of a `NicBuf` (or of `Bytes`, later) and does not
//! own it. From the moment a work request is passed to a post, successful or not, its memory belongs to the
//! NIC. It comes back by the work request's completion, or by the completion of a later signalled one on the
//! same send queue, or when [`Qp::destroy`] has returned. Nothing else proves it: neither a reply of the
//! peer, nor a flush that is late, nor time. On iWARP a send of 4 KiB or more goes out from where it lies, and
//! only its own completion proves anything.
//!
//! **What a completion proves.** Success of a send: the buffer may be reused, not that the peer has the data
//! (soft-iWARP reports success of a SEND that its peer had no receive for). Success of a receive: the data is
//! there, and so is every earlier Write of the peer on this queue pair. Failure: only `wr_id`, status and queue
//! pair number are meaningful; the queue pair is dead.
//!
//! **What a failed post leaves behind.** An error says that this or a later work request of the batch was not
//! taken; which of them the device executes is unknown. The queue pair must be moved to the error state, and
//! every buffer of the batch belongs to the NIC until the queue pair is destroyed. Receives are used in the
//! order of posting.
//!
//! **Shared receives.** Queue pairs made on an [`Srq`] have no receives of their own: each message takes the oldest
//! receive of the [`Srq`], whichever queue pair it came over. The completion says which, by its number, and shows where that
//! queue pair's receives complete. Nothing is flushed when such a queue pair fails. What it took last may never complete, so
//! that only the destruction of the [`Srq`] proves of every receive that it is free.
//!
//! **Ends.** After [`Qp::fail`] posted receives are flushed; work requests posted afterwards may complete as
//! flushed or never. Flushes of a destroyed queue pair may still come, or never come: whoever polls discards
//! by generation. There is no other way to wait for the end than with a bound.
//!
//! **Events.** Arming a queue that holds completions gives no event: poll until it is empty, arm, poll again,
//! then wait. One armed queue gives at least one event for the next completion; more are harmless.
//!
//! All methods are callable from any thread. None blocks, except `destroy`, which runs on a thread that may.

mod srq;
mod window;
mod work;

use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll};

use verbwire_core::Error;
use verbwire_core::transport::BoxFuture;

use crate::memory::{Region, Slab};

pub use srq::Srq;
pub use window::Window;
pub use work::{Inline, RecvWr, SendOp, SendWr, Sge, Sges, Signal, Wc, WcStatus, WrId};

/// Most scatter/gather entries of a work request: what soft-iWARP has, the least of all devices.
pub const MAX_SGE: usize = 6;

/// Most bytes of private data that a connect or accept carries on every kind of device.
pub const MAX_PRIVATE_DATA: usize = 56;

/// A device that was opened, with one protection domain.
pub trait Nic: Send + Sync + 'static {
    /// What the device can do, as it says itself.
    fn capabilities(&self) -> &Capabilities;

    /// Registers a slab's memory. A software NIC keeps a weak reference: it reaches the memory by the slab's
    /// checked DMA.
    ///
    /// # Errors
    ///
    /// The limit on locked memory, or on registrations, is reached.
    fn register(&self, slab: &Arc<Slab>, access: Access) -> Result<Box<dyn Region>, NicError>;

    /// The same device with a protection domain of its own. Queue pairs of one domain name no memory of another, whatever
    /// their peers say. Completion queues serve all domains of a device.
    ///
    /// # Errors
    ///
    /// The device has one only, or none left.
    fn own_domain(&self) -> Result<Arc<dyn Nic>, NicError> {
        Err(NicError {
            verb: "ibv_alloc_pd",
            reason: "the device has one protection domain".into(),
        })
    }

    /// Whether the device was removed. It never comes back; another of its name may.
    fn is_gone(&self) -> bool {
        false
    }

    /// Makes a completion queue for `depth` completions. Its events are waited for on the runtime that this is
    /// called on.
    ///
    /// # Errors
    ///
    /// `depth` exceeds the device's `max_cqe`, or the device is out of queues.
    fn create_cq(&self, depth: u32) -> Result<Arc<dyn Cq>, NicError>;

    /// Makes a queue pair whose work completes on `cqs`. It is not connected yet; receives can be posted at once.
    ///
    /// # Errors
    ///
    /// A depth exceeds the device's, or the device is out of queue pairs.
    fn create_qp(&self, cqs: &Cqs, depths: Depths) -> Result<Arc<dyn Qp>, NicError>;

    /// Makes a shared receive queue for `depth` receives, in this protection domain.
    ///
    /// # Errors
    ///
    /// The device has none, none left, or none that is so deep ([`Capabilities::max_srq_wr`]).
    fn create_srq(&self, depth: u32) -> Result<Arc<dyn Srq>, NicError> {
        let _none = depth;
        Err(NicError {
            verb: "ibv_create_srq",
            reason: "the device has no shared receive queues".into(),
        })
    }

    /// Makes a queue pair of which the receives are those of `srq`, which outlives it. Its send queue holds `send` work
    /// requests.
    ///
    /// # Errors
    ///
    /// As for [`create_qp`](Self::create_qp), or the queue is of another protection domain.
    fn create_qp_on(
        &self,
        srq: &Arc<dyn Srq>,
        cqs: &Cqs,
        send: u32,
    ) -> Result<Arc<dyn Qp>, NicError> {
        let _none = (srq, cqs, send);
        Err(NicError {
            verb: "ibv_create_qp",
            reason: "the device has no shared receive queues".into(),
        })
    }

    /// Allocates a memory window. May take as long as a command of the device.
    ///
    /// # Errors
    ///
    /// The device has none, or none left.
    fn allocate_window(&self) -> Result<Box<dyn Window>, NicError> {
        Err(NicError { verb: "ibv_alloc_mw", reason: "the device has no memory windows".into() })
    }
}

/// A completion queue with its completion channel.
pub trait Cq: Send + Sync + 'static {
    /// Appends up to `max` completions to `out`; returns how many. Never waits.
    ///
    /// # Errors
    ///
    /// The queue is lost (overflow, device gone): every queue pair on it is dead.
    fn poll(&self, out: &mut Vec<Wc>, max: usize) -> Result<usize, NicError>;

    /// Asks for an event with the next completion.
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll).
    fn arm(&self) -> Result<(), NicError>;

    /// Waits for the event that an [`arm`](Self::arm) asked for, and takes it. To be armed again only after that, or
    /// when the event is given up for lost: then one more may come.
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll).
    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Result<(), NicError>>;

    /// The implementation's own type, for [`Nic::create_qp`].
    fn as_any(&self) -> &dyn Any;
}

/// The completion queues of a queue pair.
#[derive(Clone)]
pub struct Cqs {
    /// Where its sends complete.
    pub send: Arc<dyn Cq>,
    /// Where its receives complete; may be the same.
    pub recv: Arc<dyn Cq>,
}

impl Cqs {
    /// One queue for both.
    pub fn one(cq: &Arc<dyn Cq>) -> Self {
        Self { send: Arc::clone(cq), recv: Arc::clone(cq) }
    }
}

/// A reliable connected queue pair.
pub trait Qp: Send + Sync + 'static {
    /// Its number on the device; reused after destruction.
    fn number(&self) -> QpNumber;

    /// Posts sends, in order. The caller counts free slots of the send queue and never posts more.
    ///
    /// # Errors
    ///
    /// See the contract: the queue pair is to be failed and destroyed.
    fn post_send(&self, batch: &[SendWr]) -> Result<(), NicError>;

    /// Posts receives, in order. Not where they are those of an [`Srq`].
    ///
    /// # Errors
    ///
    /// As for [`post_send`](Self::post_send).
    fn post_recv(&self, batch: &[RecvWr]) -> Result<(), NicError>;

    /// Moves the queue pair to the error state. Does nothing on one that is there.
    fn fail(&self);

    /// Destroys the queue pair. When this returns no NIC touches memory for it any more. May block; called
    /// once, off the runtime's workers.
    fn destroy(&self);

    /// The implementation's own type, for the connection manager.
    fn as_any(&self) -> &dyn Any;
}

/// The connection manager: finds devices by address and connects queue pairs.
pub trait Cm: Send + Sync + 'static {
    /// Finds the device that leads to `address`.
    ///
    /// # Errors
    ///
    /// No device leads there; says so in words.
    fn resolve<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Resolved>, Error>>;

    /// Begins to listen at `address`.
    ///
    /// # Errors
    ///
    /// The address is in use, or belongs to no device.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn CmListener>, Error>>;
}

/// A way to a peer, before the connection.
pub trait Resolved: Send + 'static {
    /// The device.
    fn nic(&self) -> Arc<dyn Nic>;

    /// Connects a queue pair of this device. Receives must be posted before.
    ///
    /// # Errors
    ///
    /// Refused, unreachable, or the private data of the refusal in words.
    fn connect(
        self: Box<Self>,
        qp: Arc<dyn Qp>,
        private_data: Vec<u8>,
    ) -> BoxFuture<'static, Result<Connected, Error>>;
}

/// Takes connect requests at one address.
pub trait CmListener: Send + 'static {
    /// The address, with the port that the system chose.
    fn local_address(&self) -> &str;

    /// Where peers reach it: more than one where it listens at all addresses and knows them.
    fn addresses(&self) -> Vec<String> {
        vec![self.local_address().to_owned()]
    }

    /// The next connect request.
    ///
    /// # Errors
    ///
    /// The device is gone.
    fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Box<dyn ConnectRequest>, Error>>;
}

/// A peer that wants to connect.
pub trait ConnectRequest: Send + 'static {
    /// The device that it reached.
    fn nic(&self) -> Arc<dyn Nic>;

    /// Its address.
    fn peer(&self) -> String;

    /// What it sent along.
    fn private_data(&self) -> &[u8];

    /// Accepts with a queue pair of this device. Receives must be posted before. Ready when the connection
    /// stands; the accepting side must not send before it has received.
    ///
    /// # Errors
    ///
    /// The peer gave up.
    fn accept(
        self: Box<Self>,
        qp: Arc<dyn Qp>,
        private_data: Vec<u8>,
    ) -> BoxFuture<'static, Result<Connected, Error>>;

    /// Refuses; the peer is told `private_data`.
    fn reject(self: Box<Self>, private_data: Vec<u8>);
}

/// A connected queue pair, as the connection manager sees it.
pub struct Connected {
    /// What the peer sent along with its answer.
    pub private_data: Vec<u8>,
    /// This side's and the peer's addresses.
    pub addresses: (String, String),
    /// This side's GID, where there are any and the device says it.
    pub gid: Option<String>,
    /// Bytes of payload in a packet of this connection, where the device says it.
    pub mtu: Option<u32>,
    /// What happens to the connection.
    pub events: Box<dyn CmConnection>,
}

/// What happens to a connection.
pub trait CmConnection: Send + 'static {
    /// Ready when the peer has disconnected or the device says that the connection is over. A peer that dies
    /// may never cause it.
    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<Error>;

    /// Disconnects; the peer is told if it can be reached.
    fn disconnect(&mut self);
}

/// What a device can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The device's name, for example `rxe0`.
    pub device: String,
    /// What kind of wire it speaks.
    pub wire: Wire,
    /// Completions that a queue can hold.
    pub max_cqe: u32,
    /// Work requests that a send or receive queue can hold.
    pub max_wr: u32,
    /// Receives that a shared receive queue can hold; 0 where there are no such queues.
    pub max_srq_wr: u32,
    /// Scatter/gather entries of a work request.
    pub max_sge: usize,
    /// Scatter/gather entries of a Read.
    pub max_read_sge: usize,
    /// Bytes that a send can carry in the work request itself.
    pub max_inline: usize,
    /// Sends of each queue pair that its own side of the seam posts besides the caller's.
    pub own_sends: u32,
    /// Whether fetch-add and compare-swap work.
    pub atomics: Support,
    /// What memory windows of type 2 are worth.
    pub memory_windows: Windows,
    /// Whether Writes can carry immediate data.
    pub write_with_immediate: Support,
}

/// Whether a device can do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It can.
    Yes,
    /// It cannot.
    No,
}

/// What a device's memory windows of type 2 are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// There are none.
    No,
    /// They can be bound and invalidated, and keep nobody from other memory: soft-RoCE checks a window's key and queue
    /// pair and not its bounds, windows of type 2A are not bound to a queue pair.
    Porous,
    /// Through a window a peer reaches what it was bound to, over the queue pair that it was bound on, and nothing else.
    Isolating,
}

/// The kinds of wire that carry RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// InfiniBand or RoCE: one protocol over two link layers.
    InfiniBand,
    /// iWARP, over TCP: the connecting side must send first, an empty receive queue is fatal, and a Write needs
    /// its source until the peer has acknowledged the bytes.
    Iwarp,
}

/// How a slab may be accessed by NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// By this side's own work requests only.
    Local,
    /// Also by Writes of peers.
    RemoteWrite,
    /// By Writes of peers only through windows that are bound to parts of it.
    Windows,
}

/// Depths of a queue pair's queues, in work requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Send queue.
    pub send: u32,
    /// Receive queue.
    pub recv: u32,
}

/// A queue pair's number on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpNumber(pub u32);

/// A verb that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{verb} failed: {reason}")]
pub struct NicError {
    /// The verb, for example `ibv_post_send`.
    pub verb: &'static str,
    /// Why, with errno and what to do about it where known.
    pub reason: String,
}
