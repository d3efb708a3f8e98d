//! The queue pair of a connection with everything that must outlive its work: its share of a completion queue,
//! buffers, and the connection manager's view of it.
//!
//! The connection's poster and its receiver hold the endpoint; when both have let it go, its end begins by
//! itself ([`teardown`]): on the runtime of who did that last, else on the one that it was connected on. It
//! needs no living driver.

mod teardown;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::watch;
use verbwire_core::transport::news::News;
use verbwire_core::{Error, ErrorKind};

use crate::config::RdmaConfig;
use crate::device::{Device, Lease};
use crate::error;
use crate::memory::{CpuBuf, NicAccess, NicBuf};
use crate::nic::{CmConnection, Depths, NicError, Qp, RecvWr, Wc, Wire};
use crate::reactor::{Awaited, Binding, Left, Share};
use crate::reaper::Reaper;
use crate::rendezvous::Rendezvous;
use crate::shared::Membership;
use crate::work::{Completed, Work};

use teardown::Teardown;

/// See the module.
pub(crate) struct Endpoint {
    qp: Arc<dyn Qp>,
    /// `None` only when `self` is about to drop.
    share: Option<Share>,
    work: Mutex<Work>,
    /// `None` until the connection stands.
    events: Mutex<Option<Box<dyn CmConnection>>>,
    /// Whether `events` has to be asked.
    news: News,
    lease: Option<Lease>,
    /// `None` if its receives are its own.
    membership: Option<Membership>,
    /// Given to the endpoint when the connection ends.
    rendezvous: Mutex<Option<Rendezvous>>,
    bounds: Bounds,
    wire: Wire,
    /// Work requests that the send queue holds.
    send_depth: u32,
    reaper: Arc<dyn Reaper>,
    /// Where the end runs if it begins outside of every runtime.
    runtime: Handle,
    /// Dropped when the queue pair is destroyed.
    open: Option<watch::Sender<()>>,
}

/// Queue pairs that are made at most to find one whose number nobody had lately. 64: devices hand numbers out in a circle.
const TRIES: usize = 64;

/// A queue pair whose completions cannot be taken for those of one that is gone; `None` if the device makes no such one.
fn known_qp(
    make: impl Fn() -> Result<Arc<dyn Qp>, NicError>,
    mut bind: impl FnMut(&Arc<dyn Qp>) -> Binding,
) -> Result<Option<Arc<dyn Qp>>, NicError> {
    // Kept until there is another one, which so has another number.
    let mut aside = Vec::new();
    while aside.len() < TRIES {
        let qp = make()?;
        match bind(&qp) {
            Binding::Known => return Ok(Some(qp)),
            Binding::InUse => aside.push(qp),
        }
    }
    Ok(None)
}

/// A queue pair, and the completions that name it.
type Known = (Arc<dyn Qp>, Share);

/// A queue pair with its completions and receives.
struct Made {
    qp: Arc<dyn Qp>,
    share: Share,
    membership: Option<Membership>,
    depths: Depths,
}

impl Made {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// The device is out of something.
    fn new(
        device: &Arc<Device>,
        config: &RdmaConfig,
        reaper: &Arc<dyn Reaper>,
    ) -> Result<Self, Error> {
        let capabilities = device.nic().capabilities();
        // Each send may wait for its completion, beside what the queue itself has to say.
        let completions = capabilities.max_cqe.saturating_sub(capabilities.own_sends);
        let send = config.send_depth.min(capabilities.max_wr).min(completions);
        // Each turn finds a queue of shared receives without numbers, and there are few queues.
        loop {
            let Some(membership) = device.share_receives(config, reaper)? else {
                return Self::alone(device, config, send);
            };
            if let Some((qp, share)) = Self::sharing(device, config, &membership, send)? {
                let (membership, depths) = (Some(membership), Depths { send, recv: 0 });
                return Ok(Self { qp, share, membership, depths });
            }
            membership.shared().lack_numbers();
        }
    }

    /// One with receives of its own.
    fn alone(device: &Device, config: &RdmaConfig, send: u32) -> Result<Self, Error> {
        let capabilities = device.nic().capabilities();
        if config.receives() > capabilities.max_wr {
            let message = format!(
                "{} holds {} work requests in a queue, and the windows need {} receives: lower data_window and                  control_window",
                capabilities.device,
                capabilities.max_wr,
                config.receives()
            );
            return Err(Error::new(ErrorKind::LocalResource, message));
        }
        let depths = Depths { send, recv: config.receives() };
        let share = device.admit((depths, None), config).map_err(no_room(depths))?;
        let qp = device.nic().create_qp(share.cqs(), depths).map_err(no_queue_pair)?;
        Ok(Self { qp, share, membership: None, depths })
    }

