//! A body of gRPC's frames as encoded messages.

use std::any::Any;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body as _, Frame};
use tracing::error;
use verbwire::metadata::MetadataMap;
use verbwire::open::Messages;
use verbwire::{Body, Executed, Status};

use crate::encoding::Named;
use crate::frames::{BadFrame, Cutter};
use crate::{metadata, status};

/// Pieces of a body that are taken in one go without a message coming of it. A body that gives more does not keep its thread.
const IN_ONE_GO: usize = 64;

/// Whose body it is.
#[derive(Debug)]
pub(crate) enum Side {
    /// A client's: it ends where it ends.
    Request,
    /// A service's: it ends with a status, unless its head said one.
    Response {
        /// Of the head.
        http: StatusCode,
        /// Whether the head said the status, `Ok`.
        is_ended: bool,
    },
}

/// The messages of a body. Nothing of it is read that has not been asked for.
pub(crate) struct Incoming {
    body: tonic::body::Body,
    side: Side,
    /// Longest message.
    limit: usize,
    named: Named,
    cutter: Cutter,
    /// Read before somebody asked.
    ahead: VecDeque<Result<Body, Status>>,
    trailers: MetadataMap,
    has_ended: bool,
}

/// What a body gives when it is polled.
type Polled = Result<Frame<Bytes>, tonic::Status>;

/// What a body shows without waiting for it.
pub(crate) enum Start {
    /// One message is all that it has.
    Whole(Body, MetadataMap),
    /// A request that failed before its first message.
    Failed(Status),
    /// More than that, or nobody knows yet.
    Stream(Incoming),
}

impl Incoming {
    /// The messages of a body whose headers name an encoding, or none.
    pub(crate) fn new(body: tonic::body::Body, side: Side, limit: usize, named: Named) -> Self {
        Self {
            body,
            side,
            limit,
            named,
            cutter: Cutter::default(),
            ahead: VecDeque::new(),
            trailers: MetadataMap::new(),
            has_ended: false,
        }
    }

    /// What it is, as far as that shows at once: it does not wait. What is read is kept for who polls the stream.
    pub(crate) async fn start(mut self) -> Start {
        let first = match self.next_now().await {
            Poll::Ready(Some(Ok(message))) => message,
            Poll::Ready(Some(Err(failed))) => return self.failed_at_once(failed),
            Poll::Ready(None) | Poll::Pending => return Start::Stream(self),
        };
        let second = match self.next_now().await {
            Poll::Ready(None) => return Start::Whole(first, self.take_trailers()),
            Poll::Ready(Some(item)) => Some(item),
            Poll::Pending => None,
        };
        self.ahead.extend([Ok(first)].into_iter().chain(second));
        Start::Stream(self)
    }

    /// The next message if it is there, and `Pending` if it is not.
    async fn next_now(&mut self) -> Poll<Option<Result<Body, Status>>> {
        poll_fn(|cx| Poll::Ready(self.poll_next(cx))).await
    }

    /// A request need not be sent then. A response has begun, and fails behind its headers.
    fn failed_at_once(mut self, failed: Status) -> Start {
        if let Side::Request = self.side {
            return Start::Failed(failed);
        }
        self.ahead.push_back(Err(failed));
        Start::Stream(self)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        for _ in 0..IN_ONE_GO {
            match self.cutter.cut(self.limit, &self.named) {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Ok(None) => {}
                Err(bad) => return self.end(Err(self.bad(&bad))),
            }
            let trailers = match ready!(self.poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.cutter.push(data);
                        continue;
                    }
                    Err(frame) => frame.into_trailers().unwrap_or_default(),
                },
                Some(Err(failed)) => return self.end(Err(status::from_tonic(failed))),
                None => HeaderMap::new(),
            };
            let ended = self.cutter.check_end().map_err(|bad| self.bad(&bad));
            let ended = ended.and_then(|()| self.ended_by(trailers));
            return self.end(ended);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// A panic of a client's body ends it with a status, as that of a native stream does; that of a service's body is for the
    /// server, which knows the method.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Polled>> {
        let body = Pin::new(&mut self.body);
        if let Side::Response { .. } = self.side {
            return body.poll_frame(cx);
        }
        let polled = catch_unwind(AssertUnwindSafe(|| body.poll_frame(cx)));
        polled.unwrap_or_else(|panic| {
            error!(panic = text_of(&*panic), "the body of a request panicked");
            let message = "the body of a request of tonic panicked, as it was polled for a message";
            Poll::Ready(Some(Err(tonic::Status::internal(message))))
        })
    }

    fn end(&mut self, how: Result<(), Status>) -> Poll<Option<Result<Body, Status>>> {
        self.has_ended = true;
        Poll::Ready(how.err().map(|failed| Err(self.said(failed))))
    }

    /// A response has begun, so that its handler ran.
    fn said(&self, failed: Status) -> Status {
        match self.side {
            Side::Request => failed,
            Side::Response { .. } => failed.with_executed(Executed::Yes),
        }
    }

    /// The end that trailers say.
    fn ended_by(&mut self, trailers: HeaderMap) -> Result<(), Status> {
        let Side::Response { http, is_ended } = self.side else { return Ok(()) };
        match status::in_headers(&trailers)? {
            Some(said) if said.code() != tonic::Code::Ok => return Err(status::from_tonic(said)),
            None if !is_ended => return Err(without_status(http)),
            _ => {}
        }
        let entries = metadata::from_headers(trailers);
        self.trailers = entries
            .map_err(|bad| status::internal(format!("trailers of a tonic service: {bad}")))?;
        Ok(())
    }

    fn bad(&self, bad: &BadFrame) -> Status {
        let (whose, bridge) = match self.side {
            Side::Request => ("request", "Channel"),
            Side::Response { .. } => ("response", "Bridge"),
        };
        let message = format!("the body of a {whose} of tonic: {bad}");
        match bad {
            BadFrame::TooLong { .. } => Status::resource_exhausted(format!(
                "{message}; raise verbwire_tonic::{bridge}::max_message_size if they are meant"
            )),
            BadFrame::Encoding(_) => Status::unimplemented(message),
            _ => Status::internal(message),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let body = std::mem::take(&mut self.body);
        // Nobody waits for it any more who could be told.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(body))) {
            error!(panic = text_of(&*panic), "a body panicked as it was dropped");
        }
    }
}

/// What a panic says.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(not a text)")
}

/// The status of an answer that says none, by gRPC's `http-grpc-status-mapping.md`.
pub(crate) fn without_status(http: StatusCode) -> Status {
    let message = format!("a tonic service answered with HTTP status {http} and no grpc-status");
    match http.as_u16() {
        400 => Status::internal(message),
        401 => Status::unauthenticated(message),
        403 => Status::permission_denied(message),
        404 => Status::unimplemented(message),
        429 | 502 | 503 | 504 => Status::unavailable(message),
        _ => Status::unknown(message),
    }
}

impl Messages for Incoming {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        match self.ahead.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None => self.poll_next(cx),
        }
    }

    fn take_trailers(&mut self) -> MetadataMap {
        std::mem::take(&mut self.trailers)
    }
}
