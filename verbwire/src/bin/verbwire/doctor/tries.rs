//! Tries the paths to a target, step by step, each within a time limit.
//!
//! Owns which paths a target asks for and the steps' times; what they mean is in `rules`. Makes its connections with
//! `verbwire::Endpoint`, as programs do, and leaves them at once.

use std::fmt;
use std::future::Future;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use verbwire::open::{StreamInput, StreamOutput};
use verbwire::{Body, Channel, Code, Endpoint, ErrorKind, Origin, Request, Status, Target};

use super::rules::Build;
use super::trust::Trust;

/// How much it matters whether a path works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Demand {
    /// The target names it.
    Named,
    /// One of several that would do.
    Alternative,
}

/// A path to the target, and what came of it.
#[derive(Debug, Clone)]
pub(super) struct Try {
    pub(super) target: String,
    pub(super) demand: Demand,
    /// Why it is not tried at all.
    pub(super) skipped: Option<String>,
    /// The last one may have failed; nothing was tried behind it.
    pub(super) steps: Vec<Step>,
    /// Which way the connection went.
    pub(super) route: Option<String>,
    /// Whether this side could use RDMA beside TCP, as `auto://` does.
    pub(super) may_move: bool,
    /// What a path that works leaves to be wished for.
    pub(super) doubt: Option<Doubt>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The server's health service says that it does not serve.
    NotServing,
    /// `auto://` stays on TCP, with the library's words for why.
    StaysOnTcp(String),
}

#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) name: StepName,
    pub(super) took: Duration,
    pub(super) result: Result<String, Failure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepName {
    Name,
    Tcp,
    Hello,
    Call,
    /// Calls move from TCP to RDMA.
    Move,
}

#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) what: String,
    pub(super) kind: Option<ErrorKind>,
}

impl Try {
    pub(super) fn new(target: impl Into<String>, demand: Demand) -> Self {
        Self {
            target: target.into(),
            demand,
            skipped: None,
            steps: Vec::new(),
            route: None,
            may_move: false,
            doubt: None,
        }
    }

    pub(super) fn failure(&self) -> Option<(&Step, &Failure)> {
        self.steps.iter().find_map(|step| Some((step, step.result.as_ref().err()?)))
    }
}

/// The paths that `target` asks for: of `scheme://address` this one. `auto://` chooses among paths, and so does `host:port`, which
/// means it: those that they choose among are tried as well.
///
/// # Errors
///
/// Why `target` is none.
pub(super) fn plan(
    target: &str,
    build: Build,
    has_device: bool,
    trust: &Trust,
) -> Result<Vec<Try>, String> {
    let parsed: Target = target.parse().map_err(|error: verbwire::Error| error.to_string())?;
    let named = Try::new(parsed.to_string(), Demand::Named);
    if parsed.scheme() != "auto" {
        return Ok(vec![named]);
    }
    let skipped = match (build.has_rdma, has_device) {
        (false, _) => Some("this build has no feature rdma".to_owned()),
        (true, false) => Some("this machine has no RDMA device".to_owned()),
        (true, true) => None,
    };
    let beside = |scheme| Try::new(format!("{scheme}://{}", parsed.address()), Demand::Alternative);
    Ok(vec![
        beside(trust.first_scheme()),
        Try { may_move: skipped.is_none(), ..named },
        Try { skipped, ..beside("rdma") },
    ])
}

/// Tries the paths one after another, with `limit` for each step.
pub(super) async fn run_all(paths: &mut [Try], trust: &Trust, limit: Duration) {
    let mut has_moved = false;
    for path in paths.iter_mut().filter(|path| path.skipped.is_none()) {
        if has_moved && path.demand == Demand::Alternative {
            let why = "auto:// got there over RDMA, at the address that the server gave";
            path.skipped = Some(why.to_owned());
            continue;
        }
        run(path, trust, limit).await;
        has_moved |= path.steps.iter().any(|step| step.name == StepName::Move);
    }
}

/// Tries one path, with `limit` for each step.
async fn run(path: &mut Try, trust: &Trust, limit: Duration) {
    let Some((scheme, address)) = path.target.split_once("://") else { return };
    let (scheme, address) = (scheme.to_owned(), address.to_owned());
    if ["tcp", "tls", "rdma", "auto"].contains(&scheme.as_str()) {
        let found = blocking(limit, {
            let address = address.clone();
            move || look_up(&address)
        });
        let Some(addresses) =
            note(path, StepName::Name, limit, found, |found| in_words(found)).await
        else {
            return;
        };
        if ["tcp", "tls"].contains(&scheme.as_str()) {
            let reached = blocking(limit, move || reach(&addresses, limit));
            if note(path, StepName::Tcp, limit, reached, |_| String::new()).await.is_none() {
                return;
            }
        }
    }
    let target = path.target.clone();
    let hello = async {
        let endpoint = trust.give(&scheme, Endpoint::new(&target)?);
        endpoint.connect_timeout(limit).connect().await
    };
    let hello = async { hello.await.map_err(Failure::from) };
    let Some(channel) = note(path, StepName::Hello, limit, hello, |_| String::new()).await else {
        return;
    };
    path.route = channel.path().map(|route| route.to_string());
    let asked = ask(&channel, limit);
    let health = note(path, StepName::Call, limit, asked, Health::to_string).await;
    if health == Some(Health::NotServing) {
        path.doubt = Some(Doubt::NotServing);
    }
    if path.may_move && path.failure().is_none() {
        note_move(path, &channel, limit).await;
    }
}

