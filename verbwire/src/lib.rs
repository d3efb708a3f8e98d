//! Async RPC for protobuf services, over RDMA and over TCP, as the target says.
//!
//! A service is defined in a `.proto` file; `verbwire-codegen` generates its stubs in a build script:
//!
//! ```text
//! // build.rs
//! fn main() -> Result<(), verbwire_codegen::Error> {
//!     verbwire_codegen::compile_protos("proto/helloworld.proto")
//! }
//! ```
//!
//! [`include_proto!`] brings them into the code, [`Server`] offers a service, [`connect`] gives the
//! [`Channel`] that a generated client calls through. The README shows all of it in twenty lines.
//!
//! # Targets
//!
//! | target | carried by |
//! |---|---|
//! | `auto://host:port`, or `host:port` | TCP first, and RDMA as soon as both ends have it (features `tcp` and `rdma`) |
//! | `tcp://host:port` | TCP (feature `tcp`, on by default) |
//! | `unix:///path/to/socket` | a Unix socket (feature `tcp`) |
//! | `tls://host:port` | TLS 1.3 over TCP (feature `tls`): see `verbwire::tls` |
//! | `mem://name` | this process, for tests |
//! | `fabric://net/host:port` | a software NIC in this process, for tests (feature `fabric`) |
//! | `rdma://host:port` | RDMA devices, by verbs (feature `rdma`) |
//!
//! **What travels over RDMA is not encrypted**, nor is `tcp://`; `tls://` is. `auto://` may begin with TLS and moves calls to RDMA all the
//! same: `PathPolicy::RequireEncryption` keeps them from it. [`Channel::paths`] says which path calls take, and why.
//!
//! In `fabric://net/host:port`, net and host are any names, for example `fabric://test/server:0`.
//!
//! This crate is the only place that knows transports by name. What a call is, is in `verbwire-core`.

#![forbid(unsafe_code)]

mod endpoint;
mod include;
mod server;
mod transports;

pub use endpoint::{Endpoint, connect};
pub use server::{Builder, Server};
pub use verbwire_core::backoff;
pub use verbwire_core::client::{Client, EndpointChanges, EndpointInfo, Endpoints, Session, Slot};
pub use verbwire_core::compression;
pub use verbwire_core::config;
pub use verbwire_core::error_details;
pub use verbwire_core::interceptor;
pub use verbwire_core::message::{SessionId, SlotUse};
pub use verbwire_core::metadata;
pub use verbwire_core::paths::{PathInfo, Paths, Traffic};
pub use verbwire_core::server::{
    Bound, Connections, Landing, Limited, LoadLimits, LongRequest, Newcomer, NewcomerCounts,
    Placing, ServedConnection, SessionLimits, Sessions,
};
pub use verbwire_core::transport::pressure::{Pressure, PressureWatch};
pub use verbwire_core::transport::{DeviceInfo, Path, PeerCertificates};
pub use verbwire_core::{
    Body, BoxStream, Buffer, Call, CancelHandle, Cancelled, Channel, Code, ConnectivityState,
    Error, ErrorKind, Executed, Extensions, IntoRequest, IntoStreamingRequest, NamedService,
    Origin, Request, Response, Status, Streaming, StreamingCall, Target, Turn, shield, spawn,
};

/// Calls of methods that nobody has described, for bridges and proxies: by path, with encoded messages, in whichever form.
///
/// A client makes them with [`Channel::call`]; a server answers them with an [`Open`](open::Open), for the methods of one service
/// ([`OpenService`](open::OpenService)) or for all that it does not know ([`Builder::fallback`]). What a server was asked
/// and what a client asks have the same types, so that a proxy is one line:
///
/// ```
/// use std::sync::Arc;
///
/// use verbwire::open::{Open, ReplyForm, StreamHandlerFuture, StreamInput};
/// use verbwire::{Channel, Request, Server};
///
/// /// Hands every call on.
/// struct Proxy(Channel);
///
/// impl Open for Proxy {
///     fn call(
///         self: Arc<Self>,
///         path: Arc<str>,
///         _: ReplyForm,
///         request: Request<StreamInput>,
///     ) -> StreamHandlerFuture {
///         Box::pin(async move { self.0.call(path, request).await })
///     }
/// }
///
/// fn proxy(to: Channel) -> verbwire::Builder {
///     Server::builder().fallback(Proxy(to))
/// }
/// ```
pub mod open {
    pub use verbwire_core::Messages;
    pub use verbwire_core::client::OpenCall;
    pub use verbwire_core::message::ReplyForm;
    pub use verbwire_core::server::{Open, OpenService};
    pub use verbwire_core::service::{StreamHandlerFuture, StreamInput, StreamOutput};
}

/// What `tls://` targets need: [`ServerTls`](tls::ServerTls) for [`Builder::tls`], [`ClientTls`](tls::ClientTls) for
/// [`Endpoint::tls`].
///
/// ```no_run
/// use verbwire::tls::{ClientTls, ServerTls};
/// use verbwire::{Channel, Endpoint, Error, Server};
///
/// async fn serve(server: verbwire::Builder) -> Result<(), Error> {
///     let read = |name: &str| std::fs::read(format!("/etc/store/{name}")).expect("readable");
///     let tls = ServerTls::from_pem(read("server.pem"), read("server.key"))?
///         .require_client_certificates(read("ca.pem"))?;
///     server.tls(&tls).bind(&["tls://0.0.0.0:7000"]).await?.serve().await
/// }
///
/// async fn connect() -> Result<Channel, Error> {
///     let read = |name: &str| std::fs::read(format!("/etc/store/{name}")).expect("readable");
///     let tls = ClientTls::from_authority(read("ca.pem"))?
///         .identity(read("client.pem"), read("client.key"))?;
///     Endpoint::new("tls://store-1.internal:7000")?.tls(&tls).connect().await
/// }
/// ```
#[cfg(feature = "tls")]
pub mod tls {
    pub use verbwire_tcp::{ClientTls, HandshakeCounts, ServerTls};
}

/// What generated code is made of. Not for use by hand, and without promises to those who do.
#[doc(hidden)]
pub mod codegen {
    pub use futures_core::Stream;
    pub use prost;
    pub use prost_types;
    pub use verbwire_core::client::Client;
    pub use verbwire_core::interceptor::{FromFn, Intercepted, from_fn};
    pub use verbwire_core::service::{
        HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, StreamHandlerFuture,
        StreamInput, bidi_streaming, client_streaming, server_streaming, unary, unknown_method,
        unknown_streaming_method,
    };
    pub use verbwire_core::{
        Body, BoxStream, Call, Channel, IntoRequest, IntoStreamingRequest, NamedService, Request,
        Response, Status, Streaming, StreamingCall,
    };
}
