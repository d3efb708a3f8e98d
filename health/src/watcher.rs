//! A service as a client sees it, through lost connections.
//!
//! Owns the one call under way and the wait for the next attempt. Does not own a connection beyond its call: each attempt asks for
//! a channel anew.
//!
//! ```text
//!  Connect ──channel──► Ask ──replies begin──► Watch ──► a state, again and again
//!     ▲                  │                       │
//!     └──── Wait ◄───────┴───── lost (told once) ┘        Refused: the server has no health service
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::time::Sleep;
use verbwire::backoff::Backoff;
use verbwire::config::Random;
use verbwire::{Channel, Code, Error, Executed, Request, Status, Streaming, StreamingCall};

use crate::pb::health_check_response::ServingStatus as Told;
use crate::pb::health_client::HealthClient;
use crate::pb::{HealthCheckRequest, HealthCheckResponse};

/// Answers that are taken at a time, to say the latest: enough for any that had to wait, and an end to those that never do.
const AT_A_TIME: usize = 256;

/// What is known of a service.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum State {
    /// It serves.
    Serving,
    /// It does not serve, says its server.
    NotServing,
    /// Its server does not know, or says what this version has no word for.
    Unknown,
    /// Its server says nothing of it, so far.
    ServiceUnknown,
    /// There is no connection, or the watch over it has ended, for this reason. A next attempt follows by itself.
    Lost(Status),
}

impl State {
    /// Whether calls should go there.
    pub fn is_serving(&self) -> bool {
        matches!(self, Self::Serving)
    }

    fn of(response: &HealthCheckResponse) -> Self {
        match Told::try_from(response.status) {
            Ok(Told::Serving) => Self::Serving,
            Ok(Told::NotServing) => Self::NotServing,
            Ok(Told::ServiceUnknown) => Self::ServiceUnknown,
            Ok(Told::Unknown) | Err(_) => Self::Unknown,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serving => f.write_str("serving"),
            Self::NotServing => f.write_str("not serving"),
            Self::Unknown => f.write_str("unknown to its server"),
            Self::ServiceUnknown => f.write_str("not there"),
            Self::Lost(why) => write!(f, "lost: {why}"),
        }
    }
}

/// Watches one service of a server, over one connection after the other.
///
/// It is idle unless [`next`](Self::next) is awaited, and drops its call when it is dropped.
#[must_use = "it watches only while `next` is awaited"]
pub struct Watcher {
    service: String,
    connect: Box<dyn FnMut() -> Connecting + Send>,
    backoff: Backoff,
    stage: Stage,
    /// Whether the caller knows that there is no watch.
    is_lost: bool,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Channel, Error>> + Send>>;

enum Stage {
    Wait(Pin<Box<Sleep>>),
    /// Connecting begins at the next poll.
    Begin,
    Connect(Connecting),
    Ask(Box<StreamingCall<HealthCheckResponse>>),
    Watch(Streaming<HealthCheckResponse>),
    Refused(Status),
}

impl Watcher {
    /// Watches `service`, as `shop.Orders`, over the channels that `connect` gives; `""` is the whole server.
    ///
    /// `connect` is called for the first attempt, and for another whenever a watch has ended: at first after about a
    /// second, then less and less often, at most every two minutes or so.
    pub fn new<C, F>(service: impl Into<String>, mut connect: C) -> Self
    where
        C: FnMut() -> F + Send + 'static,
        F: Future<Output = Result<Channel, Error>> + Send + 'static,
    {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(120));
        Self {
            service: service.into(),
            connect: Box::new(move || Box::pin(connect())),
            backoff: Backoff::new(first, longest, Random::from_entropy()),
            stage: Stage::Begin,
            is_lost: false,
        }
    }

    /// Delays before the attempts after a loss: the first is `first`, each one more is three fifths longer, up to
    /// `longest`; an answer begins anew. Each is a fifth shorter or longer by chance. 1 s and 120 s, as gRPC has it.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = self.backoff.with_delays(first, longest);
        self
    }

    /// Where the chance in the delays comes from; a seeded generator repeats a run exactly.
    pub fn random(mut self, random: Random) -> Self {
        self.backoff = self.backoff.with_random(random);
        self
    }

    /// Waits for news of the service: at first for what is true now, then for each change. If there were several
    /// since the last call it is the latest. A loss is told once, however many attempts fail.
    ///
    /// A server that says nothing although its connection stands is not lost.
    ///
    /// # Errors
    ///
    /// `Unimplemented`: the server has no health service, and is not asked again. So says every later call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing; the attempt under way goes on with the next call.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers.
    pub async fn next(&mut self) -> Result<State, Status> {
        poll_fn(|cx| self.poll_state(cx)).await
    }

    pub(crate) fn poll_state(&mut self, cx: &mut Context<'_>) -> Poll<Result<State, Status>> {
        loop {
            let why = match &mut self.stage {
                Stage::Begin => {
                    self.stage = Stage::Connect((self.connect)());
                    continue;
                }
                Stage::Connect(connecting) => match ready!(connecting.as_mut().poll(cx)) {
                    Ok(channel) => {
                        self.stage = Stage::Ask(Box::new(ask(channel, &self.service)));
                        continue;
                    }
                    Err(error) => error.to_status(Executed::No),
                },
                Stage::Ask(call) => match ready!(Pin::new(&mut **call).poll(cx)) {
                    Ok(replies) => {
                        self.stage = Stage::Watch(replies.into_inner());
                        continue;
                    }
                    Err(status) => status,
                },
                Stage::Watch(replies) => match ready!(poll_latest(replies, cx)) {
                    Ok(state) => {
                        self.backoff.handle_success();
                        self.is_lost = false;
                        return Poll::Ready(Ok(state));
                    }
                    Err(status) => status,
                },
                Stage::Wait(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    self.stage = Stage::Begin;
                    continue;
                }
                Stage::Refused(status) => return Poll::Ready(Err(status.clone())),
            };
            if let Some(news) = self.handle_loss(why) {
                return Poll::Ready(Ok(news));
            }
        }
    }

    /// The attempt or the watch has ended; what to tell the caller of it.
    fn handle_loss(&mut self, why: Status) -> Option<State> {
        if why.code() == Code::Unimplemented {
            self.stage = Stage::Refused(why);
            return None;
        }
        let delay = self.backoff.handle_failure();
        self.stage = Stage::Wait(Box::pin(tokio::time::sleep(delay)));
        let was_lost = std::mem::replace(&mut self.is_lost, true);
        (!was_lost).then_some(State::Lost(why))
    }
}

/// A watch that lasts as long as its connection.
fn ask(channel: Channel, service: &str) -> StreamingCall<HealthCheckResponse> {
    let mut request = Request::new(HealthCheckRequest { service: service.to_owned() });
    request.set_timeout(Duration::MAX);
    HealthClient::new(channel).watch(request.detached())
}

/// The last of the answers that are there. An end comes before them: then they are true no longer.
fn poll_latest(
    replies: &mut Streaming<HealthCheckResponse>,
    cx: &mut Context<'_>,
) -> Poll<Result<State, Status>> {
    let mut latest = None;
    for _ in 0..AT_A_TIME {
        match Pin::new(&mut *replies).poll_next(cx) {
            Poll::Ready(Some(Ok(response))) => latest = Some(State::of(&response)),
            Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status)),
            Poll::Ready(None) => {
                return Poll::Ready(Err(Status::unavailable("the server has ended the watch")));
            }
            Poll::Pending => break,
        }
    }
    latest.map_or(Poll::Pending, |state| Poll::Ready(Ok(state)))
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("service", &self.service).finish_non_exhaustive()
    }
}