    /// One that shares receives; `None` if there is no number for it.
    fn sharing(
        device: &Device,
        config: &RdmaConfig,
        membership: &Membership,
        send: u32,
    ) -> Result<Option<Known>, Error> {
        let shared = membership.shared();
        let depths = Depths { send, recv: 0 };
        let mut share = device.admit((depths, Some(shared)), config).map_err(no_room(depths))?;
        let cqs = share.cqs().clone();
        let allowed = (config.receives() + send) as usize;
        let make = || device.nic().create_qp_on(shared.srq(), &cqs, send);
        let qp = known_qp(make, |qp| share.bind(qp, allowed)).map_err(no_queue_pair)?;
        Ok(qp.map(|qp| (qp, share)))
    }
}

fn no_room(Depths { send, recv }: Depths) -> impl FnOnce(NicError) -> Error {
    move |error| {
        let doing = format!(
            "finding room on completion queues for a connection of {send} sends (send_depth) and {recv} receives \
             (data_window, control_window)"
        );
        error::local(&doing, error)
    }
}

fn no_queue_pair(error: NicError) -> Error {
    error::local("making a queue pair", error)
}

/// How long the end may take.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    close: Duration,
    drain: Duration,
}

impl Endpoint {
    /// A queue pair with its receives posted; and what errs once it is destroyed.
    ///
    /// # Errors
    ///
    /// The device is out of something.
    pub(crate) fn open(
        device: &Arc<Device>,
        config: &RdmaConfig,
        reaper: &Arc<dyn Reaper>,
    ) -> Result<(Arc<Self>, watch::Receiver<()>), Error> {
        let capabilities = device.nic().capabilities();
        let setup = |doing| move |error| error::local(doing, error);
        let Made { qp, share, membership, depths } = Made::new(device, config, reaper)?;
        let (open, destroyed) = watch::channel(());
        let max_inline = config.max_inline.min(capabilities.max_inline);
        // From here on the endpoint's own end cleans up.
        let mut endpoint = Self {
            qp,
            work: Mutex::new(Work::new(share.number(), max_inline)),
            share: Some(share),
            events: Mutex::new(None),
            news: News::default(),
            lease: None,
            membership,
            rendezvous: Mutex::default(),
            bounds: Bounds { close: config.close_timeout, drain: config.drain_timeout },
            wire: capabilities.wire,
            send_depth: depths.send,
            reaper: Arc::clone(reaper),
            runtime: Handle::current(),
            open: Some(open),
        };
        let lease = device.lease(depths.recv + config.staging_buffers.min(depths.send), config);
        endpoint.lease = Some(lease.map_err(setup("registering a connection's buffers"))?);
        let buffers = (0..depths.recv).map(|_| endpoint.take()).collect::<Result<Vec<_>, _>>()?;
        if endpoint.membership.is_none() {
            let posted = endpoint.post_receives(buffers, &mut Vec::new());
            posted.map_err(setup("posting the first receives"))?;
        }
        Ok((Arc::new(endpoint), destroyed))
    }

    pub(crate) fn qp(&self) -> &Arc<dyn Qp> {
        &self.qp
    }

    /// The kind of wire below.
    pub(crate) fn wire(&self) -> Wire {
        self.wire
    }

    /// Work requests that the send queue holds.
    pub(crate) fn send_depth(&self) -> u32 {
        self.send_depth
    }

