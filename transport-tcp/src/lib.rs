//! verbwire's messages over byte streams: `tcp://host:port`, `unix:///path` and `tls://host:port`.
//!
//! * [`TcpTransport`] and [`UnixTransport`]: the two schemes. They differ in how a connection is made;
//!   everything behind HELLO is the same.
//! * `TlsTransport` (feature `tls`): the third, TLS inside TCP, with `ServerTls` and `ClientTls`.
//! * [`TcpConfig`]: what is set per transport.
//!
//! What is where, in the order in which a byte travels: `outbound` turns messages into frames and
//! schedules long bodies, `poster` hands frames to the socket, `stream` is the socket, with `tls` around it where it
//! is asked for, `receiver` reads, `decoder` turns bytes into messages. `connection` ties them together. `outbound` and `decoder` are
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
#[cfg(feature = "tls")]
mod tls;
#[cfg(unix)]
mod unix;
mod written;

pub use config::TcpConfig;
pub use tcp::TcpTransport;
#[cfg(feature = "tls")]
pub use tls::{ClientTls, HandshakeCounts, ServerTls, TlsTransport};
#[cfg(unix)]
pub use unix::UnixTransport;
