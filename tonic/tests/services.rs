//! Services that others wrote for tonic, as they are: tonic-health and tonic-reflection.

use std::time::Duration;

use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Served;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use verbwire::Server;
use verbwire_tonic::{AddTonic, Channel};

/// A channel to a server of `builder` over `mem://`.
async fn connect(builder: verbwire::Builder, name: &str) -> Channel {
    let target = format!("mem://{name}");
    let bound = builder.bind(&[&target]).await.expect("a fresh name");
    tokio::spawn(bound.serve());
    verbwire::connect(&target).await.expect("it listens").into()
}

#[tokio::test]
async fn health_is_checked_and_watched() {
    let (reporter, health) = tonic_health::server::health_reporter();
    let channel = connect(Server::builder().add_tonic(health), "tonic-health").await;
    let mut client = HealthClient::new(channel);
    let asked = || HealthCheckRequest { service: "shop.Orders".to_owned() };
    let status = client.check(asked()).await.expect_err("nobody has said it");
    assert_eq!(status.code(), tonic::Code::NotFound, "{status}");
    reporter.set_service_status("shop.Orders", ServingStatus::Serving).await;
    let reply = client.check(asked()).await.expect("checked").into_inner();
    assert_eq!(reply.status(), Served::Serving);
    let mut request = tonic::Request::new(asked());
    request.set_timeout(Duration::from_secs(30));
    let mut watch = client.watch(request).await.expect("watched").into_inner();
    for (set, expected) in [
        (None, Served::Serving),
        (Some(ServingStatus::NotServing), Served::NotServing),
        (Some(ServingStatus::Serving), Served::Serving),
    ] {
        if let Some(set) = set {
            reporter.set_service_status("shop.Orders", set).await;
        }
        let news = watch.message().await.expect("no error").expect("it goes on");
        assert_eq!(news.status(), expected);
    }
}

#[tokio::test]
async fn reflection_lists_services_and_gives_their_files() {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the set is good");
    let channel = connect(Server::builder().add_tonic(reflection), "tonic-reflection").await;
    let asked = |message_request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message_request),
    };
    let requests = [
        asked(MessageRequest::ListServices(String::new())),
        asked(MessageRequest::FileContainingSymbol("grpc.health.v1.Health".to_owned())),
    ];
    let mut client = ServerReflectionClient::new(channel);
    let requests = tonic::codegen::tokio_stream::iter(requests);
    let replies = client.server_reflection_info(requests).await.expect("reflected");
    let mut replies = replies.into_inner();
    let mut next = async || replies.message().await.expect("no error")?.message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = next().await else { panic!("no list") };
    let names: Vec<_> = list.service.iter().map(|service| &*service.name).collect();
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
    let Some(MessageResponse::FileDescriptorResponse(files)) = next().await else {
        panic!("no file");
    };
    assert!(!files.file_descriptor_proto.is_empty());
    assert!(next().await.is_none());
}
