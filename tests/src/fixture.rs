//! Servers and clients of one case.

use std::fmt::Debug;
use std::future::{Future, pending, poll_fn};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use verbwire::open::OpenService;
use verbwire::{Bound, Channel, Code, Endpoint, Error, Server, Status};

use crate::backends::{self, Backend, Place};
use crate::bridge;
use crate::pki;
use crate::proto::conformance::conformance_client::ConformanceClient;
use crate::proto::conformance::conformance_server::ConformanceServer;
use crate::proto::conformance::second_server::SecondServer;
use crate::proxy::Proxy;
use crate::service::{Desk, Witness};

/// Longer than anything that a case waits for takes on a loaded machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Short enough to wait for its end, and longer than a call takes; the device lab, which emulates each instruction of both
/// ends, gets more.
pub fn short() -> Duration {
    if backends::is_in_lab() { Duration::from_secs(1) } else { Duration::from_millis(150) }
}

/// Has `attempt` set its timers to [`short`], and to longer ones where the machine was too late for what comes before they end:
/// the attempt then ends with an error. What is not right however long the timers are fails the case.
///
/// # Panics
///
/// If the last attempt, with seconds, was too late as well.
pub async fn in_time(attempt: impl AsyncFn(Duration) -> Result<(), Late>) {
    for (time, is_last) in [(short(), false), (LONG / 16, false), (LONG / 4, true)] {
        let Err(Late(what)) = attempt(time).await else { return };
        assert!(!is_last, "{what} within {time:?}");
    }
}

/// What a call has brought, unless its deadline came first.
///
/// # Errors
///
/// It did, see [`in_time`].
///
/// # Panics
///
/// If it failed for another reason.
pub fn on_time<T>(called: Result<T, Status>) -> Result<T, Late> {
    match called {
        Err(status) if status.code() == Code::DeadlineExceeded => Err(Late("nothing came")),
        called => Ok(called.expect("all went well")),
    }
}

/// What was not yet done when a timer ended, see [`in_time`].
#[derive(Debug, Clone, Copy)]
pub struct Late(pub &'static str);

/// As many as that; a fifth of them in the device lab, for the same reason.
pub fn many(count: u64) -> u64 {
    if backends::is_in_lab() { count / 5 } else { count }
}

/// The transport that a case runs over, and a folder of its own.
#[derive(Debug)]
pub struct Fixture {
    backend: &'static Backend,
    folder: PathBuf,
    route: Route,
}

/// What is between a case's client and its server.
#[derive(Debug, Clone, Copy)]
enum Route {
    Direct,
    /// A [`Proxy`].
    Proxied,
    /// The server's services are tonic's.
    Bridged,
}

/// Where a server is going to be, and what is before it.
#[derive(Debug)]
pub struct Site {
    target: String,
    /// Of the proxy before it.
    proxy: Option<String>,
}

/// A client and what its server's handlers did.
#[derive(Debug)]
pub struct Pair {
    /// Connected to the server.
    pub client: ConformanceClient,
    /// Of the server's handlers.
    pub witness: Arc<Witness>,
}

/// A server that serves in a task of the runtime that started it.
#[derive(Debug)]
pub struct Serving {
    target: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Fixture {
    /// A fixture with a fresh folder.
    ///
    /// # Panics
    ///
    /// If the system's folder for temporary files cannot be written to.
    pub fn new(backend: &'static Backend) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbwire-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written to");
        Self { backend, folder, route: Route::Direct }
    }

    /// The transport.
    pub fn backend(&self) -> &'static Backend {
        self.backend
    }

    /// A target that nobody listens at, for a server to bind.
    pub fn target(&self) -> String {
        self.backend.place.target(&self.folder)
    }

    /// The same with a proxy before every server that [`serve`](Self::serve) starts, or [`pair`](Self::pair).
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.route = Route::Proxied;
        self
    }

    /// The same with services that tonic generated in the place of the native ones, see [`bridge`].
    #[must_use]
    pub fn bridged(mut self) -> Self {
        self.route = Route::Bridged;
        self
    }

    /// Whether services are tonic's.
    pub fn is_bridged(&self) -> bool {
        matches!(self.route, Route::Bridged)
    }

    /// A server that offers the services of `desk`.
    pub fn offering(&self, desk: &Desk) -> verbwire::Builder {
        match self.route {
            Route::Direct | Route::Proxied => offering(desk),
            Route::Bridged => Server::builder().add_service(bridge::conformance(desk)),
        }
    }

    /// A place for a server.
    pub fn site(&self) -> Site {
        let proxy = match self.route {
            Route::Direct | Route::Bridged => None,
            Route::Proxied => Some(self.target()),
        };
        Site { target: self.target(), proxy }
    }

    /// A server; where there is a proxy, that.
    pub async fn serve(&self, builder: verbwire::Builder) -> Serving {
        self.site().serve(builder).await
    }

    /// A channel to a service in this process; where there is a proxy, through that.
    pub fn in_process(&self, name: &'static str, channel: Channel) -> Channel {
        match self.route {
            Route::Direct | Route::Bridged => channel,
            Route::Proxied => Channel::in_process(OpenService::new(name, Proxy(channel))),
        }
    }

    /// A client of a server with default settings, or of a service in the same process.
    pub async fn pair(&self) -> Pair {
        if self.backend.place != Place::InProcess {
            return self.pair_with(|builder| builder).await.0;
        }
        let desk = Desk::default();
        let witness = Arc::clone(desk.witness());
        let channel = match self.route {
            Route::Bridged => Channel::in_process(bridge::conformance(&desk)),
            _ => ConformanceClient::in_process(desk).channel().clone(),
        };
        let channel = self.in_process("conformance.Conformance", channel);
        Pair { witness, client: ConformanceClient::new(channel) }
    }

    /// A client of a server with these settings.
    pub async fn pair_with(
        &self,
        configure: impl FnOnce(verbwire::Builder) -> verbwire::Builder,
    ) -> (Pair, Serving) {
        let desk = Desk::default();
        let witness = Arc::clone(desk.witness());
        let serving = self.serve(configure(self.offering(&desk))).await;
        let client = serving.client().await;
        (Pair { client, witness }, serving)
    }
}

