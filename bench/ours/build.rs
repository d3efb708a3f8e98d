//! Generates verbwire's stubs of the benchmark's services, and tonic's for the bridge.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    verbwire_codegen::configure().compile(&["../proto/echo.proto"], &["../proto"])?;
    verbwire_codegen::configure().compile(&["proto/bulk.proto"], &["proto"])?;
    let set = protox::compile(["echo.proto"], ["../proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .generate_default_stubs(true)
        .extern_path(".bench", "::verbwire_bench::proto")
        .compile_fds(set)?;
    Ok(())
}
