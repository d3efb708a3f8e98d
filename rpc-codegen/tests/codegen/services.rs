//! Services as data, and tonic's stubs from them.

use tonic_build::CodeGenBuilder;
use verbwire_codegen::{configure, model::Service};

use crate::scratch::PROTOS;

fn services(proto: &str) -> Vec<Service> {
    configure().services(&[proto], &[PROTOS]).expect("the shared protos are valid")
}

#[test]
fn hints_are_in_the_model() {
    let services = services("hints.proto");
    let [store] = services.as_slice() else {
        unreachable!("there is one service");
    };
    assert_eq!(store.full_name(), "hints.Store");
    assert_eq!(store.comments, [" Pages of a device."]);
    let hints: Vec<_> = store
        .methods
        .iter()
        .map(|method| {
            let name = method.proto_name.as_str();
            (name, method.idempotent, method.inline_safe, method.expected_reply_size)
        })
        .collect();
    assert_eq!(
        hints,
        [
            ("Read", true, true, Some(65536)),
            ("Write", true, false, None),
            ("Stat", false, true, None),
            ("Append", false, false, None),
        ]
    );
}

#[test]
fn names_of_the_client_itself_and_keywords_are_avoided() {
    let services = services("keywords.proto");
    let names: Vec<_> = services[0].methods.iter().map(|method| method.name.as_str()).collect();
    assert_eq!(
        names,
        ["r#match", "self_", "r#gen", "r#async", "new_", "in_process_", "channel_", "clone_"]
    );
    assert_eq!(services[1].name, "Self_");
}

#[test]
fn types_are_seen_from_the_package() {
    let services = services("well_known.proto");
    let types: Vec<_> = services[0]
        .methods
        .iter()
        .flat_map(|method| [&method.request, &method.reply])
        .inspect(|ty| assert!(ty.is_absolute(), "{}", ty.as_str()))
        .map(|ty| ty.as_str())
        .collect();
    assert_eq!(
        types[..8],
        [
            "()",
            "::verbwire::codegen::prost_types::Timestamp",
            "::verbwire::codegen::prost_types::Timestamp",
            "()",
            "::verbwire::codegen::prost::alloc::string::String",
            "::verbwire::codegen::prost::alloc::vec::Vec<u8>",
            "u64",
            "f64",
        ]
    );
}

#[test]
fn deprecation_is_in_the_model() {
    let services = services("comments.proto");
    assert!(services[0].deprecated);
    let deprecated: Vec<_> = services[0].methods.iter().map(|m| m.deprecated).collect();
    assert_eq!(deprecated, [true, false, false]);
}

#[test]
fn tonic_generates_its_stubs_from_the_model() {
    let services = services("packages.proto");
    let orders = services
        .iter()
        .find(|service| service.name == "Orders")
        .expect("the file has this service");
    let tonic = CodeGenBuilder::new();

    let client = tonic.generate_client(orders, "super").to_string();
    assert!(client.contains("pub struct OrdersClient < T >"), "{client}");
    assert!(client.contains("\"/shop.orders.v1.Orders/Place\""), "{client}");
    assert!(client.contains("super :: super :: super :: items :: Item"), "{client}");
    assert!(client.contains("tonic_prost :: ProstCodec :: default ()"), "{client}");

    let server = tonic.generate_server(orders, "super").to_string();
    assert!(server.contains("pub trait Orders"), "{server}");
    assert!(server.contains("async fn place"), "{server}");
}

#[test]
fn tonic_takes_escaped_names_too() {
    for service in services("keywords.proto") {
        let tonic = CodeGenBuilder::new();
        let client = tonic.generate_client(&service, "super");
        assert!(!client.is_empty());
    }
}
