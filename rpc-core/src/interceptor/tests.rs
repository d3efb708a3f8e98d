//! Interceptors that do more with a call than run it once and wait.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{Intercepted, Interceptor, Next, Outcome, Payload, Side};
use crate::buf::Body;
use crate::client::{Channel, Client};
use crate::codec::{Codec, Prost};
use crate::metadata::MetadataMap;
use crate::request::{Request, Response};
use crate::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, StreamHandlerFuture, StreamInput,
    StreamOutput,
};
use crate::status::{Code, Executed, Status};
use crate::streaming::Messages;

const HANG: usize = 0;
const LIST: usize = 1;
const COLLECT: usize = 2;

static DESK: ServiceDescriptor = ServiceDescriptor::new(
    "desk.Desk",
    &[
        MethodDescriptor::new("Hang", "/desk.Desk/Hang"),
        MethodDescriptor::new("List", "/desk.Desk/List").server_streaming(),
        MethodDescriptor::new("Collect", "/desk.Desk/Collect").client_streaming(),
    ],
);

/// Counts the handlers that were entered.
#[derive(Default)]
struct Desk(Arc<AtomicUsize>);

impl Service for Desk {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &DESK
    }

    /// Never ends.
    fn call(&self, _: usize, _: Request<Body>) -> HandlerFuture {
        let entered = Arc::clone(&self.0);
        Box::pin(async move {
            entered.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        })
    }

    /// Gives one reply, and then fails if it is asked to. It says how it ends at the beginning.
    fn call_streaming(&self, _: usize, request: Request<StreamInput>) -> StreamHandlerFuture {
        let entered = Arc::clone(&self.0);
        let fails = matches!(request.get_ref(), StreamInput::Whole(body) if !body.is_empty());
        Box::pin(async move {
            entered.fetch_add(1, Ordering::SeqCst);
            let end = fails.then(|| Err(Status::data_loss("told to").with_executed(Executed::Yes)));
            let items = [Ok(Prost.encode(&"one".to_owned()))].into_iter().chain(end).collect();
            let mut response = Response::new(StreamOutput::Stream(Box::new(Items(items))));
            response.trailers_mut().insert("secret", "s".parse()?)?;
            Ok(response)
        })
    }
}

struct Items(VecDeque<Result<Body, Status>>);

impl Messages for Items {
    fn poll_message(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        Poll::Ready(self.0.pop_front())
    }

    fn take_trailers(&mut self) -> MetadataMap {
        MetadataMap::new()
    }
}

/// Where an interceptor stands.
const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// A client of a desk behind an interceptor, and the count of its handlers.
fn desk(side: Side, interceptor: impl Interceptor) -> (Client, Arc<AtomicUsize>) {
    let desk = Desk::default();
    let entered = Arc::clone(&desk.0);
    let channel = match side {
        Side::Client => Channel::in_process(desk).intercepted(interceptor),
        Side::Server => Channel::in_process(Intercepted::new(desk, interceptor)),
    };
    (Client::new(channel, &DESK), entered)
}

async fn hang(client: &Client) -> Status {
    let call = client.unary::<String, String>(HANG, Request::new(String::new()));
    call.await.expect_err("the handler never ends")
}

/// Leaves calls to a task, and fails them after so many turns of the runtime.
struct Detaches(usize);

impl Interceptor for Detaches {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        tokio::spawn(next.run(request));
        for _ in 0..self.0 {
            yield_now().await;
        }
        Err(Status::aborted("left to a task"))
    }
}

#[tokio::test]
async fn a_call_whose_run_goes_on_has_perhaps_been_executed() {
    for side in SIDES {
        let (client, entered) = desk(side, Detaches(1));
        let status = hang(&client).await;
        let found = (status.code(), status.executed());
        assert_eq!(found, (Code::Aborted, Executed::Maybe), "{status}");
        assert_eq!(entered.load(Ordering::SeqCst), 1, "{side:?}");
    }
}

#[tokio::test]
async fn a_call_that_was_said_not_to_have_run_does_not_run_later() {
    for side in SIDES {
        let (client, entered) = desk(side, Detaches(0));
        let status = hang(&client).await;
        let found = (status.code(), status.executed());
        assert_eq!(found, (Code::Aborted, Executed::No), "{status}");
        for _ in 0..10 {
            yield_now().await;
        }
        assert_eq!(entered.load(Ordering::SeqCst), 0, "{side:?}");
    }
}

/// Runs calls again that fail, whatever was said of them; in the end they fail as they did at first.
struct Stubborn;

