//! Generates code for all test protos. Two calls, so that one module tree is made of both.

fn main() -> Result<(), verbwire_codegen::Error> {
    const PROTOS: &str = "../../protos";

    verbwire_codegen::configure()
        .btree_map(["helloworld.HelloReply"])
        .compile(&["greeter.proto", "hints.proto", "comments.proto"], &[PROTOS])?;
    verbwire_codegen::configure().compile(
        &["collisions.proto", "keywords.proto", "packages.proto", "well_known.proto"],
        &[PROTOS],
    )
}