impl Site {
    /// A server here; where there is a proxy, that. The server then serves until the runtime ends.
    pub async fn serve(self, builder: verbwire::Builder) -> Serving {
        let serving = Serving::start(builder, &self.target).await;
        match self.proxy {
            None => serving,
            Some(target) => {
                let behind = serving.connect().await;
                Serving::start(Server::builder().fallback(Proxy(behind)), &target).await
            }
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // What is left of it does no harm and goes with the system's other temporary files.
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}

/// A server that offers both services of `desk`.
pub fn offering(desk: &Desk) -> verbwire::Builder {
    Server::builder()
        .add_service(ConformanceServer::new(desk.clone()))
        .add_service(SecondServer::new(desk.clone()))
}

impl Serving {
    /// Binds `builder` at `target` and serves.
    ///
    /// # Panics
    ///
    /// If it cannot be bound.
    pub async fn start(builder: verbwire::Builder, target: &str) -> Self {
        let bound = pki::trusting(builder, &[target]).bind(&[target]).await;
        Self::of(bound.expect("a fresh target can be bound"))
    }

    /// The same where another has just stopped to serve: what it had under way may keep the target for a moment.
    ///
    /// # Panics
    ///
    /// If it cannot be bound for a long time.
    pub async fn restart(builder: impl Fn() -> verbwire::Builder, target: &str) -> Self {
        let begun = Instant::now();
        loop {
            match pki::trusting(builder(), &[target]).bind(&[target]).await {
                Ok(bound) => return Self::of(bound),
                Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn of(bound: Bound) -> Self {
        let target = bound.local_targets()[0].to_string();
        let (stop, stopped) = oneshot::channel();
        let signal = async {
            if stopped.await.is_err() {
                pending::<()>().await;
            }
        };
        let task = tokio::spawn(bound.serve_with_shutdown(signal));
        Self { target, stop, task }
    }

    /// Where it listens, ports filled in.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// An endpoint of it, to be configured.
    pub fn endpoint(&self) -> Endpoint {
        endpoint(&self.target)
    }

    /// A channel to it.
    pub async fn connect(&self) -> Channel {
        connect(&self.endpoint()).await
    }

    /// A client of it.
    pub async fn client(&self) -> ConformanceClient {
        ConformanceClient::new(self.connect().await)
    }

    /// Asks it to shut down; what its `serve_with_shutdown` returns.
    pub fn shut_down(self) -> JoinHandle<Result<(), Error>> {
        // An error says that it has ended already, which its task reports.
        let _told = self.stop.send(());
        self.task
    }

    /// Drops its `serve_with_shutdown` future.
    pub async fn drop_serving(self) {
        self.task.abort();
        let ended = self.task.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()));
    }
}

/// Polls `call` once, so that its request is sent or waits for its turn; the rest runs in a task.
///
/// # Panics
///
/// If it is ready at once.
pub async fn begin<C>(mut call: C) -> JoinHandle<C::Output>
where
    C: Future + Send + Unpin + 'static,
    C::Output: Debug + Send + 'static,
{
    let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await;
    assert!(polled.is_pending(), "a call that was to wait has ended at once: {polled:?}");
    tokio::spawn(call)
}

/// An endpoint of `target`.
///
/// # Panics
///
/// If `target` is not well-formed.
pub fn endpoint(target: &str) -> Endpoint {
    let endpoint = Endpoint::new(target).expect("the suite's targets are well-formed");
    pki::trusted(endpoint, target).connect_timeout(LONG)
}

/// A channel to `endpoint`, at which a server listens.
///
/// # Panics
///
/// If it cannot connect.
pub async fn connect(endpoint: &Endpoint) -> Channel {
    endpoint.connect().await.expect("a server listens there")
}