impl Interceptor for Stubborn {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let again = request.copy().expect("one message");
        assert!(next.can_run());
        let first = next.clone().run(request).await;
        assert!(!next.can_run(), "replies have begun");
        let status = next.run(again).await.expect_err("it cannot run again");
        assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Yes), "{status}");
        first
    }
}

#[tokio::test]
async fn a_stream_that_has_begun_is_not_run_again_and_keeps_its_status() {
    for side in SIDES {
        let (client, entered) = desk(side, Stubborn);
        let request = Request::new("fail".to_owned());
        let call = client.server_streaming::<String, String>(LIST, request);
        let mut replies = call.await.expect("it begins").into_inner();
        assert_eq!(replies.message().await.expect("no error").as_deref(), Some("one"));
        let status = replies.message().await.expect_err("told to fail");
        let found = (status.code(), status.executed());
        assert_eq!(found, (Code::DataLoss, Executed::Yes), "{status}");
        assert_eq!(entered.load(Ordering::SeqCst), 1, "{side:?}");
    }
}

/// Removes what callers shall not see from the end of calls.
struct Censor;

impl Interceptor for Censor {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        match next.run(request).await {
            Ok(mut response) => {
                assert_eq!(response.trailers().get("secret").expect("seen"), "s");
                *response.trailers_mut() = MetadataMap::new();
                Ok(response)
            }
            Err(status) => {
                assert_eq!(status.metadata().get("secret").expect("seen"), "s");
                Err(status.with_metadata(MetadataMap::new()))
            }
        }
    }
}

#[tokio::test]
async fn an_interceptor_sees_the_trailers_of_a_stream_and_can_remove_them() {
    for side in SIDES {
        let (client, _) = desk(side, Censor);
        let list = |text: &str| {
            client.server_streaming::<String, String>(LIST, Request::new(text.to_owned()))
        };
        let mut replies = list("").await.expect("it begins").into_inner();
        let trailers = replies.trailers().await.expect("no error");
        assert!(trailers.is_none_or(|trailers| trailers.is_empty()), "{side:?}");
        let mut replies = list("fail").await.expect("it begins").into_inner();
        replies.message().await.expect("the first");
        let status = replies.message().await.expect_err("told to fail");
        assert_eq!(
            (status.code(), status.metadata().is_empty()),
            (Code::DataLoss, true),
            "{side:?}"
        );
    }
}

/// Runs calls twice at the same time, each in a task, and waits for both.
struct Twice;

impl Interceptor for Twice {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let copy = request.copy().expect("one message");
        let first = tokio::spawn(next.clone().run(copy));
        let second = tokio::spawn(next.run(request));
        first.await.expect("no panic").expect_err("cancelled");
        second.await.expect("no panic")
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_all_calls_behind_an_interceptor() {
    let (client, entered) = desk(Side::Client, Twice);
    let mut call = client.unary::<String, String>(HANG, Request::new(String::new()));
    let handle = call.cancel_handle();
    let call = tokio::spawn(call);
    while entered.load(Ordering::SeqCst) < 2 {
        yield_now().await;
    }
    handle.cancel();
    let ended = timeout(Duration::from_secs(1), call).await.expect("both end at once");
    let status = ended.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Yes), "{status}");
}

/// Puts a stream in the place of a message, and a message in that of a stream.
struct Misplaces;

impl Interceptor for Misplaces {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let misplaced = |payload: Payload| match payload.is_stream() {
            true => Payload::from(Body::new()),
            false => Payload::from(StreamInput::Stream(Box::new(Items(VecDeque::new())))),
        };
        next.run(request.map(misplaced)).await
    }
}

/// A stream of no requests.
struct Nothing;

impl Stream for Nothing {
    type Item = String;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<String>> {
        Poll::Ready(None)
    }
}

#[tokio::test]
async fn a_payload_of_another_form_than_the_methods_is_refused() {
    for side in SIDES {
        let (client, entered) = desk(side, Misplaces);
        let list = client.server_streaming::<String, String>(LIST, Request::new(String::new()));
        let collect = client.client_streaming::<String, String, _>(COLLECT, Request::new(Nothing));
        let mut failed = vec![collect.await.expect_err("a message is no stream")];
        match list.await {
            Ok(replies) => failed.extend(replies.into_inner().message().await.err()),
            Err(status) => failed.push(status),
        }
        assert_eq!(failed.len(), 2, "{side:?}");
        for status in failed {
            let found = (status.code(), status.executed());
            assert_eq!(found, (Code::Internal, Executed::No), "{status}");
            assert!(status.message().contains("interceptor"), "{side:?}: {status}");
        }
        assert_eq!(entered.load(Ordering::SeqCst), 0, "{side:?}");
    }
}
