//! Stock tonic clients and services over the transports of verbwire.
//!
//! * [`Channel`]: what a client that tonic generated takes in the place of `tonic::transport::Channel`.
//! * [`AddTonic`]: services that tonic generated, on a native server beside native ones.
//! * [`Attachment`]: a large `bytes` field that goes beside a message and is not copied.
//! * [`to_tonic`] and [`from_tonic`]: statuses; [`native`] and [`received`]: what tonic has no words for.
//!
//! ```text
//! let client = GreeterClient::new(verbwire_tonic::Channel::new(verbwire::connect("rdma://10.0.0.1:7000").await?));
//!
//! Server::builder().add_tonic(GreeterServer::new(MyGreeter)).bind(&["rdma://0.0.0.0:7000"]).await?.serve().await?;
//! ```
//!
//! The wire is the native one: messages, metadata, status, deadline. Each side may be tonic's or native, and does not know which the
//! other is. There is no HTTP in between: requests and responses of `http` are only how tonic's stubs say what they mean.
//!
//! # What it does not do
//!
//! tonic's codec copies each message once on its way out and once on its way in; native stubs do not, and an [`Attachment`] is not. Bodies are polled one message
//! at a time, so that a slow reader holds its sender back. Names of metadata that begin with `grpc-` are
//! refused, since they are not the user's; so are `te` and `content-type` where a native side sends them. Limits of tonic's
//! stubs (`max_decoding_message_size`, 4 MiB) hold besides the native ones.

#![forbid(unsafe_code)]

mod attachment;
mod channel;
mod encoding;
mod frames;
mod incoming;
mod metadata;
mod only;
mod outgoing;
mod service;
mod status;
mod timeout;

pub use attachment::{Attachment, Detach};
pub use channel::{Channel, ResponseFuture};
pub use service::{AddTonic, Bridge, TonicService, received, service};
pub use status::{from_tonic, native, to_tonic};

/// Longest message, unless set: the native default.
const MAX_MESSAGE_SIZE: usize = 64 << 20;
