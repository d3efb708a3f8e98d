//! Generates messages and stubs from the `.proto` files; `verbwire::include_proto!` brings them in.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    verbwire_codegen::configure()
        .compile(&["proto/helloworld.proto", "proto/blockstore.proto"], &["proto"])?;
    // For `tonic-migration` alone: what a build script of tonic's does.
    let set = protox::compile(["helloworld.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(set)?;
    Ok(())
}
