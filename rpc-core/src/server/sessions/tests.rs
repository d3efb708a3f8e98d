use std::future::poll_fn;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use super::*;
use crate::buf::Body;
use crate::interceptor::{self, Intercepted, Interceptor, Next, Payload};
use crate::message::{SessionId, SlotUse};
use crate::request::{Origin, Received};
use crate::server::limited::Limited;
use crate::service::MethodDescriptor;
use crate::status::Code;

const HOUR: Duration = Duration::from_secs(3600);

static DESCRIPTOR: ServiceDescriptor =
    ServiceDescriptor::new("a.A", &[MethodDescriptor::new("A", "/a.A/A")]);

/// A service of one method, whose handlers end when they are dropped.
#[derive(Default)]
struct Hangs {
    entered: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

struct CountsDrop(Arc<AtomicUsize>);

impl Drop for CountsDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Service for Hangs {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &DESCRIPTOR
    }

    fn call(&self, _: usize, _: Request<Body>) -> HandlerFuture {
        self.entered.fetch_add(1, Ordering::SeqCst);
        let counts = CountsDrop(Arc::clone(&self.dropped));
        Box::pin(async move {
            let _counts = counts;
            std::future::pending().await
        })
    }
}

/// The sessions of a server that runs, and a session.
struct Server {
    sessions: Sessions,
    session: SessionId,
    running: watch::Sender<()>,
}

impl Server {
    fn new(limits: SessionLimits) -> Self {
        let sessions = Sessions::new(limits);
        let opened = sessions.table().open(Instant::now(), None, || Ok(7)).expect("room");
        Self { sessions, session: opened.session, running: watch::Sender::new(()) }
    }

    fn once(&self, service: impl Service) -> Once {
        Once::new(Arc::new(service), self.sessions.clone(), None, self.running.subscribe())
    }

    /// A call of `len` bytes with an hour's deadline.
    fn call(&self, service: &dyn Service, slot: u32, sequence: u64, len: usize) -> HandlerFuture {
        self.call_at(service, None, (slot, sequence), len)
    }

    /// The same where the service answers for this path, besides others.
    fn call_at(
        &self,
        service: &dyn Service,
        path: Option<&str>,
        (slot, sequence): (u32, u64),
        len: usize,
    ) -> HandlerFuture {
        let received = Received { deadline: Instant::now() + HOUR, origin: Origin::InProcess };
        let mut request =
            Request::received(Body::from(bytes::Bytes::from(vec![0; len])), received, None);
        request.set_called_path(path.map(Arc::from));
        request.set_slot(SlotUse { session: self.session, slot, sequence });
        service.call(0, request)
    }
}

/// Polls a call for a while; it does not end.
async fn waits(call: &mut HandlerFuture, time: Duration) {
    let ended = tokio::time::timeout(time, call).await;
    assert!(ended.is_err(), "{ended:?}");
}

fn refused(outcome: &Outcome) -> (Code, Executed, &str) {
    let status = outcome.as_ref().expect_err("refused");
    (status.code(), status.executed(), status.message())
}

