//! The options of the builder.

use verbwire_codegen::configure;

use crate::scratch::Scratch;

#[test]
fn without_a_server_the_client_has_no_in_process() {
    let scratch = Scratch::new("no_server");
    let builder = configure().build_server(false);
    let text = scratch.compile_shared(builder, &["greeter.proto"]).package("helloworld");
    assert!(text.contains("pub mod greeter_client"));
    assert!(!text.contains("greeter_server"));
    assert!(!text.contains("in_process"));
}

#[test]
fn without_a_client_there_is_only_the_server() {
    let scratch = Scratch::new("no_client");
    let builder = configure().build_client(false);
    let text = scratch.compile_shared(builder, &["greeter.proto"]).package("helloworld");
    assert!(text.contains("pub mod greeter_server"));
    assert!(!text.contains("greeter_client"));
}

#[test]
fn bytes_fields_are_bytes_unless_said_otherwise() {
    const BYTES: &str = "picture: ::verbwire::codegen::prost::bytes::Bytes";
    const VEC: &str = "picture: ::verbwire::codegen::prost::alloc::vec::Vec<u8>";

    let by_default = Scratch::new("bytes_default");
    by_default.compile_shared(configure(), &["greeter.proto"]);
    assert!(by_default.package("helloworld").contains(BYTES));

    let none = Scratch::new("bytes_none");
    none.compile_shared(configure().bytes([] as [&str; 0]), &["greeter.proto"]);
    assert!(none.package("helloworld").contains(VEC));
}

#[test]
fn maps_and_attributes_are_prosts() {
    let scratch = Scratch::new("prost_options");
    let builder = configure()
        .btree_map(["HelloReply.counts"])
        .type_attribute("HelloRequest", "#[derive(PartialOrd)]")
        .field_attribute("HelloRequest.name", "#[doc = \" Full name.\"]");
    let text = scratch.compile_shared(builder, &["greeter.proto"]).package("helloworld");
    assert!(text.contains("alloc::collections::BTreeMap"));
    assert_eq!(text.matches("#[derive(PartialOrd)]").count(), 1);
    assert_eq!(text.matches("/// Full name.").count(), 1);
}

#[test]
fn an_extern_package_has_no_file_and_is_named_instead() {
    let scratch = Scratch::new("extern_items");
    let builder = configure().extern_path(".shop.items", "::elsewhere::items");
    let written = scratch.compile_shared(builder, &["packages.proto"]).written();
    assert!(!written.contains_key("verbwire-package.shop.items.rs"));
    let orders = &written["verbwire-package.shop.orders.v1.rs"];
    assert!(orders.contains("IntoRequest<::elsewhere::items::Item>"));
    assert!(orders.contains("Call<::elsewhere::items::item::Size>"));
}

#[test]
fn streaming_services_of_extern_packages_are_no_error() {
    let scratch = Scratch::new("extern_streaming");
    scratch.proto(
        "other.proto",
        "package other;\nmessage M {}\nservice S { rpc Watch(M) returns (stream M); }\n",
    );
    scratch.proto("a.proto", "import \"other.proto\";\nmessage A { other.M m = 1; }\n");
    let builder = configure().extern_path(".other", "::other");
    scratch.compile(builder, &["a.proto"]).expect("nothing of the package is generated");
}

#[test]
fn the_options_file_is_built_in_and_generates_nothing() {
    let scratch = Scratch::new("options_file");
    let written =
        scratch.compile_shared(configure(), &["hints.proto", "verbwire/options.proto"]).written();
    let options = &written["verbwire-package.verbwire.rs"];
    assert!(!options.contains("struct"), "{options}");
    let imported = Scratch::new("options_file_imported");
    let written = imported.compile_shared(configure(), &["hints.proto"]).written();
    assert!(!written.contains_key("verbwire-package.verbwire.rs"));
}

#[test]
fn the_built_in_options_win_over_a_copy_of_another_version() {
    let scratch = Scratch::new("options_copy");
    let folder = scratch.protos().join("verbwire");
    std::fs::create_dir(&folder).expect("a scratch folder can be made");
    scratch.proto("verbwire/options.proto", "package old;\n");
    scratch.proto(
        "a.proto",
        "import \"verbwire/options.proto\";\n\
         message M {}\n\
         service S { rpc A(M) returns (M) { option (verbwire.method) = {inline_safe: true}; } }\n",
    );
    scratch.compile(configure(), &["a.proto"]).expect("the copy is not read");
}

#[test]
fn messages_and_enums_have_attributes_of_their_own() {
    let scratch = Scratch::new("kinds_of_types");
    let builder = configure()
        .message_attribute(".gen.type", "#[repr(C)]")
        .enum_attribute(".gen.type", "#[non_exhaustive]");
    let text = scratch.compile_shared(builder, &["keywords.proto"]).package("gen.type");
    assert_eq!(text.matches("#[repr(C)]").count(), 2);
    // Two enums and a oneof.
    assert_eq!(text.matches("#[non_exhaustive]").count(), 3);
}

#[test]
fn well_known_types_are_generated_when_asked_for() {
    let scratch = Scratch::new("well_known_compiled");
    let builder = configure().compile_well_known_types(true);
    let written = scratch.compile_shared(builder, &["well_known.proto"]).written();
    assert!(written["verbwire-package.google.protobuf.rs"].contains("pub struct Timestamp"));
    let users = &written["verbwire-package.well_known.rs"];
    assert!(!users.contains("prost_types"), "{users}");
    assert!(users.contains("super::super::google::protobuf::Empty"), "{users}");
}

#[test]
fn debug_boxes_prefixes_and_names_are_as_asked_for() {
    let scratch = Scratch::new("more_of_prost");
    scratch.proto(
        "a.proto",
        "package p;\n\
         message Outer { Inner inner = 1; Kind kind = 2; }\n\
         message Inner { string secret = 1; }\n\
         enum Kind { KIND_NONE = 0; }\n",
    );
    let builder = configure()
        .skip_debug(["Inner"])
        .boxed("Outer.inner")
        .retain_enum_prefix()
        .enable_type_names();
    scratch.compile(builder, &["a.proto"]).expect("the file is valid");
    let text = scratch.package("p");
    assert_eq!(text.matches("#[prost(skip_debug)]").count(), 1);
    assert!(text.contains("alloc::boxed::Box<Inner>"), "{text}");
    assert!(text.contains("KindNone = 0"), "{text}");
    assert!(text.contains("::verbwire::codegen::prost::Name for Outer"), "{text}");
}
