//! What is answered.

use prost::Message;
use prost_types::FileDescriptorProto;
use verbwire::Code;
use verbwire_reflection::Builder;
use verbwire_reflection::pb::server_reflection_request::MessageRequest as Asked;
use verbwire_reflection::pb::server_reflection_response::MessageResponse as Answer;
use verbwire_reflection::pb::{ExtensionRequest, FILE_DESCRIPTOR_SET, ServerReflectionRequest};

use crate::{answer, encoded, of_shop, respond, shop};

const ORDERS: &str = "shop/orders.proto";
const ITSELF: &str = "grpc.reflection.v1.ServerReflection";

async fn services(builder: Builder) -> Vec<String> {
    let list = match answer(builder, Asked::ListServices(String::new())).await {
        Answer::ListServicesResponse(list) => Some(list),
        _ => None,
    };
    list.expect("a list").service.into_iter().map(|service| service.name).collect()
}

async fn files(asked: Asked) -> Vec<Vec<u8>> {
    let files = match answer(of_shop(), asked.clone()).await {
        Answer::FileDescriptorResponse(files) => Ok(files),
        other => Err((asked, other)),
    };
    let files = files.expect("files").file_descriptor_proto;
    files.iter().map(|file| file.to_vec()).collect()
}

async fn names(asked: Asked) -> Vec<String> {
    let files = files(asked).await;
    let name = |file: &Vec<u8>| {
        FileDescriptorProto::decode(&file[..]).expect("a file").name.expect("it has a name")
    };
    files.iter().map(name).collect()
}

/// The numbers of the extensions of a message, as they are answered.
async fn numbers(of: &str) -> Vec<i32> {
    let asked = Asked::AllExtensionNumbersOfType(of.to_owned());
    let numbers = match answer(of_shop(), asked).await {
        Answer::AllExtensionNumbersResponse(numbers) => Ok(numbers),
        other => Err(other),
    };
    let numbers = numbers.expect("numbers");
    assert_eq!(numbers.base_type_name, of);
    numbers.extension_number
}

/// The code of an error within the stream; it names what was asked for.
async fn code(asked: Asked, named: &str) -> Code {
    let error = match answer(of_shop(), asked.clone()).await {
        Answer::ErrorResponse(error) => Ok(error),
        other => Err((asked, other)),
    };
    let error = error.expect("an error");
    assert!(error.error_message.contains(named), "{}", error.error_message);
    Code::from(error.error_code)
}

fn extension(of: &str, extension_number: i32) -> Asked {
    let containing_type = of.to_owned();
    Asked::FileContainingExtension(ExtensionRequest { containing_type, extension_number })
}

#[tokio::test]
async fn services_are_listed_with_the_reflection_service_itself_unless_it_is_left_out() {
    assert_eq!(services(of_shop()).await, ["shop.Orders", "shop.Audit", ITSELF]);
    assert_eq!(services(Builder::configure()).await, [ITSELF]);
    let without = of_shop().include_reflection_service(false);
    assert_eq!(services(without).await, ["shop.Orders", "shop.Audit"]);
    let one = of_shop().with_service_name("shop.Audit");
    assert_eq!(services(one).await, ["shop.Audit"]);
}

#[tokio::test]
async fn a_file_comes_first_and_then_all_that_it_imports_once() {
    let found = names(Asked::FileByFilename(ORDERS.to_owned())).await;
    let options = ["verbwire/options.proto", "google/protobuf/descriptor.proto"];
    assert_eq!(found, [ORDERS, "shop/items.proto", options[0], options[1]]);
    assert_eq!(names(Asked::FileByFilename("shop/items.proto".to_owned())).await.len(), 1);
}

#[tokio::test]
async fn files_are_sent_byte_by_byte_as_they_were_registered() {
    let found = files(Asked::FileByFilename(ORDERS.to_owned())).await;
    let expected = encoded(shop(), ORDERS);
    assert_eq!(found[0], expected);
    let again = FileDescriptorProto::decode(&expected[..]).expect("a file").encode_to_vec();
    assert_ne!(again, expected, "the option of its method would be lost by decoding");
    let own = files(Asked::FileContainingSymbol(ITSELF.to_owned())).await;
    assert_eq!(own, [encoded(FILE_DESCRIPTOR_SET, "grpc/reflection/v1/reflection.proto")]);
}

#[tokio::test]
async fn a_symbol_of_every_kind_is_found() {
    for (symbol, file) in [
        ("shop.Orders", ORDERS),
        ("shop.Orders.Place", ORDERS),
        ("shop.Audit.Watch", ORDERS),
        ("shop.Order", ORDERS),
        ("shop.Order.lines", ORDERS),
        ("shop.Order.payment", ORDERS),
        ("shop.Order.card", ORDERS),
        ("shop.Order.Line", ORDERS),
        ("shop.Order.Line.item", ORDERS),
        ("shop.Order.Line.Unit", ORDERS),
        ("shop.Order.Line.PIECE", ORDERS),
        ("shop.Item", "shop/items.proto"),
        ("shop.Size", "shop/items.proto"),
        ("shop.SMALL", "shop/items.proto"),
        ("verbwire.method", "verbwire/options.proto"),
        ("google.protobuf.MethodOptions", "google/protobuf/descriptor.proto"),
    ] {
        let found = names(Asked::FileContainingSymbol(symbol.to_owned())).await;
        assert_eq!(found[0], file, "of {symbol}");
    }
}

#[tokio::test]
async fn extensions_are_found_by_number() {
    let of = "google.protobuf.MethodOptions";
    let [number] = numbers(of).await[..] else { panic!("there is one") };
    assert_eq!(names(extension(of, number)).await[0], "verbwire/options.proto");
    assert_eq!(code(extension(of, number + 1), of).await, Code::NotFound);
    assert!(numbers("shop.Order").await.is_empty(), "nothing extends it");
}

#[tokio::test]
async fn what_is_not_there_is_not_found_and_named() {
    let name = || "shop.Nothing".to_owned();
    for asked in [
        Asked::FileByFilename(name()),
        Asked::FileContainingSymbol(name()),
        Asked::AllExtensionNumbersOfType(name()),
        extension("shop.Nothing", 1),
    ] {
        assert_eq!(code(asked, "shop.Nothing").await, Code::NotFound);
    }
}

#[tokio::test]
async fn an_error_answers_its_request_and_the_stream_goes_on_in_order() {
    let asked = [
        None,
        Some(Asked::FileContainingSymbol("nothing".to_owned())),
        Some(Asked::ListServices(String::new())),
    ];
    let requests: Vec<_> = asked
        .into_iter()
        .map(|message_request| ServerReflectionRequest { host: "h".to_owned(), message_request })
        .collect();
    let responses = respond(of_shop(), requests.clone()).await;
    let echoed: Vec<_> = responses
        .iter()
        .map(|response| response.original_request.clone().expect("it is"))
        .collect();
    assert_eq!(echoed, requests);
    let codes: Vec<_> = responses
        .iter()
        .map(|response| match &response.message_response {
            Some(Answer::ErrorResponse(error)) => Code::from(error.error_code),
            _ => Code::Ok,
        })
        .collect();
    assert_eq!(codes, [Code::InvalidArgument, Code::NotFound, Code::Ok]);
}

#[tokio::test]
async fn a_file_of_two_sets_is_there_once() {
    let twice = of_shop().register_encoded_file_descriptor_set(shop());
    assert_eq!(services(twice).await, ["shop.Orders", "shop.Audit", ITSELF]);
}
