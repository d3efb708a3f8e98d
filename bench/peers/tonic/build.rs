//! Generates tonic's stubs of the benchmark's service; protox stands in for `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../../proto/echo.proto");
    let descriptors = protox::compile(["echo.proto"], ["../../proto"])?;
    // Payloads are `Bytes`: tonic's cheapest form of a bytes field.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
