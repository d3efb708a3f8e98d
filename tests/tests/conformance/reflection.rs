//! The standard reflection service.

use verbwire::{Channel, Code};
use verbwire_reflection::Builder;
use verbwire_reflection::pb::ServerReflectionRequest;
use verbwire_reflection::pb::server_reflection_client::ServerReflectionClient;
use verbwire_reflection::pb::server_reflection_request::MessageRequest as Asked;
use verbwire_reflection::pb::server_reflection_response::MessageResponse as Answer;
use verbwire_tests::backends::Place;
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::Fixture;
use verbwire_tests::service::Desk;
use verbwire_tests::streams::fed;

pub(crate) const CASES: &[Case] = &[case!(reflection_describes_the_services_of_a_server)];

async fn reflection_describes_the_services_of_a_server(fixture: Fixture) {
    let builder = Builder::configure()
        .register_encoded_file_descriptor_set(verbwire_health::pb::FILE_DESCRIPTOR_SET);
    let reflection = builder.build_v1().expect("the set is the generator's");
    let channel = if fixture.backend().place == Place::InProcess {
        Channel::in_process(reflection)
    } else {
        let builder = fixture.offering(&Desk::default()).add_service(reflection);
        fixture.serve(builder).await.connect().await
    };
    let (sender, requests) = fed();
    let replies = ServerReflectionClient::new(channel).server_reflection_info(requests).await;
    let mut replies = replies.expect("it begins").into_inner();
    // Each is answered before the next is asked, on one stream.
    let mut answers = Vec::new();
    let names = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"];
    for asked in [
        Asked::ListServices(String::new()),
        Asked::FileContainingSymbol(names[0].to_owned()),
        Asked::FileContainingSymbol("grpc.health.v1.Nothing".to_owned()),
    ] {
        let message_request = Some(asked);
        let request = ServerReflectionRequest { host: String::new(), message_request };
        sender.send(request.clone()).await.expect("the stream is open");
        let reply = replies.message().await.expect("no error").expect("it goes on");
        assert_eq!(reply.original_request, Some(request));
        answers.push(reply.message_response.expect("there is an answer"));
    }
    drop(sender);
    assert!(replies.message().await.expect("no error").is_none(), "it ends with its requests");
    let set = verbwire_health::pb::FILE_DESCRIPTOR_SET;
    let is_right = matches!(
        &answers[..],
        [
            Answer::ListServicesResponse(list),
            Answer::FileDescriptorResponse(files),
            Answer::ErrorResponse(error),
        ] if list.service.iter().map(|service| &*service.name).eq(names)
            && files.file_descriptor_proto.iter().all(|file| file.len() > 100 && set.ends_with(file))
            && files.file_descriptor_proto.len() == 1
            && error.error_code == i32::from(Code::NotFound)
    );
    assert!(is_right, "{answers:?}");
}