    pub(crate) fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock()
    }

    /// The connection stands.
    pub(crate) fn connected(&self, events: Box<dyn CmConnection>) {
        *self.events() = Some(events);
        self.news.renew();
    }

    /// Keeps the regions and sources of long bodies until the queue pair is destroyed.
    pub(crate) fn keep(&self, rendezvous: Rendezvous) {
        *self.kept() = Some(rendezvous);
    }

    fn kept(&self) -> MutexGuard<'_, Option<Rendezvous>> {
        self.rendezvous.lock()
    }

    /// A buffer to send from or to receive into.
    ///
    /// # Errors
    ///
    /// There is none, which is a fault of this crate: who takes one has counted them.
    pub(crate) fn take(&self) -> Result<CpuBuf, Error> {
        let buf = self.lease.as_ref().and_then(|lease| lease.pool().take());
        buf.ok_or_else(|| {
            let message = "a connection has no buffer left where its own count has some";
            Error::new(ErrorKind::LocalResource, message)
        })
    }

    /// Takes a completion. The buffer of a receive is to be posted again, whatever becomes of the connection, if receives
    /// are shared.
    pub(crate) fn complete(&self, wc: &Wc) -> Completed {
        let shared = self.membership.as_ref().and_then(|membership| membership.complete(wc));
        shared.unwrap_or_else(|| self.work().complete(wc))
    }

    /// HELLO was received into this buffer. Its receive is not posted again, unless it is a shared one.
    pub(crate) fn greeted(&self, buf: CpuBuf) {
        if let Some(membership) = &self.membership {
            // If that fails, the driver hears of it.
            let _told = membership.shared().repost([buf], &mut Vec::new());
            membership.greeted();
        }
    }

    /// Moves the queue pair to the error state.
    pub(crate) fn fail(&self) {
        self.qp.fail();
        self.membership.iter().for_each(Membership::part);
    }

    /// Its place among those that share receives.
    pub(crate) fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// Posts receives into these buffers, in order, with one call. `batch` is memory for it.
    ///
    /// # Errors
    ///
    /// The queue pair is dead, or the queue that it shares. The buffers come back when that is destroyed.
    pub(crate) fn post_receives(
        &self,
        buffers: impl IntoIterator<Item = CpuBuf>,
        batch: &mut Vec<RecvWr>,
    ) -> Result<(), NicError> {
        if let Some(membership) = &self.membership {
            return membership.shared().repost(buffers, batch);
        }
        batch.clear();
        {
            let receives = &mut self.work().receives;
            batch.extend(buffers.into_iter().map(|buf| receives.push(buf)));
        }
        self.qp.post_recv(batch)
    }

    /// Sends HELLO, before anything else.
    ///
    /// # Errors
    ///
    /// It does not fit a buffer, or the queue pair is dead.
    pub(crate) fn send_hello(&self, hello: &[u8]) -> Result<(), Error> {
        let mut buf = self.take()?;
        let room = buf.len();
        let Some(place) = buf.get_mut(..hello.len()) else {
            let message = format!(
                "a HELLO of {} bytes does not fit a buffer of {room}; shorten the name in it",
                hello.len()
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        };
        place.copy_from_slice(hello);
        let buf: NicBuf = buf.into_nic(NicAccess::Read);
        let wr = self.work().send_hello(buf, hello.len());
        self.qp.post_send(&[wr]).map_err(|error| error::lost("saying HELLO", error))
    }

    /// Looks for completions that nobody was told of. What is found wakes who waits for it.
    pub(crate) fn take_all(&self) {
        self.share.iter().for_each(Share::take_all);
    }

    /// Says whether completions of sends are needed as soon as they come. Else they come with the next receive.
    pub(crate) fn await_sends(&self, awaited: Awaited) {
        self.share.iter().for_each(|share| share.await_sends(awaited));
    }

    /// Appends up to `max` completions to `out`; ready when there are some, with whether more are left. One task waits at a
    /// time.
    ///
    /// # Errors
    ///
    /// The completion queue is lost.
    pub(crate) fn poll_completions(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<Wc>,
        max: usize,
    ) -> Poll<Result<Left, NicError>> {
        match &self.share {
            Some(share) => share.poll(cx, out, max),
            None => Poll::Pending,
        }
    }

    /// Ready when the peer or the device has ended the connection.
    pub(crate) fn poll_disconnected(&self, cx: &mut Context<'_>) -> Poll<Error> {
        self.news.poll(cx, |cx| match &mut *self.events() {
            Some(events) => events.poll_disconnected(cx),
            None => Poll::Pending,
        })
    }

    /// What failed, with why as far as the connection manager or the device has said it by now. They are often
    /// first and heard later: when a device is removed, the work of one connection fails because another one's
    /// task was the first to hear of it.
    ///
    /// Who waits for [`poll_disconnected`](Self::poll_disconnected) must poll it again after this.
    pub(crate) fn explain(&self, symptom: Error) -> Error {
        match self.poll_disconnected(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(why) => Error::with_source(symptom.kind(), symptom.to_string(), why),
            Poll::Pending => symptom,
        }
    }

    fn events(&self) -> MutexGuard<'_, Option<Box<dyn CmConnection>>> {
        self.events.lock()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Who drops it is being driven; the runtime that it was connected on may not be. On one that has shut
        // down the task is dropped at once, and the short way is taken.
        let runtime = Handle::try_current().unwrap_or_else(|_| self.runtime.clone());
        drop(runtime.spawn(Teardown::new(self).run()));
    }
}
