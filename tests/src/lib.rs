//! The conformance suite of verbwire: one set of cases over the public API, one set of expected results,
//! every transport.
//!
//! * [`backends`]: the list of transports. A new one is a row there.
//! * [`mod@case`]: what a case is, and what it may need of a transport.
//! * [`fixture`]: servers and clients of one case; [`doomed`]: servers that die; [`island`]: runtimes that
//!   freeze and end.
//! * [`context`]: the service of cases about metadata and what else surrounds a call.
//! * [`service`]: the services that cases call, and the witness of what their handlers did.
//! * [`runner`] and [`table`]: run all cases over all transports and write the table.
//! * [`raw`], [`raw_rdma`] and [`spy`]: peers that keep to no rule, and what a server says of them.
//! * `misuse`: doc tests of what must not compile.
//!
//! The cases are in `tests/conformance/`, by topic. Does not measure speed.

#![forbid(unsafe_code)]

pub mod backends;
pub mod case;
pub mod context;
pub mod doomed;
pub mod fixture;
pub mod island;
#[cfg(doctest)]
pub mod misuse;
pub mod pattern;
pub mod proxy;
pub mod raw;
pub mod raw_rdma;
pub mod runner;
pub mod service;
pub mod spy;
pub mod streams;
pub mod table;

/// Messages and stubs of the suite's own services and of the README's.
pub mod proto {
    verbwire::include_protos!();
}

/// The README, so that its examples are compiled as doc tests.
#[cfg_attr(doctest, doc = include_str!("../../README.md"))]
#[derive(Debug)]
pub struct Readme;

/// The same of `docs/large-payloads.md`.
#[cfg_attr(doctest, doc = include_str!("../../docs/large-payloads.md"))]
#[derive(Debug)]
pub struct LargePayloads;
