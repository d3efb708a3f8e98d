//! verbwire's messages over byte streams: `tcp://host:port` and `unix:///path`.
//!
//! * [`TcpTransport`] and [`UnixTransport`]: the two schemes. They differ in how a connection is made;
//!   everything behind HELLO is the same.
//! * [`TcpConfig`]: what is set per transport.
//!
//! What is where, in the order in which a byte travels: `outbound` turns messages into frames and
//! schedules long bodies, `poster` hands frames to the socket, `stream` is the socket, `receiver`
//! reads, `decoder` turns bytes into messages, `bodies` holds the ones that arrive in pieces, `landing`
//! and `small` are the memory of bodies.
//! `connection` ties them together. `outbound`, `decoder` and `bodies` are pure: they know no socket,
//! no clock and no task.
//!
//! This crate knows nothing of calls beyond their ids; it neither retries nor reconnects.

#![forbid(unsafe_code)]

mod bodies;
mod config;
mod connection;
mod decoder;
mod driver;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod landing;
mod outbound;
mod poster;
mod receiver;
mod small;
mod stall;
mod stream;
mod tcp;
#[cfg(unix)]
mod unix;

pub use config::TcpConfig;
pub use tcp::TcpTransport;
#[cfg(unix)]
pub use unix::UnixTransport;
