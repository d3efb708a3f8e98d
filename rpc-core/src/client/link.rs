//! One connection as its callers see it: begin a call, wait for it, give it up.
//!
//! Owns the order of steps around the call table, and whether a connection outlives another as its first path.

mod life;
mod limits;
mod start;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::methods::{MethodNumbers, ServiceNumbers};
use super::table::Table;
use crate::buf::Buffer;
use crate::compression::{Compression, Inbound, Outbound, Receiver};
use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind};
use crate::message::{CallId, MethodId};
use crate::paths::{Line, PathInfo};
use crate::proto::client::{Outcome, Reply, ReplyBegun, Slot};
use crate::proto::deadlines::deadline_after;
use crate::proto::paths::PathPolicy;
use crate::proto::stream::StreamWindows;
use crate::service::ServiceDescriptor;
use crate::status::{Executed, Status};
use crate::sync::{Mutex, lock};
use crate::transport::counted::Counted;
use crate::transport::pressure::PressureWatch;
use crate::transport::{Connection, Established, Path, Transport};
use crate::wire::metadata::Block;

pub(super) use life::Leaving;
use life::Life;
pub(super) use start::{NotStarted, Unsent, expired_before_sending};

/// What callers hold. The connection closes when the last channel and the last call are gone.
pub(super) struct Link {
    shared: Arc<Shared>,
    transport: Arc<dyn Transport>,
    /// Shared by the connections that a channel makes one after the other.
    methods: Arc<Mutex<MethodNumbers>>,
    default_timeout: Duration,
    /// What the process at the other end calls itself: another one, at the same address, has another.
    incarnation: u64,
    line: Line,
    /// Of a second path: the first, which outlives its calls.
    first: Option<Arc<Link>>,
    /// Whether calls may go over that one instead.
    first_takes_calls: bool,
}

/// What callers and the driver share.
pub(super) struct Shared {
    pub(super) table: Arc<Table>,
    pub(super) connection: Arc<dyn Connection>,
    pub(super) pressure: PressureWatch,
    /// Slots that the peer still allows. Fair, so that no caller starves.
    free_slots: Semaphore,
    /// Second paths, which would end with this one: one that calls take, and those before it that something still holds.
    seconds: AtomicUsize,
    /// Whether a call of the application succeeded. What the channel asks for itself says nothing of the service.
    served: AtomicBool,
    life: watch::Sender<Life>,
    /// The highest number of a method that the peer remembers.
    peer_max_methods: u32,
    peer_max_message_size: usize,
    peer_max_metadata_size: usize,
    /// What is done with requests that do not say it.
    compression: Compression,
    takes: Outbound,
    /// What replies are held to that come compressed.
    pub(super) compressed: Inbound,
    windows: StreamWindows,
    /// Where streams of requests are polled.
    runtime: Handle,
}