#[test]
fn names_are_not_those_of_a_generator_that_can_be_followed() {
    let first_name = || {
        // Whoever knows this generator's state knows what it draws next.
        fastrand::seed(7);
        let sessions = Sessions::default();
        sessions.draw_name().expect("the system has random numbers")
    };
    assert_ne!(first_name(), first_name());
    let seeded = || {
        let sessions = Sessions::with_random(SessionLimits::default(), Random::from_seed(7));
        sessions.draw_name().expect("it needs no system")
    };
    assert_eq!(seeded(), seeded());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_waits_for_is_stopped_after_a_while() {
    let server = Server::new(SessionLimits::default());
    let hangs = Hangs::default();
    let dropped = Arc::clone(&hangs.dropped);
    let once = server.once(hangs);
    let limit = SessionLimits::default().max_unattended;
    let (almost, rest) = (limit - Duration::from_secs(1), Duration::from_secs(2));
    // Someone waits.
    let mut first = server.call(&once, 0, 1, 0);
    waits(&mut first, limit * 3).await;
    drop(first);
    tokio::time::sleep(almost).await;
    // Who comes and goes begins the time anew, although the call's task sees nothing of it.
    let mut second = server.call(&once, 0, 1, 0);
    let polled = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await;
    assert!(polled);
    drop(second);
    tokio::time::sleep(almost).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    tokio::time::sleep(rest).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    let outcome = server.call(&once, 0, 1, 0).await;
    let (code, executed, message) = refused(&outcome);
    assert_eq!((code, executed), (Code::Aborted, Executed::Maybe));
    assert!(message.contains("max_unattended of 60s"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn what_runs_in_all_sessions_is_bounded_though_nobody_waits_for_it() {
    let limits =
        SessionLimits { max_running_calls: 2, max_running_bytes: 100, ..Default::default() };
    let server = Server::new(limits);
    let once = server.once(Hangs::default());
    let short = Duration::from_millis(1);
    waits(&mut server.call(&once, 0, 1, 60), short).await;
    let outcome = server.call(&once, 1, 1, 60).await;
    let (code, executed, message) = refused(&outcome);
    assert_eq!((code, executed), (Code::ResourceExhausted, Executed::No));
    assert!(message.contains("max_running_bytes of 100"), "{message}");
    waits(&mut server.call(&once, 1, 1, 40), short).await;
    let outcome = server.call(&once, 2, 1, 0).await;
    let message = refused(&outcome).2;
    assert!(message.contains("max_running_calls of 2"), "{message}");
    // A repeat is no other call.
    waits(&mut server.call(&once, 0, 1, 60), short).await;
    tokio::time::sleep(SessionLimits::default().max_unattended * 2).await;
    waits(&mut server.call(&once, 2, 1, 100), short).await;
}

#[tokio::test(start_paused = true)]
async fn a_repeat_of_another_method_is_refused_where_a_fallback_answers_for_both() {
    let server = Server::new(SessionLimits::default());
    let once = server.once(Hangs::default());
    let at = |path| server.call_at(&once, Some(path), (0, 1), 0);
    waits(&mut at("/b.B/B"), Duration::from_millis(1)).await;
    let outcome = at("/c.C/C").await;
    let (code, _, message) = refused(&outcome);
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.contains("as /c.C/C"), "{message}");
    waits(&mut at("/b.B/B"), Duration::from_millis(1)).await;
}

/// Its first call blocks its thread, and goes on to hang; the others return.
struct Blocks {
    entered: Arc<Mutex<Vec<u64>>>,
    blocked: Arc<Barrier>,
}

impl Service for Blocks {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &DESCRIPTOR
    }

    fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
        let sequence = request.slot().expect("it has one").sequence;
        self.entered.lock().expect("nobody panics").push(sequence);
        let blocked = Arc::clone(&self.blocked);
        Box::pin(async move {
            if sequence == 1 {
                blocked.wait();
                std::future::pending::<()>().await;
            }
            Ok(Response::new(Body::default()))
        })
    }
}

#[test]
fn a_newer_call_is_not_entered_before_the_older_one_has_stopped() {
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let server = Server::new(SessionLimits::default());
    let (entered, blocked) = (Arc::<Mutex<Vec<u64>>>::default(), Arc::new(Barrier::new(2)));
    let service = Blocks { entered: Arc::clone(&entered), blocked: Arc::clone(&blocked) };
    let once = server.once(service);
    let entered = || entered.lock().expect("nobody panics").clone();
    let first = server.call(&once, 0, 1, 0);
    let other = std::thread::spawn(move || runtime().block_on(first));
    while entered().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    runtime().block_on(async {
        let (mut second, mut third) = (server.call(&once, 0, 2, 0), server.call(&once, 0, 3, 0));
        for newer in [&mut second, &mut third] {
            waits(newer, Duration::from_millis(50)).await;
        }
        assert_eq!(entered(), [1]);
        blocked.wait();
        third.await.expect("it ran");
        assert_eq!(entered(), [1, 3]);
        assert_eq!(refused(&second.await).0, Code::Aborted);
    });
    assert_eq!(refused(&other.join().expect("no panic")).0, Code::Aborted);
}

#[tokio::test(start_paused = true)]
async fn a_full_server_does_not_say_of_a_call_that_may_run_that_it_did_not() {
    let server = Server::new(SessionLimits::default());
    let hangs = Hangs::default();
    let entered = Arc::clone(&hangs.entered);
    let limits = LoadLimits::new().max_running_calls(1);
    let gate = Arc::new(Gate::new(&limits, "the server"));
    let (sessions, running) = (server.sessions.clone(), server.running.subscribe());
    let once = Once::new(Arc::new(hangs), sessions.clone(), Some(Arc::clone(&gate)), running);
    // A repeat that has lost its way past the gate finds out behind it.
    let lost = once.clone();
    let limited = Limited::behind(Arc::new(once), gate, Some(sessions));
    let attempt = |slot| {
        let received = Received { deadline: Instant::now() + HOUR, origin: Origin::InProcess };
        let mut request = Request::received(Body::default(), received, None);
        if let Some(slot) = slot {
            request.set_slot(SlotUse { session: server.session, slot, sequence: 1 });
        }
        limited.call(0, request)
    };
    let short = Duration::from_millis(1);
    waits(&mut attempt(Some(0)), short).await;
    let late = server.call(&lost, 1, 1, 0);
    for (refusal, expected) in [
        (attempt(Some(1)), Executed::Maybe),
        (attempt(None), Executed::No),
        (late, Executed::Maybe),
    ] {
        let outcome = refusal.await;
        let (code, executed, message) = refused(&outcome);
        assert_eq!((code, executed), (Code::ResourceExhausted, expected), "{message}");
        assert!(message.contains("the server runs max_running_calls of 1"), "{message}");
    }
    waits(&mut attempt(Some(0)), short).await;
    assert_eq!(entered.load(Ordering::SeqCst), 1);
    // The call behind the gate counts, also one that came without a place.
    tokio::time::sleep(SessionLimits::default().max_unattended * 2).await;
    waits(&mut server.call(&lost, 1, 1, 0), short).await;
    assert_eq!(refused(&attempt(None).await).0, Code::ResourceExhausted);
}

/// Keeps the request that came, and runs a copy.
struct RunsACopy;

impl Interceptor for RunsACopy {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> interceptor::Outcome {
        next.run(request.copy().expect("one message")).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_goes_on_counts_for_the_servers_bound_though_an_interceptor_ran_a_copy() {
    let server = Server::new(SessionLimits::default());
    let limits = LoadLimits::new().max_running_calls(1);
    let service = Limited::new(Intercepted::new(server.once(Hangs::default()), RunsACopy), &limits);
    let short = Duration::from_millis(1);
    waits(&mut server.call(&service, 0, 1, 0), short).await;
    let outcome = server.call(&service, 1, 1, 0).await;
    let message = refused(&outcome).2;
    assert!(message.contains("max_running_calls of 1"), "{message}");
    // Until it is stopped.
    tokio::time::sleep(SessionLimits::default().max_unattended * 2).await;
    waits(&mut server.call(&service, 1, 1, 0), short).await;
}
