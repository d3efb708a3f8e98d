//! Generates the suite's own services and the example service of the README, and stock tonic stubs of the former.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    verbwire_codegen::compile_protos("proto/conformance.proto")?;
    verbwire_codegen::compile_protos("proto/context.proto")?;
    verbwire_codegen::compile_protos("../examples/proto/helloworld.proto")?;
    compile_tonic()
}

/// tonic's stubs, whose messages are those of the native ones.
fn compile_tonic() -> Result<(), Box<dyn Error>> {
    let files = ["conformance.proto", "context.proto"];
    let set = protox::compile(files, ["proto", "../rpc-codegen/proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .generate_default_stubs(true)
        .extern_path(".conformance", "crate::proto::conformance")
        .extern_path(".context", "crate::proto::context")
        .compile_fds(set)?;
    // A service of this name hides a type that tonic's stub of it means.
    let stub = Path::new(&env::var("OUT_DIR")?).join("context.rs");
    let code =
        fs::read_to_string(&stub)?.replace("&mut Context<'_>", "&mut ::std::task::Context<'_>");
    Ok(fs::write(stub, code)?)
}
