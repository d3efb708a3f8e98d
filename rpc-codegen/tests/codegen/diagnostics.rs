//! One case per thing that can be wrong, with the whole text that the user sees.

use std::fs;

use verbwire_codegen::{compile_protos, configure};

use crate::scratch::Scratch;

/// Compiles one file `a.proto`, and returns what was wrong with it.
fn rejected(name: &str, proto: &str) -> String {
    let scratch = Scratch::new(name);
    scratch.proto("a.proto", proto);
    let text = scratch.text(scratch.compile(configure(), &["a.proto"]));
    assert!(!scratch.out().exists(), "nothing is written after an error");
    text
}

#[test]
fn a_missing_file_names_the_include_paths() {
    let scratch = Scratch::new("missing_file");
    assert_eq!(
        scratch.text(scratch.compile(configure(), &["no.proto"])),
        "cannot find no.proto in the working directory or in an include path (protos)"
    );
    let without_includes = configure().compile(&["no.proto"], &[] as &[&str]);
    assert_eq!(
        scratch.text(without_includes),
        "cannot find no.proto in the working directory or in an include path (none was given)"
    );
}

#[test]
fn a_missing_file_alone_names_no_include_path() {
    let scratch = Scratch::new("missing_only_file");
    assert_eq!(
        scratch.text(compile_protos("protos/no.proto")),
        "protos/no.proto does not exist in the working directory, which for a build script is the folder of its \
         Cargo.toml"
    );
    let absolute = compile_protos(scratch.protos().join("no.proto"));
    assert_eq!(scratch.text(absolute), "protos/no.proto does not exist");
}

#[test]
fn no_file_at_all_is_an_error() {
    let scratch = Scratch::new("no_file");
    assert_eq!(
        scratch.text(scratch.compile(configure(), &[])),
        "no .proto file is named: give the path of at least one"
    );
}

#[test]
fn a_missing_include_path_is_named() {
    let scratch = Scratch::new("missing_include");
    scratch.proto("a.proto", "");
    let file = scratch.protos().join("a.proto");
    let typo = configure().compile(&[&file], &["protoo"]);
    assert_eq!(scratch.text(typo), "include path protoo does not exist");
    let no_folder = configure().compile(&[&file], &[&file]);
    assert_eq!(scratch.text(no_folder), "include path protos/a.proto is not a folder");
}

#[test]
fn a_file_outside_of_the_include_paths_is_named() {
    let scratch = Scratch::new("outside");
    scratch.proto("a.proto", "").proto("b/b.proto", "");
    let outside =
        configure().compile(&[scratch.protos().join("a.proto")], &[scratch.protos().join("b")]);
    assert_eq!(
        scratch.text(outside),
        "file 'protos/a.proto' is not in any include path; add its folder, or one above it"
    );
}

#[test]
fn an_edition_names_the_line_and_the_syntax_to_use() {
    let scratch = Scratch::new("edition");
    let file = scratch.protos().join("a.proto");
    fs::write(&file, "// New.\nedition = \"2023\";\nmessage A {}\n").expect("scratch is writable");
    assert_eq!(
        scratch.text(scratch.compile(configure(), &["a.proto"])),
        "protos/a.proto:2:1: protobuf editions are not supported, use syntax = \"proto3\""
    );
}

#[test]
fn a_syntax_error_names_the_line() {
    assert_eq!(
        rejected("syntax_error", "message A {\n  string a;\n}\n"),
        "protos/a.proto:3:11: expected '=', but found ';'"
    );
}

#[test]
fn a_missing_import_names_the_line_and_the_remedy() {
    assert_eq!(
        rejected("missing_import", "import \"b/b.proto\";\n"),
        "protos/a.proto:2:1: import 'b/b.proto' not found; add the folder that contains b/b.proto to the \
         include paths"
    );
}

#[test]
fn an_import_that_is_relative_to_a_folder_above_names_that_folder() {
    let scratch = Scratch::new("import_above");
    scratch.proto("a/a.proto", "import \"b/b.proto\";\n").proto("b/b.proto", "");
    let (file, include) = (scratch.protos().join("a/a.proto"), scratch.protos().join("a"));
    assert_eq!(
        scratch.text(configure().compile(&[file], &[include])),
        "protos/a/a.proto:2:1: import 'b/b.proto' not found; add protos to the include paths"
    );
}

