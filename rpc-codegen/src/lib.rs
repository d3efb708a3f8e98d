//! Generates async client and server stubs from protobuf services, in a build script.
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), verbwire_codegen::Error> {
//!     verbwire_codegen::configure()
//!         .build_server(false)
//!         .compile(&["proto/greeter.proto"], &["proto"])
//! }
//! ```
//!
//! No `protoc` is needed, and the `.proto` files of the well-known types and of verbwire's own options
//! (`import "verbwire/options.proto";`) are built in. The output is included with one of two macros of the `verbwire`
//! crate: `include_protos!()` for everything that the build script compiled, as a tree of modules, or
//! `include_proto!("package")` for the items of one package.
//!
//! # What is generated
//!
//! Messages and enums are [`prost`](prost_build)'s, with `bytes` fields as `Bytes`, so that they can be sent and
//! received without a copy. For a service `Greeter` there are
//!
//! - `greeter_client::GreeterClient`, whose methods take `&self` and return a future that can be spawned;
//! - `greeter_server::Greeter`, the trait to implement, with `async fn` methods;
//! - `greeter_server::GreeterServer`, which wraps an implementation for a server.
//!
//! All of it names the `verbwire` crate and nothing else, and is the same, byte by byte, for the same input.
//!
//! # Names
//!
//! - Names are converted as prost does: `SayHello` becomes `say_hello`, `Type` becomes `r#type`, `Self` becomes `self_`.
//! - A method named like one of the client's own (`new`, `in_process`, `channel`, `clone`) gets a trailing underscore,
//!   in the client and in the trait: `New` becomes `new_`.
//! - Two items with the same Rust name are an error that names both: methods, services, packages, messages, enums, fields,
//!   oneofs and values of enums. For the latter, [`Builder::retain_enum_prefix`] may help.
//!
//! # Hints
//!
//! What protobuf cannot say about a method is said with an option, which needs no include path:
//!
//! ```proto
//! import "verbwire/options.proto";
//!
//! service Store {
//!   rpc Read(ReadRequest) returns (ReadReply) {
//!     option idempotency_level = NO_SIDE_EFFECTS;
//!     option (verbwire.method) = {expected_reply_size: 65536, inline_safe: true};
//!   }
//! }
//! ```
//!
//! # Limits
//!
//! - Editions (`edition = "2023"`) are an error: write `syntax = "proto3"`.
//! - Services of imported files are generated as well, except those of packages that [`Builder::extern_path`] covers.
//! - A `google.protobuf.BytesValue` is a `Vec<u8>`, so it is copied; a `bytes` field of a message of one's own is not.

#![forbid(unsafe_code)]

mod builder;
mod collisions;
mod comments;
mod emit;
mod error;
mod messages;
pub mod model;
mod names;
mod output;
mod package;
mod parse;
mod select;
mod sources;
mod tonic;

use std::path::Path;

pub use builder::{Builder, configure};
pub use error::Error;

/// Compiles one `.proto` file with default options; its folder is the include path.
///
/// The path is relative to the working directory, which for a build script is the folder of its `Cargo.toml`. For imports
/// that are relative to a folder above, use [`configure`] and [`Builder::compile`], which take include paths.
///
/// # Errors
///
/// Those of [`Builder::compile`].
pub fn compile_protos(proto: impl AsRef<Path>) -> Result<(), Error> {
    let proto = proto.as_ref();
    if !proto.is_file() {
        return Err(Error::from(error::Cause::NoSuchFile(proto.to_owned())));
    }
    // A bare file name has the parent "", which no file resolver accepts as a folder.
    let folder = match proto.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    configure().compile(&[proto], &[folder]).map_err(|error| error.of_only_file(proto))
}
