//! Where the payloads of long requests land, as the server's owner decides.
//!
//! Owns what the owner is asked with and may answer. Does not: take memory, or refuse a request itself; the connection's
//! intake asks, and its transport does what was said.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use tracing::error;

use crate::metadata::MetadataMap;
use crate::panics::panic_message;
use crate::service::MethodDescriptor;
use crate::status::Status;
use crate::wire;

/// Decides where the payload of a long request lands, before memory is taken for it.
///
/// Long is what does not come with its head: over a byte stream and `mem://` more than 256 KiB
/// ([`max_frame_body`](crate::config::Limits::max_frame_body)), over RDMA what does not fit one receive of 8 KiB. It is not asked
/// about any other request, so who may call is decided in an [interceptor](crate::interceptor), not here.
///
/// Implemented by functions. It is called while the transport receives, on the task that drives the connection: it
/// must not block. A panic in it fails the call with `Internal`.
///
/// Asked for requests that are one message, of methods with and without streams of replies; not for messages of streams,
/// which land in memory of the transport. A request that a standing grant
/// brought has landed by then.
pub trait Placing: Send + Sync + 'static {
    /// Where the payload of `request` shall land.
    ///
    /// # Errors
    ///
    /// Nowhere: the call ends with this status, not executed. Nothing of a payload that would be written by RDMA, more than
    /// 32 KiB, is sent then; any other is received and thrown away.
    fn place(&self, request: &LongRequest<'_>) -> Result<Landing, Status>;
}

impl<F> Placing for F
where
    F: Fn(&LongRequest<'_>) -> Result<Landing, Status> + Send + Sync + 'static,
{
    fn place(&self, request: &LongRequest<'_>) -> Result<Landing, Status> {
        self(request)
    }
}

/// Memory that a payload may land in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Landing {
    /// Memory of the transport, without a further copy where it can do that. Over RDMA it is registered memory, of which
    /// there is as much as the transport's configuration says, and the message keeps it until it is dropped. For what is
    /// used up soon. The default.
    #[default]
    Pooled,
    /// Memory of the process: what landed in memory of the transport is copied out once it is whole, and that memory is
    /// free at once. For what is kept, such as the pages of a cache.
    Owned,
}

/// A request whose payload does not come with its head: what is known of it before.
pub struct LongRequest<'a> {
    method: &'static MethodDescriptor,
    path: &'a str,
    len: usize,
    metadata: &'a Bytes,
}

impl<'a> LongRequest<'a> {
    pub(super) fn new(
        method: &'static MethodDescriptor,
        path: &'a str,
        len: usize,
        metadata: &'a Bytes,
    ) -> Self {
        Self { method, path, len, metadata }
    }

    /// The path that is called, for example `/helloworld.Greeter/SayHello`.
    pub fn path(&self) -> &str {
        self.path
    }

    /// The method that is called. A service that answers for methods which nobody has described has one for each pair of
    /// forms, whatever the [path](Self::path).
    pub fn method(&self) -> &'static MethodDescriptor {
        self.method
    }

    /// Length of the encoded message in bytes: at most `max_message_size`.
    #[expect(clippy::len_without_is_empty, reason = "an empty message comes with its head")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The request's metadata, decoded when this is called. Empty where it breaks the rules: then the connection ends as
    /// soon as the request is taken.
    pub fn metadata(&self) -> MetadataMap {
        wire::metadata::decode(self.metadata.clone()).map(|block| block.headers).unwrap_or_default()
    }
}

impl fmt::Debug for LongRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("LongRequest");
        fields.field("path", &self.path).field("len", &self.len).finish_non_exhaustive()
    }
}

/// What a server was given, or nothing.
#[derive(Clone, Default)]
pub(super) struct Placer(Option<Arc<dyn Placing>>);

impl Placer {
    pub(super) fn new(placing: impl Placing) -> Self {
        Self(Some(Arc::new(placing)))
    }

    pub(super) fn place(&self, request: &LongRequest<'_>) -> Result<Landing, Status> {
        let Some(placing) = &self.0 else {
            return Ok(Landing::default());
        };
        catch_unwind(AssertUnwindSafe(|| placing.place(request))).unwrap_or_else(|panic| {
            let (path, panic) = (request.path, panic_message(&*panic));
            error!(method = path, panic, "placing a payload panicked");
            let message =
                format!("placing the payload for {path} panicked; the server's log says why");
            Err(Status::internal(message))
        })
    }
}