#[test]
fn a_missing_import_of_a_file_alone_names_the_call_that_takes_include_paths() {
    let scratch = Scratch::new("import_above_only_file");
    scratch.proto("a/a.proto", "import \"b/b.proto\";\n").proto("b/b.proto", "");
    scratch.proto("a/lost.proto", "import \"c/c.proto\";\n");
    assert_eq!(
        scratch.text(compile_protos(scratch.protos().join("a/a.proto"))),
        "protos/a/a.proto:2:1: import 'b/b.proto' not found; call \
         `configure().compile(&[\"protos/a/a.proto\"], &[\"protos\"])` instead"
    );
    assert_eq!(
        scratch.text(compile_protos(scratch.protos().join("a/lost.proto"))),
        "protos/a/lost.proto:2:1: import 'c/c.proto' not found; call \
         `configure().compile(&[\"protos/a/lost.proto\"], &[..])` instead, with the folder that contains c/c.proto"
    );
}

#[test]
fn an_unknown_type_names_the_line() {
    assert_eq!(
        rejected("unknown_type", "message A {\n  B b = 1;\n}\n"),
        "protos/a.proto:3:3: name 'B' is not defined"
    );
}

#[test]
fn an_unknown_hint_names_the_line() {
    let proto = "import \"verbwire/options.proto\";\n\
        message M {}\n\
        service S {\n\
          rpc A(M) returns (M) { option (verbwire.method).inline_save = true; }\n\
        }\n";
    assert_eq!(
        rejected("unknown_hint", proto),
        "protos/a.proto:5:24: option field '(verbwire.method).inline_save' is not defined"
    );
}

#[test]
fn methods_with_one_rust_name_are_rejected() {
    let proto = "message M {}\n\
        service S {\n\
          rpc GetA(M) returns (M);\n\
          rpc get_a(M) returns (M);\n\
        }\n";
    assert_eq!(
        rejected("method_names", proto),
        "protos/a.proto:5: methods `GetA` and `get_a` of service `S` have the same Rust name `get_a`: rename one"
    );
}

#[test]
fn services_with_one_rust_name_are_rejected() {
    let proto = "package p;\nservice FooBar {}\nservice Foo_Bar {}\n";
    assert_eq!(
        rejected("service_names", proto),
        "protos/a.proto:4: services `p.FooBar` and `p.Foo_Bar` have the same Rust module names, such as \
         `foo_bar_client`: rename one"
    );
}

#[test]
fn items_with_one_rust_name_are_reported_all_at_once() {
    let proto = "package p;\n\
        message FooBar {}\n\
        message Foo_Bar {}\n\
        enum foo_bar { NONE = 0; }\n\
        message Fields {\n\
          optional string Name = 1;\n\
          oneof NAME { bool a = 3; }\n\
          enum Inner { INNER_ONE = 0; ONE = 1; SELF = 2; INNER_SELF = 3; }\n\
          message inner {}\n\
        }\n";
    assert_eq!(
        rejected("rust_names", proto),
        "protos/a.proto:4: message `p.FooBar` and message `p.Foo_Bar` have the same Rust name `FooBar`: rename one\n\
         protos/a.proto:8: field `p.Fields.Name` and oneof `p.Fields.NAME` have the same Rust name `name`: rename one\n\
         protos/a.proto:9: message `p.Fields.inner` and enum `p.Fields.Inner` have the same Rust name `Inner`: \
         rename one\n\
         protos/a.proto:9: enum value `p.Fields.INNER_ONE` and enum value `p.Fields.ONE` have the same Rust name \
         `One`: rename one\n\
         protos/a.proto:9: enum value `p.Fields.SELF` and enum value `p.Fields.INNER_SELF` have the same Rust name \
         `Self_`: rename one\n\
         protos/a.proto:5: message `p.FooBar` and enum `p.foo_bar` have the same Rust name `FooBar`: rename one"
    );
}

/// In proto3, protobuf itself forbids them.
#[test]
fn fields_of_proto2_with_one_rust_name_are_rejected() {
    let scratch = Scratch::new("field_names");
    let proto = "syntax = \"proto2\";\n\
        message M {\n\
          optional bool Name = 1;\n\
          optional bool name = 2;\n\
          oneof choice {\n\
            bool a = 3;\n\
            bool A = 4;\n\
          }\n\
        }\n";
    fs::write(scratch.protos().join("a.proto"), proto).expect("scratch is writable");
    assert_eq!(
        scratch.text(scratch.compile(configure(), &["a.proto"])),
        "protos/a.proto:4: field `M.Name` and field `M.name` have the same Rust name `name`: rename one\n\
         protos/a.proto:7: field `M.a` and field `M.A` have the same Rust name `A`: rename one"
    );
}

