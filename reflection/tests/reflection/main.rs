//! The reflection service in this process: every kind of request, and what is wrong with descriptors.

mod answers;
mod sets;
mod snapshots;

use std::path::Path;
use std::sync::OnceLock;

use prost::Message;
use prost_types::FileDescriptorSet;
use verbwire::Channel;
use verbwire_reflection::pb::server_reflection_client::ServerReflectionClient;
use verbwire_reflection::pb::server_reflection_request::MessageRequest;
use verbwire_reflection::pb::server_reflection_response::MessageResponse;
use verbwire_reflection::pb::{ServerReflectionRequest, ServerReflectionResponse};
use verbwire_reflection::{Builder, Error};

/// The set that the generator writes for `tests/protos`.
fn shop() -> &'static [u8] {
    static SET: OnceLock<Vec<u8>> = OnceLock::new();
    SET.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shop");
        let path = folder.join("shop.bin");
        let generated = verbwire_codegen::configure()
            .out_dir(folder)
            .emit_rerun_if_changed(false)
            .file_descriptor_set_path(&path)
            .compile(&["tests/protos/shop/orders.proto"], &["tests/protos"]);
        generated.expect("the protos are valid");
        std::fs::read(path).expect("it was written")
    })
}

/// What is wrong with these sets.
fn error(sets: &[&[u8]]) -> Error {
    let builder = sets.iter().fold(Builder::configure(), |builder, set| {
        builder.register_encoded_file_descriptor_set(set)
    });
    builder.build_v1().expect_err("something is wrong with the sets")
}

async fn respond(
    builder: Builder,
    requests: Vec<ServerReflectionRequest>,
) -> Vec<ServerReflectionResponse> {
    let service = builder.build_v1().expect("the sets are right");
    let client = ServerReflectionClient::new(Channel::in_process(service));
    let replies = client.server_reflection_info(tokio_stream::iter(requests)).await;
    let mut replies = replies.expect("it begins").into_inner();
    let mut responses = Vec::new();
    while let Some(response) = replies.message().await.expect("no error ends it") {
        responses.push(response);
    }
    responses
}

async fn answer(builder: Builder, asked: MessageRequest) -> MessageResponse {
    let request =
        ServerReflectionRequest { host: "there".to_owned(), message_request: Some(asked) };
    let responses = respond(builder, vec![request.clone()]).await;
    let [response] = <[_; 1]>::try_from(responses).expect("one answer");
    assert_eq!((&*response.valid_host, response.original_request), ("there", Some(request)));
    response.message_response.expect("there is an answer")
}

fn of_shop() -> Builder {
    Builder::configure().register_encoded_file_descriptor_set(shop())
}

/// The encoded file of this name.
fn encoded(set: &[u8], name: &str) -> Vec<u8> {
    #[derive(Message)]
    struct Raw {
        #[prost(bytes = "vec", repeated, tag = "1")]
        file: Vec<Vec<u8>>,
    }
    let names = FileDescriptorSet::decode(set).expect("a set").file;
    let at = names.iter().position(|file| file.name() == name).expect("it has the file");
    Raw::decode(set).expect("a set").file.swap_remove(at)
}
