//! The core of verbwire, an async RPC framework over RDMA: everything that is true of a call on every
//! transport.
//!
//! * [`Channel`] and [`Call`]: a client's side of calls; [`Server`]: the other side.
//! * [`Request`], [`Response`], [`Streaming`], [`Status`]: what handlers and callers see.
//! * [`metadata`]: what they say besides their messages.
//! * [`error_details`]: the standard details of a failed call.
//! * [`compression`]: messages that are compressed.
//! * [`interceptor`]: code around calls, on either side.
//! * [`backoff`]: how long to wait between attempts.
//! * [`transport`]: the seam that transports implement, and the in-process transport `mem://`.
//! * [`wire`]: the bytes of headers, TLVs and HELLO, shared by all byte transports.
//! * [`proto`]: the rules of calls as state machines without sockets, clocks or tasks.
//! * [`paths`]: which ways two peers have to each other, for people.
//! * [`buf`]: message bodies as lists of segments, so that large `bytes` fields are never copied.
//!
//! This crate knows no transport but `mem`, and neither http, tower nor tonic. Applications use the
//! facade crate `verbwire`; this one is for authors of transports and bridges.

// `deny`, not `forbid`: `bytes::BufMut` is an unsafe trait, and `buf::writer` implements it.
#![deny(unsafe_code)]

mod alarm;
pub mod backoff;
pub mod buf;
pub mod client;
pub mod codec;
pub mod compression;
pub mod config;
mod context;
mod error;
pub mod error_details;
mod extensions;
pub mod interceptor;
pub mod message;
pub mod metadata;
mod panics;
pub mod paths;
pub mod proto;
mod pulse;
mod request;
pub mod server;
pub mod service;
mod shield;
mod status;
mod streaming;
mod sync;
pub mod transport;
pub mod wire;

pub use buf::{Body, Buffer};
pub use client::{Call, CancelHandle, Channel, StreamingCall, Turn};
pub use context::{Cancelled, spawn};
pub use error::{Error, ErrorKind};
pub use extensions::Extensions;
pub use proto::reconnect::ConnectivityState;
pub use request::{IntoRequest, Request, Response};
pub use server::Server;
pub use service::NamedService;
pub use shield::shield;
pub use status::{Code, Executed, Origin, Status};
pub use streaming::{BoxStream, IntoStreamingRequest, Messages, Streaming};
pub use transport::Target;
