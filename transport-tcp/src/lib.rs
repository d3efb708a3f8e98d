//! verbwire's messages over byte streams: `tcp://host:port` and `unix:///path`.
//!
//! * [`TcpTransport`] and [`UnixTransport`]: the two schemes. They differ in how a connection is made;
//!   everything behind HELLO is the same.
//! * [`TcpConfig`]: what is set per transport.
//!
//! What is where, in the order in which a byte travels: `outbound` turns messages into frames and
//! schedules long bodies, `poster` hands frames to the socket, `stream` is the socket, `receiver`
//! reads, `decoder` turns bytes into messages. `connection` ties them together. `outbound` and `decoder` are
//! pure: they know no socket, no clock and no task. What all transports with frames share is the core's:
//! limits and the memory of bodies (`transport::inbound`), what tasks tell the driver
//! (`transport::driver`), and noticing a peer that takes nothing (`transport::stall`).
//!
//! This crate knows nothing of calls beyond their ids; it neither retries nor reconnects.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod decoder;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod outbound;
mod poster;
mod receiver;
mod stream;
mod tcp;
#[cfg(unix)]
mod unix;
mod written;

pub use config::TcpConfig;
pub use tcp::TcpTransport;
#[cfg(unix)]
pub use unix::UnixTransport;
