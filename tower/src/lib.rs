//! tower's layers around the calls of verbwire's clients.
//!
//! * [`layer`]: a channel whose calls go through a tower layer, for generated clients.
//! * [`TowerChannel`]: a channel as a tower service, the innermost one of such a stack.
//! * [`TowerRequest`]: what services and layers see of a call: method, metadata, deadline, encoded message.
//!
//! tower's own timeout, limits, load shedding, buffer and retry know nothing of requests, so they work as they are:
//!
//! ```
//! # use verbwire_core as verbwire;
//! # use verbwire::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary};
//! # use verbwire::{Body, Call, Channel, Request, Response, Status, client::Client};
//! # static KV: ServiceDescriptor =
//! #     ServiceDescriptor::new("kv.Kv", &[MethodDescriptor::new("Get", "/kv.Kv/Get").idempotent()]);
//! # struct Kv;
//! # impl Service for Kv {
//! #     fn descriptor(&self) -> &'static ServiceDescriptor { &KV }
//! #     fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
//! #         unary(request, |key: Request<String>| async move {
//! #             Ok(Response::new(format!("the value of {}", key.into_inner())))
//! #         })
//! #     }
//! # }
//! # struct KvClient(Client);
//! # impl KvClient {
//! #     fn new(channel: Channel) -> Self { Self(Client::new(channel, &KV)) }
//! #     fn get(&self, key: &str) -> Call<String> { self.0.unary(0, Request::new(key.to_owned())) }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Status> {
//! # let channel = Channel::in_process(Kv);
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//!
//! // In this order: turn a call away when 64 are under way, and give each of the others a second.
//! let layers = ServiceBuilder::new()
//!     .load_shed()
//!     .concurrency_limit(64)
//!     .timeout(Duration::from_secs(1));
//! let client = KvClient::new(verbwire_tower::layer(channel, layers));
//! let value = client.get("a").await?;
//! # assert_eq!(value.get_ref(), "the value of a");
//! # Ok(())
//! # }
//! ```
//!
//! # Retries
//!
//! A policy of tower's `Retry` asks [`TowerRequest::may_repeat`] whether a call that failed may be made again; whether
//! that is worth while it knows best itself. A server that had too much to do says how long to wait. A request with a slot of
//! a [`Session`](verbwire_core::client::Session) may also be made again when nobody knows whether its handler ran: the server
//! runs it once. Its copies have the same slot.
//!
//! ```
//! # use verbwire_core as verbwire;
//! use tower::retry::Policy;
//! use verbwire::error_details::RetryInfo;
//! use verbwire::interceptor::Payload;
//! use verbwire::{Code, Response, Status};
//! use verbwire_tower::TowerRequest;
//!
//! /// At most this many more tries, each after the time that the server asks for.
//! #[derive(Clone)]
//! struct WhenThereIsRoom(u32);
//!
//! impl Policy<TowerRequest, Response<Payload>, Status> for WhenThereIsRoom {
//!     type Future = tokio::time::Sleep;
//!
//!     fn retry(
//!         &mut self,
//!         request: &mut TowerRequest,
//!         outcome: &mut Result<Response<Payload>, Status>,
//!     ) -> Option<Self::Future> {
//!         let status = outcome.as_ref().err()?;
//!         let was_turned_away = status.code() == Code::ResourceExhausted && request.may_repeat(status);
//!         self.0 = self.0.checked_sub(was_turned_away.then_some(1)?)?;
//!         let details = status.error_details().ok()?;
//!         details.retry_info().and_then(RetryInfo::delay).map(tokio::time::sleep)
//!     }
//!
//!     fn clone_request(&mut self, request: &TowerRequest) -> Option<TowerRequest> {
//!         request.copy()
//!     }
//! }
//! # let _layers = tower::ServiceBuilder::new().retry(WhenThereIsRoom(3));
//! ```
//!
//! No layer mends a lost connection: the channel below it stays lost, and each further try fails at once. Connect again and
//! make the call on the new channel; `may_repeat` says for which calls that is safe.
//!
//! # What it does not do
//!
//! The deadline of a call covers its layers: a call that waits in one ends in time. A call that has streams is one call from its
//! beginning to its end: it keeps its place in a limit and its timeout until the last reply has been read. Its messages go past
//! the layers. It is made again only while its replies have not begun, and never where its request is a
//! stream: [`TowerRequest::copy`] has none of those. Servers take [`Interceptor`](verbwire_core::interceptor::Interceptor)s and
//! [`LoadLimits`](verbwire_core::server::LoadLimits), not tower's layers.

#![forbid(unsafe_code)]

mod channel;
mod error;
mod layer;
mod request;

pub use channel::{TowerCall, TowerChannel};
pub use layer::layer;
pub use request::TowerRequest;
