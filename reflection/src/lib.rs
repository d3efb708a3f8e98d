//! The standard reflection service `grpc.reflection.v1.ServerReflection`: a server says which services it has and how they are
//! defined, to tools that have no `.proto` files.
//!
//! It is made of encoded descriptor sets, which `verbwire-codegen` writes when its option `file_descriptor_set_path` says where:
//!
//! ```no_run
//! # const SHOP: &[u8] = &[];
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! // const SHOP: &[u8] = verbwire::include_file_descriptor_set!("shop");
//! let reflection = verbwire_reflection::Builder::configure().register_encoded_file_descriptor_set(SHOP).build_v1()?;
//! let bound = verbwire::Server::builder().add_service(reflection).bind(&["tcp://0.0.0.0:7000"]).await?;
//! # bound.serve().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does not do
//!
//! It does not look at the server: what it lists is what the descriptors have. There is no `v1alpha`. It is not HTTP/2, so tools
//! that speak gRPC do not reach it; a proxy or a tool on verbwire's channels does, by [`pb::server_reflection_client`].

#![forbid(unsafe_code)]

mod builder;
mod declared;
mod index;
mod service;

pub use builder::{Builder, Error};
pub use service::{Reflected, ReflectionService};

/// Messages, client and server of `grpc.reflection.v1`, as they are generated from `proto/grpc/reflection/v1/reflection.proto`.
pub mod pb {
    include!("generated/verbwire-package.grpc.reflection.v1.rs");

    /// The encoded descriptors of this package.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/reflection.bin");
}