#[test]
fn modules_with_one_name_are_rejected() {
    let scratch = Scratch::new("module_names");
    scratch.proto(
        "a.proto",
        "package a;\n\
         message B { message Inner {} }\n\
         message GreeterClient { enum Kind { NONE = 0; } }\n\
         service Greeter {}\n",
    );
    scratch.proto("b.proto", "package a.b.c;\nmessage C {}\n");
    assert_eq!(
        scratch.text(scratch.compile(configure(), &["a.proto", "b.proto"])),
        "protos/a.proto:5: message `a.GreeterClient` and service `a.Greeter` have the same Rust name \
         `greeter_client`: rename one\n\
         protos/b.proto:2: message `a.B` and package `a.b.c` have the same Rust name `b`: rename one"
    );
}

#[test]
fn names_that_only_seem_to_be_one_are_no_error() {
    let scratch = Scratch::new("no_collision");
    scratch.proto(
        "a.proto",
        "package a;\n\
         message B {}\n\
         message GreeterClient {}\n\
         service Greeter {}\n\
         message M {\n\
           oneof kind { bool x = 1; }\n\
           message Kind {}\n\
           map<string, string> kinds = 2;\n\
           optional bool kind_of = 3;\n\
         }\n\
         enum E { option allow_alias = true; E_ONE = 0; ONE = 0; }\n",
    );
    scratch.proto("b.proto", "package a.b;\nmessage B {}\n");
    scratch.compile(configure(), &["a.proto", "b.proto"]).expect("nothing is wrong");
    assert!(scratch.package("a").contains("KindOneOf"));
}

#[test]
fn values_that_are_one_without_the_enums_name_are_two_with_it() {
    let scratch = Scratch::new("retained_values");
    scratch.proto("a.proto", "package p;\nenum Kind { KIND_NONE = 0; NONE = 1; }\n");
    assert_eq!(
        scratch.text(scratch.compile(configure(), &["a.proto"])),
        "protos/a.proto:3: enum value `p.KIND_NONE` and enum value `p.NONE` have the same Rust name `None`: rename \
         one"
    );
    let builder = configure().retain_enum_prefix();
    scratch.compile(builder, &["a.proto"]).expect("the names differ");
}

#[test]
fn types_from_elsewhere_may_have_any_names() {
    let scratch = Scratch::new("extern_names");
    scratch.proto(
        "a.proto",
        "package p;\nmessage AB {}\nmessage A_b {}\nenum K { K_A = 0; A = 1; }\nmessage M { AB a = 1; A_b b = 2; }\n",
    );
    let builder = configure()
        .extern_path(".p.A_b", "::elsewhere::Other")
        .extern_path(".p.AB", "::elsewhere::One")
        .extern_path(".p.K", "::elsewhere::K");
    scratch.compile(builder, &["a.proto"]).expect("neither is generated");
}

#[test]
fn packages_with_one_rust_module_are_rejected() {
    let scratch = Scratch::new("package_names");
    scratch.proto("a.proto", "package shop.items;\nmessage A {}\n");
    scratch.proto("b.proto", "package Shop.Items;\nmessage B {}\n");
    let text = "packages `shop.items` and `Shop.Items` have the same Rust module `shop::items`: rename one";
    assert_eq!(scratch.text(scratch.compile(configure(), &["a.proto", "b.proto"])), text);
    scratch.compile(configure(), &["a.proto"]).expect("one of the packages is fine");
    assert_eq!(scratch.text(scratch.compile(configure(), &["b.proto"])), text);
}

#[test]
fn an_item_that_two_calls_generate_differently_is_rejected() {
    let scratch = Scratch::new("item_twice");
    scratch.proto("a.proto", "package p;\nmessage A { bytes a = 1; }\n");
    scratch.proto("b.proto", "package p;\nimport \"a.proto\";\nmessage B { A a = 1; }\n");
    scratch.compile(configure(), &["a.proto"]).expect("the first call is fine");
    let first = scratch.package("p");
    let builder = configure().bytes([] as [&str; 0]);
    assert_eq!(
        scratch.text(scratch.compile(builder, &["b.proto"])),
        "`A` of package `p` was already generated into out, with other content: give both calls of `compile` the \
         same options, or the second one another `out_dir`"
    );
    assert_eq!(scratch.package("p"), first);
}

#[test]
fn extern_paths_have_to_be_absolute() {
    let scratch = Scratch::new("extern_path");
    scratch.proto("a.proto", "");
    let builder = configure().extern_path(".p", "elsewhere::p");
    assert_eq!(
        scratch.text(scratch.compile(builder, &["a.proto"])),
        "extern path `elsewhere::p` for `.p` is not an absolute Rust path: let it begin with `::` or `crate::`"
    );
}

