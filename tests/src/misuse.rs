//! What must not compile, beside what must: each rule is a pair of doc tests that differ in one place, so
//! that the failing one fails for that reason.
//!
//! # A service implements every method
//!
//! ```
//! # use verbwire::{Request, Response, Status};
//! # use verbwire_tests::proto::helloworld::{HelloReply, HelloRequest, greeter_server::Greeter};
//! struct Whole;
//! impl Greeter for Whole {
//!     async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
//!         Ok(Response::new(HelloReply::default()))
//!     }
//! }
//! ```
//!
//! ```compile_fail,E0046
//! # use verbwire::{Request, Response, Status};
//! # use verbwire_tests::proto::helloworld::{HelloReply, HelloRequest, greeter_server::Greeter};
//! struct Whole;
//! impl Greeter for Whole {}
//! ```
//!
//! # A handler can move between threads
//!
//! ```
//! # use std::sync::Arc;
//! # use verbwire::{Request, Response, Status};
//! # use verbwire_tests::proto::helloworld::{HelloReply, HelloRequest, greeter_server::Greeter};
//! struct Counting;
//! impl Greeter for Counting {
//!     async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
//!         let shared = Arc::new(1);
//!         tokio::task::yield_now().await;
//!         drop(shared);
//!         Ok(Response::new(HelloReply::default()))
//!     }
//! }
//! ```
//!
//! ```compile_fail
//! # use std::rc::Rc;
//! # use verbwire::{Request, Response, Status};
//! # use verbwire_tests::proto::helloworld::{HelloReply, HelloRequest, greeter_server::Greeter};
//! struct Counting;
//! impl Greeter for Counting {
//!     async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
//!         let shared = Rc::new(1);
//!         tokio::task::yield_now().await;
//!         drop(shared);
//!         Ok(Response::new(HelloReply::default()))
//!     }
//! }
//! ```
//!
//! # A client takes requests of its method only
//!
//! ```
//! # use verbwire_tests::proto::helloworld::{HelloRequest, greeter_client::GreeterClient};
//! fn call(greeter: &GreeterClient) {
//!     drop(greeter.say_hello(HelloRequest::default()));
//! }
//! ```
//!
//! ```compile_fail,E0277
//! # use verbwire_tests::proto::helloworld::{HelloReply, greeter_client::GreeterClient};
//! fn call(greeter: &GreeterClient) {
//!     drop(greeter.say_hello(HelloReply::default()));
//! }
//! ```
//!
//! # A buffer that was frozen cannot be written to
//!
//! ```
//! fn fill(mut buffer: verbwire::Buffer) {
//!     buffer[0] = 1;
//!     drop(buffer.freeze());
//! }
//! ```
//!
//! ```compile_fail,E0382
//! fn fill(mut buffer: verbwire::Buffer) {
//!     drop(buffer.freeze());
//!     buffer[0] = 1;
//! }
//! ```
