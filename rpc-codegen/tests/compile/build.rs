//! Generates code for all test protos. Two calls, so that one module tree is made of both, and one more for each form that
//! stubs may have.

use std::{env, path::PathBuf};

use verbwire_codegen::{configure, Builder, Error};

const PROTOS: &str = "../../protos";

fn main() -> Result<(), Error> {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    configure()
        .btree_map(["helloworld.HelloReply"])
        .include_file("first.rs")
        .file_descriptor_set_path(out_dir.join("first.bin"))
        .compile(&["greeter.proto", "hints.proto", "comments.proto", "streams.proto"], &[PROTOS])?;
    configure().compile(
        &[
            "collisions.proto",
            "keywords.proto",
            "packages.proto",
            "same_names.proto",
            "well_known.proto",
        ],
        &[PROTOS],
    )?;
    let form = |name: &str, builder: Builder| {
        let protos = ["greeter.proto", "collisions.proto", "keywords.proto", "streams.proto"];
        builder.out_dir(out_dir.join(name)).compile(&protos, &[PROTOS])
    };
    form("boxed", configure().async_trait(true))?;
    form("arc", configure().use_arc_self(true))?;
    form(
        "boxed_arc",
        configure().async_trait(true).use_arc_self(true).generate_default_stubs(true),
    )?;
    form("optional", configure().generate_default_stubs(true).disable_comments(["."]))?;
    form("client_only", configure().build_server(false))?;
    form("server_only", configure().build_client(false))?;
    // `any()` is never true.
    form("no_server", configure().server_mod_attribute(".", "#[cfg(any())]"))?;
    form(
        "attributes",
        configure()
            .skip_debug(["String"])
            .boxed("Option.string")
            .retain_enum_prefix()
            .enable_type_names()
            .message_attribute("helloworld", "#[must_use]")
            .enum_attribute(".", "#[non_exhaustive]")
            .client_attribute(".", "#[must_use]"),
    )?;
    configure()
        .extern_path(".shop.items", "crate::shop::items")
        .out_dir(out_dir.join("extern_crate"))
        .compile(&["packages.proto"], &[PROTOS])?;
    configure()
        .compile_well_known_types(true)
        .out_dir(out_dir.join("well_known_compiled"))
        .compile(&["well_known.proto"], &[PROTOS])
}
