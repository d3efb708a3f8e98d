//! Encoded messages as a body of gRPC's frames.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use verbwire::metadata::MetadataMap;
use verbwire::open::{Messages, StreamInput, StreamOutput};
use verbwire::{Body, Code, Executed, Origin, Status};

use crate::metadata::Reserved;
use crate::{frames, metadata, status};

/// A body that is made as it is polled: one message at a time.
pub(crate) struct Outgoing {
    source: Source,
    /// What is left of the message that was begun.
    pieces: VecDeque<Bytes>,
    ends: Ends,
}

enum Source {
    /// A message, and what is said at the end.
    Whole(Body, MetadataMap),
    End(MetadataMap),
    Stream(Box<dyn Messages>),
    Done,
}

/// How it ends.
enum Ends {
    /// As a request does; what it holds is there until the body is dropped.
    Plain { _held: Arc<()> },
    /// As a response does, with trailers.
    WithStatus,
}

impl Outgoing {
    /// The body of a request. It holds a share of `held` while it is there.
    pub(crate) fn of_request(input: StreamInput, held: Arc<()>) -> Self {
        let source = match input {
            StreamInput::Whole(body) => Source::Whole(body, MetadataMap::new()),
            StreamInput::Stream(messages) => Source::Stream(messages),
        };
        let ends = Ends::Plain { _held: held };
        Self { source, pieces: VecDeque::new(), ends }
    }

    /// The body of a response; a stream brings its own trailers.
    pub(crate) fn of_response(output: StreamOutput, trailers: MetadataMap) -> Self {
        let source = match output {
            StreamOutput::Whole(body) => Source::Whole(body, trailers),
            StreamOutput::Stream(messages) => Source::Stream(messages),
        };
        Self { source, pieces: VecDeque::new(), ends: Ends::WithStatus }
    }

    fn begin(&mut self, message: Body) -> Result<(), Status> {
        let message = message.decompressed()?;
        let len = message.len();
        self.pieces = frames::framed(&message).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "a message of {len} bytes is longer than a frame of gRPC, which has 4 GiB at most"
            ))
        })?;
        Ok(())
    }

    fn end(&self, trailers: &MetadataMap) -> Option<Result<Frame<Bytes>, tonic::Status>> {
        if let Ends::Plain { .. } = self.ends {
            return None;
        }
        let headers = metadata::to_headers(trailers, Reserved::Refused);
        Some(match headers {
            Ok(mut headers) => {
                headers.insert("grpc-status", http::HeaderValue::from_static("0"));
                Ok(Frame::trailers(headers))
            }
            Err(bad) => {
                Err(status::to_tonic(status::internal(format!("trailers of the reply: {bad}"))))
            }
        })
    }

    /// The other side's status as trailers. What happened on this side is an error, whose source is the native status.
    fn fail(&self, failed: Status) -> Result<Frame<Bytes>, tonic::Status> {
        if let Ends::Plain { .. } = self.ends {
            return Err(broken_off(failed));
        }
        let is_answer = failed.origin() == Origin::Peer;
        let failed = status::to_tonic(failed);
        if !is_answer {
            return Err(failed);
        }
        let mut headers = HeaderMap::new();
        failed.add_header(&mut headers)?;
        Ok(Frame::trailers(headers))
    }
}

/// What a handler finds at the end of a stream of requests that has not come to its own. tonic takes `Cancelled` for that end,
/// so that a handler would take half a stream for a whole one; it is `Aborted` instead.
fn broken_off(failed: Status) -> tonic::Status {
    if failed.code() != Code::Cancelled {
        return status::to_tonic(failed);
    }
    let message = format!("the stream of requests was broken off: {}", failed.message());
    let mut aborted = tonic::Status::aborted(message);
    aborted.set_source(Arc::new(failed));
    aborted
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let this = &mut *self;
        loop {
            if let Some(piece) = this.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let message = match std::mem::replace(&mut this.source, Source::Done) {
                Source::Done => return Poll::Ready(None),
                Source::Whole(message, trailers) => {
                    this.source = Source::End(trailers);
                    message
                }
                Source::End(trailers) => return Poll::Ready(this.end(&trailers)),
                Source::Stream(mut messages) => {
                    let item = messages.poll_message(cx);
                    match item {
                        Poll::Ready(Some(Err(failed))) => {
                            return Poll::Ready(Some(this.fail(failed)));
                        }
                        Poll::Ready(None) => {
                            return Poll::Ready(this.end(&messages.take_trailers()));
                        }
                        _ => this.source = Source::Stream(messages),
                    }
                    let Poll::Ready(Some(Ok(message))) = item else { return Poll::Pending };
                    message
                }
            };
            if let Err(failed) = this.begin(message) {
                this.source = Source::Done;
                let failed = match this.ends {
                    Ends::Plain { .. } => failed,
                    // What came was the reply of a handler.
                    Ends::WithStatus => failed.with_executed(Executed::Yes),
                };
                return Poll::Ready(Some(Err(status::to_tonic(failed))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.source, Source::Done) && self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    struct Failing(Option<Status>);

    impl Messages for Failing {
        fn poll_message(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
            Poll::Ready(self.0.take().map(Err))
        }
    }

    #[test]
    fn requests_that_are_broken_off_do_not_look_like_their_end() {
        for code in [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable] {
            let failing = Failing(Some(Status::new(code, "as told")));
            let input = StreamInput::Stream(Box::new(failing));
            let body = tonic::body::Body::new(Outgoing::of_request(input, Arc::default()));
            let mut requests = tonic::Streaming::<()>::new_request(Nothing, body, None, None);
            let stream = Pin::new(&mut requests);
            let polled = tonic::codegen::tokio_stream::Stream::poll_next(
                stream,
                &mut Context::from_waker(Waker::noop()),
            );
            let Poll::Ready(Some(Err(status))) = polled else { panic!("{code:?}: {polled:?}") };
            assert_ne!(status.code(), tonic::Code::Cancelled);
            assert_eq!(crate::native(&status).map(Status::code), Some(code));
        }
    }

    /// Decodes nothing.
    struct Nothing;

    impl tonic::codec::Decoder for Nothing {
        type Item = ();
        type Error = tonic::Status;

        fn decode(
            &mut self,
            _: &mut tonic::codec::DecodeBuf<'_>,
        ) -> Result<Option<()>, tonic::Status> {
            Ok(None)
        }
    }
}
