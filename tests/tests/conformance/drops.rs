//! What users hand over panics as it is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::Instant;
use verbwire::codegen::Stream;
use verbwire::{Code, Request, Response, Status, Streaming};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, connect};
use verbwire_tests::proto::conformance::Blob;
use verbwire_tests::proto::conformance::second_client::SecondClient;
use verbwire_tests::proto::conformance::second_server::{Second, SecondServer};
use verbwire_tests::runner::ON_PURPOSE;
use verbwire_tests::streams::items;

use crate::interceptors::channel;

pub(crate) const CASES: &[Case] = &[
    case!(replies_that_panic_as_they_are_dropped_fail_their_call),
    case!(requests_that_panic_as_they_are_dropped_fail_their_call),
    case!(a_handler_that_panics_as_it_is_dropped_fails_its_call),
    case!(a_reply_that_is_too_long_and_panics_as_it_is_dropped_fails_its_call).over_a_connection(),
    case!(a_stream_whose_too_long_reply_panics_as_it_is_dropped_fails).over_a_connection(),
    case!(a_stream_whose_too_long_request_panics_as_it_is_dropped_fails).over_a_connection(),
];

/// Panics as it is dropped.
struct Bomb;

impl Drop for Bomb {
    #[expect(clippy::panic, reason = "what these cases are about")]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::panic_any(ON_PURPOSE);
        }
    }
}

/// Memory that panics as it is freed.
struct Memory(Vec<u8>, Bomb);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Longer than any limit of these cases.
const TOO_LONG: usize = 2 << 20;

fn too_long() -> Blob {
    Blob { payload: Bytes::from_owner(Memory(vec![0; TOO_LONG], Bomb)) }
}

/// A stream of items that panics as it is dropped.
struct Bombs<T>(Vec<T>, Bomb);

impl<T: Unpin> Stream for Bombs<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready(self.0.pop())
    }
}

fn bombs<T>(items: impl IntoIterator<Item = T>) -> Bombs<T> {
    Bombs(items.into_iter().collect(), Bomb)
}

/// Handlers that do what the first payload says.
struct Careless;

const HANDLER: &[u8] = b"a handler";
const REPLY: &[u8] = b"a long reply";
const STREAM: &[u8] = b"a stream";

/// A handler that is ready at once, and panics as it is dropped if it is to.
struct Ready(Option<Blob>, #[expect(dead_code, reason = "it is there to be dropped")] Option<Bomb>);

impl Future for Ready {
    type Output = Result<Response<Blob>, Status>;

    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(Response::new(self.0.take().expect("polled once"))))
    }
}

impl Second for Careless {
    fn echo(
        &self,
        request: Request<Blob>,
    ) -> impl Future<Output = Result<Response<Blob>, Status>> + Send {
        match &request.get_ref().payload[..] {
            HANDLER => Ready(Some(Blob::default()), Some(Bomb)),
            REPLY => Ready(Some(too_long()), None),
            _ => Ready(Some(request.into_inner()), None),
        }
    }

    type TalkStream = Pin<Box<dyn Stream<Item = Result<Blob, Status>> + Send>>;

    async fn talk(
        &self,
        request: Request<Streaming<Blob>>,
    ) -> Result<Response<Self::TalkStream>, Status> {
        let mut requests = request.into_inner();
        let first = requests.message().await?.unwrap_or_default();
        Ok(Response::new(match &first.payload[..] {
            STREAM => Box::pin(bombs([Ok(Blob::default())])),
            REPLY => Box::pin(bombs([Ok(too_long())])),
            _ => Box::pin(requests),
        }))
    }
}

fn blob(payload: &'static [u8]) -> Blob {
    Blob { payload: Bytes::from_static(payload) }
}

async fn client(fixture: &Fixture) -> SecondClient {
    SecondClient::new(channel(fixture, SecondServer::new(Careless)).await)
}

/// The same with a limit that `too_long` exceeds, on both sides.
async fn limited_client(fixture: &Fixture) -> SecondClient {
    let builder = verbwire::Server::builder().add_service(SecondServer::new(Careless));
    let serving = fixture.serve(builder.max_message_size(TOO_LONG / 2)).await;
    let endpoint = serving.endpoint().max_message_size(TOO_LONG / 2);
    SecondClient::new(connect(&endpoint).await)
}

/// The call failed at once, and others go on.
async fn assert_alone(client: &SecondClient, status: &Status, begun: Instant) {
    assert_eq!(status.code(), Code::Internal, "{status}");
    assert!(!status.message().contains(ON_PURPOSE), "{status}");
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    client.echo(blob(b"another")).await.expect("others go on");
}

fn within<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LONG);
    request
}

/// Calls `talk`; what it fails with.
async fn fails<S>(client: &SecondClient, requests: S) -> Status
where
    S: Stream<Item = Blob> + Send + 'static,
{
    let mut replies = match client.talk(within(requests)).await {
        Ok(replies) => replies.into_inner(),
        Err(status) => return status,
    };
    loop {
        match replies.message().await {
            Ok(reply) => assert!(reply.is_some(), "it ended, and was to fail"),
            Err(status) => return status,
        }
    }
}

async fn replies_that_panic_as_they_are_dropped_fail_their_call(fixture: Fixture) {
    let client = client(&fixture).await;
    let begun = Instant::now();
    let status = fails(&client, items([blob(STREAM)])).await;
    assert_alone(&client, &status, begun).await;
}

async fn requests_that_panic_as_they_are_dropped_fail_their_call(fixture: Fixture) {
    let client = client(&fixture).await;
    let begun = Instant::now();
    let status = fails(&client, bombs([blob(b"last"), blob(b"first")])).await;
    assert_alone(&client, &status, begun).await;
}

async fn a_handler_that_panics_as_it_is_dropped_fails_its_call(fixture: Fixture) {
    let client = client(&fixture).await;
    let begun = Instant::now();
    let status = client.echo(within(blob(HANDLER))).await.expect_err("it panics");
    assert_alone(&client, &status, begun).await;
}

async fn a_reply_that_is_too_long_and_panics_as_it_is_dropped_fails_its_call(fixture: Fixture) {
    let client = limited_client(&fixture).await;
    let begun = Instant::now();
    let status = client.echo(within(blob(REPLY))).await.expect_err("it panics");
    assert_alone(&client, &status, begun).await;
}

async fn a_stream_whose_too_long_reply_panics_as_it_is_dropped_fails(fixture: Fixture) {
    let client = limited_client(&fixture).await;
    let begun = Instant::now();
    let status = fails(&client, items([blob(REPLY)])).await;
    assert_alone(&client, &status, begun).await;
}

async fn a_stream_whose_too_long_request_panics_as_it_is_dropped_fails(fixture: Fixture) {
    let client = limited_client(&fixture).await;
    let begun = Instant::now();
    let status = fails(&client, items([too_long()])).await;
    assert_alone(&client, &status, begun).await;
}