#[test]
fn extern_packages_begin_with_a_dot() {
    let scratch = Scratch::new("extern_package");
    scratch.proto("a.proto", "");
    let builder = configure().extern_path("p", "::elsewhere::p");
    assert_eq!(
        scratch.text(scratch.compile(builder, &["a.proto"])),
        "cannot generate messages: Protobuf paths must be fully qualified (begin with a leading '.'): p; check \
         the paths given to `extern_path`"
    );
}

#[test]
fn attributes_have_to_be_rust() {
    let scratch = Scratch::new("attribute");
    scratch.proto("a.proto", "package p;\nmessage A {}\n");
    let builder = configure().type_attribute(".", "#[derive(");
    let text = scratch.text(scratch.compile(builder, &["a.proto"]));
    assert!(text.starts_with("messages of package `p` are not valid Rust: "), "{text}");
    assert!(
        text.ends_with(
            "; check the attributes given to `type_attribute`, `message_attribute`, `enum_attribute` and \
             `field_attribute`"
        ),
        "{text}"
    );
}

#[test]
fn attributes_of_stubs_name_their_option() {
    let scratch = Scratch::new("stub_attribute");
    scratch.proto("a.proto", "package p;\nservice A {}\n");
    let builders = [
        (configure().client_mod_attribute(".", "derive(X)"), "client_mod_attribute"),
        (configure().client_attribute(".", "derive(X)"), "client_attribute"),
        (configure().server_mod_attribute(".", "derive(X)"), "server_mod_attribute"),
        (configure().server_attribute(".", "derive(X)"), "server_attribute"),
        (configure().trait_attribute(".", "derive(X)"), "trait_attribute"),
    ];
    for (builder, option) in builders {
        let text = scratch.text(scratch.compile(builder, &["a.proto"]));
        let start = format!("`derive(X)`, given to `{option}`, is not an attribute: ");
        assert!(text.starts_with(&start), "{text}");
        assert!(text.ends_with("; write it as in Rust, `#[..]`"), "{text}");
    }
}

#[test]
fn an_include_file_is_a_name_in_the_output_folder() {
    let scratch = Scratch::new("include_file");
    scratch.proto("a.proto", "");
    for name in ["src/mod.rs", "..", "", "verbwire-protos.rs", "verbwire-package.a.rs"] {
        let builder = configure().include_file(name);
        assert_eq!(
            scratch.text(scratch.compile(builder, &["a.proto"])),
            format!(
                "`{name}`, given to `include_file`, is not the name of a file for the output folder: give a name \
                 without a folder that does not begin with `verbwire-`"
            )
        );
    }
    assert!(!scratch.out().exists(), "nothing is written after an error");
}

#[test]
fn a_descriptor_set_that_another_call_wrote_is_not_overwritten() {
    let scratch = Scratch::new("descriptor_set_twice");
    scratch.proto("a.proto", "package a;\n").proto("b.proto", "package b;\n");
    let path = scratch.protos().join("set.bin");
    let builder = || configure().file_descriptor_set_path(&path);
    scratch.compile(builder(), &["a.proto"]).expect("the first call is fine");
    scratch.compile(builder(), &["a.proto"]).expect("and so is the same once more");
    assert_eq!(
        scratch.text(scratch.compile(builder(), &["b.proto"])),
        "protos/set.bin was already written with other descriptors: name all files in one call of `compile`, \
         or give the second call another path"
    );
}

#[test]
fn an_output_folder_is_needed_outside_of_build_scripts() {
    let scratch = Scratch::new("no_out_dir");
    scratch.proto("a.proto", "");
    let error = configure().compile(&["a.proto"], &[scratch.protos()]);
    assert_eq!(
        scratch.text(error),
        "OUT_DIR is not set: call `out_dir` when running outside of a build script"
    );
}

#[test]
fn an_output_folder_that_cannot_be_made_is_named() {
    let scratch = Scratch::new("out_dir_is_a_file");
    scratch.proto("a.proto", "");
    fs::write(scratch.out(), "in the way").expect("a scratch file can be written");
    let text = scratch.text(scratch.compile(configure(), &["a.proto"]));
    assert!(text.starts_with("cannot write out: "), "{text}");
}

#[test]
fn debug_is_the_same_text_since_cargo_shows_that() {
    let error = configure().compile(&["no.proto"], &["tests"]).expect_err("there is no such file");
    assert_eq!(format!("{error:?}"), error.to_string());
}
