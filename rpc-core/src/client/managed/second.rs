//! The task that gives a connection its second path, and another one when that is lost.
//!
//! It asks the server over the first path, connects in the background, and has new calls go over the second when that stands. The
//! rules are [`PathRule`]'s. It ends with the generation of connections that it belongs to.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::super::channel::{Channel, Way};
use super::super::connector::Connector;
use super::super::link::Link;
use super::super::stub::Client;
use super::subchannel::Subchannel;
use crate::config::ClientConfig;
use crate::proto::paths::{Next, Outlook, PathRule};
use crate::request::{Request, Response};
use crate::status::{Code, Status};
use crate::sync::{Mutex, lock, try_lock};
use crate::transport::{Beside, BoxFuture, Second};
use crate::wire::paths::{OfferReply, OfferRequest, SERVICE};

/// Longest time for the server to answer whether it offers a second path. 10 s: it may have to look for its device.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// The second path of a connection: what is known of it, and the task that cares for it. Dropped, the task ends; a path that
/// stands stays as long as its calls.
pub(super) struct Upgrade {
    rule: Arc<Mutex<PathRule>>,
    _task: Option<Task>,
}

/// A task and its future, which its owner can drop also while nobody drives the runtime: it may hold a connection.
struct Task {
    work: Work,
    handle: AbortHandle,
}

type Work = Arc<Mutex<Option<BoxFuture<'static, ()>>>>;

impl Task {
    fn spawn(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) -> Self {
        let work: Work = Arc::new(Mutex::new(Some(Box::pin(work))));
        let polled = Arc::clone(&work);
        let task = poll_fn(move |cx| match &mut *lock(&polled) {
            Some(work) => work.as_mut().poll(cx),
            None => Poll::Ready(()),
        });
        Self { work, handle: runtime.spawn(task).abort_handle() }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
        // Locked while it is polled, by this very call for example; then the runtime is driven, and ends it.
        let work = try_lock(&self.work).and_then(|mut work| work.take());
        drop(work);
    }
}

impl Upgrade {
    /// Begins to try for a second path beside `primary`. `None` over a transport whose targets mean one path.
    pub(super) fn begin(
        subchannel: &Arc<Subchannel>,
        connector: &Arc<Connector>,
        primary: &Arc<Link>,
    ) -> Option<Self> {
        let beside = connector.transport().beside()?;
        let (available, second) = match beside {
            Beside::Nothing(why) => (Err(&**why), None),
            Beside::Second(second) => (Ok(()), Some(second.clone())),
        };
        let ClientConfig { path_policy, path_backoff, random, .. } = connector.config();
        let (now, random) = (Instant::now(), random.clone());
        let rule = PathRule::new(now, *path_policy, available, *path_backoff, random);
        let second = second.filter(|_| rule.next() != Next::Never);
        let rule = Arc::new(Mutex::new(rule));
        let task = second.map(|second| {
            let upgrading = Upgrading {
                subchannel: Arc::downgrade(subchannel),
                connector: Arc::clone(connector),
                primary: Arc::downgrade(primary),
                rule: Arc::clone(&rule),
                second,
            };
            Task::spawn(subchannel.runtime(), upgrading.run())
        });
        Some(Self { rule, _task: task })
    }

    /// Why there is no second path.
    pub(super) fn why_not(&self) -> String {
        lock(&self.rule).why_not(Instant::now())
    }

    /// How often there was one.
    pub(super) fn switches(&self) -> u64 {
        lock(&self.rule).switches()
    }
}

struct Upgrading {
    subchannel: Weak<Subchannel>,
    connector: Arc<Connector>,
    primary: Weak<Link>,
    rule: Arc<Mutex<PathRule>>,
    second: Second,
}

impl Upgrading {
    /// One attempt after the other. Ends when the connection has.
    async fn run(self) {
        loop {
            let next = lock(&self.rule).next();
            match next {
                Next::AskAt(at) if at > Instant::now() => sleep_until(at).await,
                Next::AskAt(_) => {}
                // Each attempt below ends in one of the others.
                Next::Never | Next::Busy | Next::Up => return,
            }
            let Some(link) = self.attempt().await else { continue };
            let leaving = link.shared().leaving();
            let Some(subchannel) = self.subchannel.upgrade() else { return };
            let Some(primary) = self.primary.upgrade() else { return };
            info!(path = %link.info(), from = %primary.path(), "a second path: new calls go over it");
            // From here on the path is kept by who uses it.
            let second = Arc::downgrade(&link);
            if !subchannel.prefer(&primary, link) {
                return;
            }
            drop((subchannel, primary));
            let why = match leaving.wait().await {
                Some(cause) => cause.to_string(),
                None => "the server takes no more calls over it".to_owned(),
            };
            info!(why, "the second path is left: new calls go over the first");
            if let (Some(subchannel), Some(link)) = (self.subchannel.upgrade(), second.upgrade()) {
                subchannel.leave(&link);
            }
            let why = format!("the last one was lost: {why}");
            lock(&self.rule).handle_lost(Instant::now(), why);
        }
    }

    /// Asks for a path and connects it. `None` if that failed; then the rule knows why and when the next attempt is.
    async fn attempt(&self) -> Option<Arc<Link>> {
        lock(&self.rule).handle_ask();
        let offered = self.ask().await;
        let offer = match offered {
            Ok(offer) => offer,
            Err(refused) => {
                debug!(why = refused.message(), "no second path");
                let (outlook, why) = (outlook(&refused), refused.message().to_owned());
                lock(&self.rule).handle_refused(Instant::now(), outlook, why);
                return None;
            }
        };
        lock(&self.rule).handle_offer();
        let connected = match self.primary.upgrade() {
            Some(primary) => self.connector.connect_second(&self.second, &offer, primary).await,
            None => return None,
        };
        match connected {
            Ok(link) => {
                lock(&self.rule).handle_connected(Instant::now());
                Some(link)
            }
            Err(error) => {
                info!(%error, "a second path could not be connected");
                let why = format!("it could not be connected: {error}");
                lock(&self.rule).handle_failed(Instant::now(), why);
                None
            }
        }
    }

    /// Asks the server for a second path, over the first.
    async fn ask(&self) -> Result<OfferReply, Status> {
        let primary = self.primary.upgrade();
        let primary = primary.ok_or_else(|| Status::cancelled("the first path has ended"))?;
        let client = Client::new(Channel(Way::Link(primary)), &SERVICE);
        let transports = vec![self.second.scheme().to_owned()];
        let mut request = Request::new(OfferRequest { transports });
        request.set_timeout(OFFER_TIMEOUT);
        let reply: Response<OfferReply> = client.unary(0, request).await?;
        Ok(reply.into_inner())
    }
}

/// What a refusal says of the next one.
fn outlook(refused: &Status) -> Outlook {
    match refused.code() {
        // By servers before this, by those that listen for one path, and by what they take.
        Code::Unimplemented | Code::FailedPrecondition | Code::PermissionDenied => Outlook::Lasting,
        _ => {
            let details = refused.error_details().ok();
            let retry = details.as_ref().and_then(|details| details.retry_info());
            Outlook::Soon(retry.and_then(|retry| retry.delay()))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
