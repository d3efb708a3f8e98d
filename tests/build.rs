//! Generates the suite's own services and the example service of the README.

fn main() -> Result<(), verbwire_codegen::Error> {
    verbwire_codegen::compile_protos("proto/conformance.proto")?;
    verbwire_codegen::compile_protos("proto/context.proto")?;
    verbwire_codegen::compile_protos("../examples/proto/helloworld.proto")
}
