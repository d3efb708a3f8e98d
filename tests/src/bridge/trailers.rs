//! A service of tonic's that says some metadata of requests back in the trailers of its replies.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tonic::body::Body;
use tonic::server::NamedService;

use crate::context::TRAILING;

/// Says those entries back whose names have a word in them.
#[derive(Debug, Clone)]
pub struct Trailers<S>(S);

impl<S> Trailers<S> {
    /// Around `service`.
    pub fn new(service: S) -> Self {
        Self(service)
    }
}

impl<S: NamedService> NamedService for Trailers<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> tower_service::Service<http::Request<Body>> for Trailers<S>
where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut said = HeaderMap::new();
        for (name, value) in request.headers() {
            if name.as_str().contains(TRAILING) {
                said.append(name, value.clone());
            }
        }
        let answer = self.0.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Body::new(Said { body, said }))) })
    }
}

/// A body with more trailers.
struct Said {
    body: Body,
    said: HeaderMap,
}

impl http_body::Body for Said {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let item = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(item.map(|frame| {
            let mut frame = frame?;
            if let Some(trailers) = frame.trailers_mut() {
                trailers.extend(std::mem::take(&mut self.said));
            }
            Ok(frame)
        }))
    }
}
