//! Connections over real sockets, by the public seam alone: what arrives, in which order, and how it ends.

#![cfg(unix)]

mod back_pressure;
mod ending;
mod establishing;
mod order;
mod pair;
#[cfg(feature = "tls")]
mod tls;
mod violations;
