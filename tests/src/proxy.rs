//! A service that hands every call on, whatever its form.

use std::sync::Arc;

use verbwire::open::{Open, ReplyForm, StreamHandlerFuture, StreamInput};
use verbwire::{Channel, Request};

/// Hands calls on over a channel.
#[derive(Debug)]
pub struct Proxy(pub Channel);

impl Open for Proxy {
    fn call(
        self: Arc<Self>,
        path: Arc<str>,
        _: ReplyForm,
        request: Request<StreamInput>,
    ) -> StreamHandlerFuture {
        Box::pin(async move { self.0.call(path, request).await })
    }
}
