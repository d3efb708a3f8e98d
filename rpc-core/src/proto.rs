//! The rules of calls, without sockets, clocks or tasks.
//!
//! Time and messages come in through `handle_*`, what is to be done goes out as return values and through
//! `poll_*`. A machine may hold wakers for those who wait on it, but never calls one: it hands them out, to
//! be woken after its lock is released.
//!
//! * [`hello`]: what two HELLOs agree on.
//! * [`balance`], [`outlier`]: to which of several endpoints a call goes, and which are left alone.
//! * [`calls`]: the slot table, with ids that are checked by generation.
//! * [`entrance`]: whether a handler was entered, where something stands before it.
//! * [`deadlines`]: when to look for expired calls.
//! * [`stream`]: order, windows and the end of a stream of messages.
//! * [`client`]: the caller's side of every call on a connection.
//! * [`server`]: the callee's side.
//! * [`reconnect`]: when a channel connects, and what it is meanwhile.
//! * [`resend`]: which calls a channel makes again by itself.
//! * [`retry`]: which failed calls are made again because their callers ask for it.
//! * [`sessions`]: calls that run once, however often they are repeated.
//! * [`offers`]: where second paths begin.
//! * [`paths`]: when a client tries for a second path.
//! * [`tickets`]: who is let in as the second path of a connection.

pub mod balance;
pub mod calls;
pub mod client;
pub mod deadlines;
pub mod entrance;
pub mod hello;
pub mod keep_alive;
pub mod offers;
pub mod outlier;
#[cfg(test)]
mod pair;
pub mod paths;
pub mod reconnect;
pub mod resend;
pub mod retry;
pub mod server;
pub mod sessions;
pub mod stream;
pub mod tickets;