/// Waits until the channel has moved to RDMA. That it does not is no failure: calls go on over TCP.
async fn note_move(path: &mut Try, channel: &Channel, limit: Duration) {
    let started = Instant::now();
    loop {
        let paths = channel.paths();
        if let Some(paths) = paths.as_ref().filter(|paths| paths.second.is_some()) {
            path.route = Some(paths.to_string());
            let took = started.elapsed();
            path.steps.push(Step { name: StepName::Move, took, result: Ok(String::new()) });
            return;
        }
        if started.elapsed() >= limit {
            let why = paths.map_or("the connection ended".to_owned(), |paths| paths.why_not);
            path.doubt.get_or_insert(Doubt::StaysOnTcp(why));
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs a step, at most a second longer than `limit`: a step that ends by its own limit says more.
async fn note<T>(
    path: &mut Try,
    name: StepName,
    limit: Duration,
    work: impl Future<Output = Result<T, Failure>>,
    words: impl FnOnce(&T) -> String,
) -> Option<T> {
    let started = Instant::now();
    let outer = limit + Duration::from_secs(1);
    let done = tokio::time::timeout(outer, work).await.unwrap_or_else(|_elapsed| {
        let what = format!("it did not end within {} s", outer.as_secs());
        Err(Failure { what, kind: Some(ErrorKind::TimedOut) })
    });
    let took = started.elapsed();
    let (result, value) = match done {
        Ok(value) => (Ok(words(&value)), Some(value)),
        Err(failure) => (Err(failure), None),
    };
    path.steps.push(Step { name, took, result });
    value
}

/// A call that may block, on a thread of its own. It cannot be stopped: what it does later is lost.
async fn blocking<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(done)) => done,
        Ok(Err(panicked)) => Err(Failure { what: panicked.to_string(), kind: None }),
        Err(_elapsed) => {
            let what = format!("no answer within {} s", limit.as_secs());
            Err(Failure { what, kind: Some(ErrorKind::TimedOut) })
        }
    }
}

fn look_up(address: &str) -> Result<Vec<SocketAddr>, Failure> {
    let failure = |what: String| Failure { what, kind: Some(ErrorKind::Unreachable) };
    let found: Vec<SocketAddr> =
        address.to_socket_addrs().map_err(|error| failure(error.to_string()))?.collect();
    if found.is_empty() { Err(failure("the name has no address".to_owned())) } else { Ok(found) }
}

fn in_words(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
    addresses.join(", ")
}

/// Connects and closes: what is measured is the network and whether somebody listens.
fn reach(addresses: &[SocketAddr], limit: Duration) -> Result<(), Failure> {
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(address, limit) {
            Ok(_) => return Ok(()),
            Err(error) => last = Some((address, error)),
        }
    }
    let Some((address, error)) = last else { return Ok(()) };
    let kind = match error.kind() {
        std::io::ErrorKind::TimedOut => ErrorKind::TimedOut,
        _ => ErrorKind::Unreachable,
    };
    Err(Failure { what: format!("{address}: {error}"), kind: Some(kind) })
}

/// What the server's standard health service says of the whole server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Serving,
    NotServing,
    /// The server has no such service, or keeps it from strangers. To say so took a call.
    Answered(Code),
}

/// Asks as `grpc.health.v1` has it: a request without a service's name is empty.
async fn ask(channel: &Channel, limit: Duration) -> Result<Health, Failure> {
    let mut request = Request::new(StreamInput::Whole(Body::default()));
    request.set_timeout(limit);
    match channel.call("/grpc.health.v1.Health/Check", request).await {
        Ok(reply) => match reply.into_inner() {
            // Field 1, a varint; 1 is SERVING.
            StreamOutput::Whole(body) if body.clone().into_bytes()[..] == [0x08, 1] => {
                Ok(Health::Serving)
            }
            _ => Ok(Health::NotServing),
        },
        Err(status) if is_answer(&status) => Ok(Health::Answered(status.code())),
        Err(status) => {
            let what = format!("a call ended with {:?}: {}", status.code(), status.message());
            Err(Failure { what, kind: None })
        }
    }
}

/// Whether the server itself said so, and not because it is in trouble.
fn is_answer(status: &Status) -> bool {
    let is_calm = matches!(
        status.code(),
        Code::Unimplemented | Code::NotFound | Code::Unauthenticated | Code::PermissionDenied
    );
    is_calm && status.origin() == Origin::Peer
}

impl From<verbwire::Error> for Failure {
    fn from(error: verbwire::Error) -> Self {
        Self { what: error.to_string(), kind: Some(error.kind()) }
    }
}

impl fmt::Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "name",
            Self::Tcp => "TCP connect",
            Self::Hello => "connect and HELLO",
            Self::Call => "call",
            Self::Move => "move to RDMA",
        })
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serving => f.write_str("health: serving"),
            Self::NotServing => f.write_str("health: not serving"),
            Self::Answered(code) => write!(f, "health: answered {code:?}"),
        }
    }
}
