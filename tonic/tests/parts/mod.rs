//! Bodies that are made of parts, and services that answer with them.

#![allow(dead_code, reason = "no test uses all of it")]
#![allow(clippy::panic, reason = "some bodies are to panic")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use tonic::body::Body;
use tonic::server::NamedService;

/// What a body consists of.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    Data(&'static [u8]),
    Trailers(&'static [(&'static str, &'static str)]),
    Fails,
    /// So many frames without a byte.
    Empty(usize),
    Hangs,
    /// Nothing yet, once.
    Later,
    Panics,
    /// Panics when the body is dropped.
    PanicsInDrop,
}

pub(crate) struct Parts(VecDeque<Part>);

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(match self.0.pop_front() {
            None => None,
            Some(Part::Data(bytes)) => Some(Ok(Frame::data(Bytes::from_static(bytes)))),
            Some(Part::Trailers(entries)) => Some(Ok(Frame::trailers(headers(entries)))),
            Some(Part::Fails) => Some(Err("a body that fails")),
            Some(Part::Empty(0)) => Some(Ok(Frame::data(Bytes::new()))),
            Some(Part::Empty(more)) => {
                self.0.push_front(Part::Empty(more - 1));
                Some(Ok(Frame::data(Bytes::new())))
            }
            Some(Part::Hangs) => {
                self.0.push_front(Part::Hangs);
                return Poll::Pending;
            }
            Some(Part::Later) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(Part::Panics) => panic!("a body that panics"),
            Some(Part::PanicsInDrop) => {
                self.0.push_front(Part::PanicsInDrop);
                return Poll::Pending;
            }
        })
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let panics = self.0.iter().any(|part| matches!(part, Part::PanicsInDrop));
        assert!(!panics || std::thread::panicking(), "a body that panics in drop");
    }
}

pub(crate) fn headers(entries: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in entries {
        headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
    }
    headers
}

pub(crate) fn body(parts: &[Part]) -> Body {
    Body::new(Parts(parts.iter().cloned().collect()))
}

/// A service that gives one answer, whatever it is asked.
#[derive(Clone)]
pub(crate) struct Answers {
    pub(crate) http: u16,
    pub(crate) head: &'static [(&'static str, &'static str)],
    pub(crate) body: &'static [Part],
}

impl NamedService for Answers {
    const NAME: &'static str = "hostile.Answers";
}

impl tower_service::Service<http::Request<Body>> for Answers {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let mut answer = http::Response::new(body(self.body));
        *answer.status_mut() = http::StatusCode::from_u16(self.http).expect("a status");
        *answer.headers_mut() = headers(self.head);
        ready(Ok(answer))
    }
}

pub(crate) const MESSAGE: Part = Part::Data(b"\0\0\0\0\x02ab");
pub(crate) const OK: Part = Part::Trailers(&[("grpc-status", "0")]);