impl Link {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        table: Arc<Table>,
        established: Established,
        config: &ClientConfig,
        methods: Arc<Mutex<MethodNumbers>>,
        local_window: u32,
    ) -> Self {
        let Established { connection, peer } = established;
        let counted = Counted::new(connection);
        let line = Line::new(Arc::clone(&counted));
        let connection: Arc<dyn Connection> = counted;
        let slots = usize::try_from(peer.max_concurrent_calls).unwrap_or(usize::MAX);
        let shared = Arc::new(Shared {
            table,
            pressure: PressureWatch::of(&*connection),
            connection,
            free_slots: Semaphore::new(slots.min(Semaphore::MAX_PERMITS)),
            seconds: AtomicUsize::new(0),
            served: AtomicBool::new(false),
            life: watch::Sender::new(Life::Open),
            peer_max_methods: peer.max_interned_methods,
            peer_max_message_size: usize::try_from(peer.max_message_size).unwrap_or(usize::MAX),
            peer_max_metadata_size: usize::try_from(peer.max_metadata_size).unwrap_or(usize::MAX),
            compression: config.send_compressed,
            takes: Outbound::to(&peer, &config.limits, Receiver::Client),
            compressed: Inbound::new(&config.limits, Receiver::Client),
            windows: StreamWindows { local: local_window, peer: peer.stream_window },
            runtime: Handle::current(),
        });
        let (default_timeout, incarnation) = (config.default_timeout, peer.incarnation);
        Self {
            shared,
            transport,
            methods,
            default_timeout,
            incarnation,
            line,
            first: None,
            first_takes_calls: false,
        }
    }

    /// The second path of `first`, which stays as long as this, and takes this along if it is lost.
    pub(super) fn beside(mut self, first: Arc<Link>, policy: PathPolicy) -> Self {
        let (first_ended, own_ended) =
            (first.shared.leaving().ended(), self.shared.leaving().ended());
        let connection = Arc::clone(&self.shared.connection);
        self.shared.runtime.spawn(async move {
            tokio::select! {
                biased;
                _ended = own_ended => {}
                cause = first_ended => {
                    let message = "the first path of the connection has ended";
                    let cause = cause.map_or_else(|| "it was dropped".to_owned(), |cause| cause.to_string());
                    connection.close(Error::with_source(ErrorKind::Lost, message, cause));
                }
            }
        });
        first.shared.seconds.fetch_add(1, Ordering::AcqRel);
        self.first = Some(first);
        self.first_takes_calls = policy != PathPolicy::RequireRdma;
        self
    }

    /// The path that this one is beside, if it is a second one.
    pub(super) fn first(&self) -> Option<&Arc<Self>> {
        self.first.as_ref()
    }

    /// The path for a call with so many bytes of metadata: over RDMA there is less room, and what an application may say must not
    /// depend on its path. This one where its first takes no calls, or has no room either.
    pub(super) fn with_room(self: Arc<Self>, metadata: usize) -> Arc<Self> {
        if self.shared.check_metadata(metadata).is_ok() {
            return self;
        }
        let first = self.first.as_ref().filter(|first| {
            self.first_takes_calls
                && first.shared.is_open()
                && first.shared.check_metadata(metadata).is_ok()
        });
        first.map(Arc::clone).unwrap_or(self)
    }

    /// What is said of it.
    pub(super) fn info(&self) -> PathInfo {
        self.line.info()
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn default_timeout(&self) -> Duration {
        self.default_timeout
    }

    pub(super) fn path(&self) -> Path {
        self.shared.connection.path()
    }

    pub(super) fn memory_pressure(&self) -> PressureWatch {
        self.shared.pressure.clone()
    }

    pub(super) fn register(&self, service: &'static ServiceDescriptor) -> ServiceNumbers {
        lock(&self.methods).register(service)
    }

    /// The number of a method that was given by its path.
    pub(super) fn number(&self, path: &Arc<str>) -> MethodId {
        lock(&self.methods).number(path)
    }

    pub(super) async fn alloc(&self, len: usize) -> Result<Buffer, Status> {
        self.shared.check_size(len)?;
        let deadline = deadline_after(Instant::now(), self.default_timeout);
        let buffer = self.transport.alloc(len, deadline).await;
        buffer.map_err(|error| error.to_status(Executed::No))
    }

    /// The outcome of a call that has begun.
    pub(super) fn poll_outcome(&self, call: CallId, cx: &mut Context<'_>) -> Poll<Outcome> {
        let outcome = self.shared.table.with(|calls| calls.poll_outcome(call, cx.waker()));
        if outcome.is_ready() {
            self.shared.free_slots.add_permits(1);
        }
        outcome
    }

    /// Ready when the replies of a call begin, or with the status of one that has ended before.
    pub(super) fn poll_headers(
        &self,
        call: CallId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Box<Block>>, Status>> {
        let headers = self.shared.table.with(|calls| calls.poll_headers(call, cx.waker()));
        if let Poll::Ready(Err(_)) = headers {
            self.shared.free_slots.add_permits(1);
        }
        headers
    }

    /// The same of a call whose reply may be one message: then that.
    pub(super) fn poll_reply(
        &self,
        call: CallId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ReplyBegun, Status>> {
        let reply = self.shared.table.with(|calls| calls.poll_reply(call, cx.waker()));
        if let Poll::Ready(Ok(ReplyBegun::Whole(_)) | Err(_)) = reply {
            self.shared.free_slots.add_permits(1);
        }
        reply
    }

    /// The next reply of a call, or its end.
    pub(super) fn poll_message(
        &self,
        call: CallId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Reply, Status>> {
        let message = self.shared.table.with(|calls| calls.poll_message(call, cx.waker()));
        if let Poll::Ready(Ok(Reply::End(_)) | Err(_)) = message {
            self.shared.free_slots.add_permits(1);
        }
        message
    }

    /// Asks the peer to stop the call; its outcome still comes.
    pub(super) fn cancel(&self, call: CallId) {
        self.shared.table.with_driver_work(|calls| calls.cancel(call));
    }

    /// Nobody waits for the call any more.
    pub(super) fn abandon(&self, call: CallId) {
        let (streams, slot) = self
            .shared
            .table
            .with_driver_work(|calls| (calls.take_streams(call), calls.abandon(call)));
        self.shared.release(slot);
        // The task that feeds the request ends.
        let feeder = streams.and_then(|mut streams| streams.take_feeder());
        feeder.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let cause = Error::new(ErrorKind::Closed, "the channel was dropped");
        self.shared.connection.close(cause);
        if let Some(first) = &self.first {
            first.shared.seconds.fetch_sub(1, Ordering::AcqRel);
            // It may have waited for this alone.
            first.shared.table.with_driver_work(|_calls| {});
        }
    }
}

impl Shared {
    /// Whether a second path needs the connection.
    pub(super) fn is_held(&self) -> bool {
        self.seconds.load(Ordering::Acquire) > 0
    }

    /// Slots that the peer still allows.
    pub(super) fn free_slots(&self) -> &Semaphore {
        &self.free_slots
    }

    /// Calls that are under way.
    pub(super) fn in_flight(&self) -> usize {
        self.table.with(|calls| calls.in_flight())
    }

    /// Whether a call of the application succeeded.
    pub(super) fn has_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// A call of the application has succeeded.
    pub(super) fn handle_served(&self) {
        // Written once: a line that all callers write would go from core to core.
        if !self.has_served() {
            self.served.store(true, Ordering::Relaxed);
        }
    }

    /// Slots became free.
    pub(super) fn release(&self, slot: Slot) {
        if slot == Slot::Freed {
            self.free_slots.add_permits(1);
        }
    }
}
