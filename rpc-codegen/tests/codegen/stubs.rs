//! The options that change clients, servers and the traits between.

use verbwire_codegen::{Builder, configure};

use crate::scratch::Scratch;

fn greeter(name: &str, builder: Builder) -> String {
    Scratch::new(name).compile_shared(builder, &["greeter.proto"]).package("helloworld")
}

/// The module of the client, and that of the server.
fn halves(text: &str) -> (&str, &str) {
    let border = text.find("/// Generated server of").expect("there is a server");
    let start = text.find("/// Generated client of").expect("there is a client");
    (&text[start..border], &text[border..])
}

#[test]
fn attributes_go_to_the_items_that_they_are_for() {
    let builder = configure()
        .client_mod_attribute("helloworld", "#[cfg(feature = \"client\")]")
        .client_attribute("Greeter", "#[must_use]")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .server_attribute("helloworld.Greeter", "#[repr(transparent)]")
        .trait_attribute(".helloworld", "#[diagnostic::on_unimplemented(message = \"no\")]");
    let text = greeter("stub_attributes", builder);
    let (client, server) = halves(&text);
    assert!(client.contains("#[cfg(feature = \"client\")]\npub mod greeter_client {"), "{client}");
    assert!(client.contains("#[must_use]\n    pub struct GreeterClient {"), "{client}");
    assert!(server.contains("#[cfg(feature = \"server\")]\npub mod greeter_server {"), "{server}");
    assert!(server.contains("#[repr(transparent)]\n    pub struct GreeterServer<S> {"), "{server}");
    assert!(server.contains("(message = \"no\")]\n    pub trait Greeter:"), "{server}");
}

#[test]
fn in_process_is_there_when_the_server_is() {
    let builder = configure()
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .server_mod_attribute(".", "#[doc(hidden)]");
    let text = greeter("conditional_server", builder);
    let (client, _) = halves(&text);
    assert!(
        client.contains("#[cfg(feature = \"server\")]\n        pub fn in_process<"),
        "{client}"
    );
}

#[test]
fn attributes_of_other_services_stay_away() {
    let builder = configure()
        .client_mod_attribute("hello", "#[must_use]")
        .client_attribute(".helloworld.Greet", "#[must_use]")
        .server_attribute("world.Greeter", "#[must_use]")
        .trait_attribute("", "#[must_use]");
    assert_eq!(greeter("other_attributes", builder), greeter("no_attributes", configure()));
}

#[test]
fn comments_that_are_not_wanted_are_left_out() {
    let builder = || configure().disable_comments([".helloworld.Greeter", "HelloReply.message"]);
    let text = greeter("disable_comments", builder());
    assert!(text.contains("/// Who wants a greeting."), "{text}");
    for gone in ["The greeting.", "Says hello.", "Greets by name."] {
        assert!(!text.contains(gone), "{gone}");
    }
    assert!(text.contains("/// Calls `helloworld.Greeter.SayHello`."), "{text}");

    let protos = [crate::scratch::PROTOS];
    let services = builder().services(&["greeter.proto"], &protos).expect("the protos are valid");
    assert!(services[0].comments.is_empty());
}

#[test]
fn methods_that_may_be_left_out_answer_unimplemented() {
    let text = greeter("default_stubs", configure().generate_default_stubs(true));
    let answer = "\"helloworld.Greeter.SayHello is not implemented by this server\"";
    assert!(text.contains(answer), "{text}");
    // A stream of replies is left out with its method.
    let builder = configure().generate_default_stubs(true);
    let scratch = Scratch::new("default_streams");
    let text = scratch.compile_shared(builder, &["streams.proto"]).package("streams");
    assert!(
        text.contains("BoxStream<super::Item>") && !text.contains("type DownAllStream"),
        "{text}"
    );
}
