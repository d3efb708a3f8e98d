//! Generates messages and stubs from the `.proto` files; `verbwire::include_proto!` brings them in.

fn main() -> Result<(), verbwire_codegen::Error> {
    verbwire_codegen::configure()
        .compile(&["proto/helloworld.proto", "proto/blockstore.proto"], &["proto"])
}
