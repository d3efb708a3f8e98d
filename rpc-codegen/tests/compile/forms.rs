//! The stubs in each form that options give them, and implementations as users write them.

use std::sync::Arc;

use verbwire::{Request, Response, Status};

pub mod streams;

macro_rules! form {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), "/verbwire-protos.rs"));
        }
    };
}

form!(
    /// `async_trait(true)`.
    boxed
);
form!(
    /// `use_arc_self(true)`.
    arc
);
form!(
    /// Both, and `generate_default_stubs(true)`.
    boxed_arc
);
form!(
    /// `generate_default_stubs(true)`, without comments.
    optional
);
form!(
    /// `build_server(false)`.
    client_only
);
form!(
    /// `build_client(false)`.
    server_only
);
form!(
    /// The server's module is compiled out.
    no_server
);
form!(
    /// Attributes, and what prost does otherwise on demand.
    attributes
);
form!(
    /// `extern_path` into this crate.
    extern_crate
);
form!(
    /// `compile_well_known_types(true)`.
    well_known_compiled
);

/// Messages without `Debug` need one by hand.
impl std::fmt::Debug for attributes::collisions::String {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("secret")
    }
}

/// A greeter.
#[derive(Debug)]
pub struct Polite {
    greeting: String,
}

#[async_trait::async_trait]
impl boxed::helloworld::greeter_server::Greeter for Polite {
    async fn say_hello(
        &self,
        request: Request<boxed::helloworld::HelloRequest>,
    ) -> Result<Response<boxed::helloworld::HelloReply>, Status> {
        let message = format!("{}, {}", self.greeting, request.into_inner().name);
        Ok(Response::new(boxed::helloworld::HelloReply { message, ..Default::default() }))
    }

    async fn say_goodbye(
        &self,
        _request: Request<boxed::helloworld::HelloRequest>,
    ) -> Result<Response<boxed::helloworld::HelloReply>, Status> {
        Ok(Response::new(boxed::helloworld::HelloReply::default()))
    }
}

impl arc::helloworld::greeter_server::Greeter for Polite {
    async fn say_hello(
        self: Arc<Self>,
        request: Request<arc::helloworld::HelloRequest>,
    ) -> Result<Response<arc::helloworld::HelloReply>, Status> {
        let message = format!("{}, {}", self.greeting, request.into_inner().name);
        Ok(Response::new(arc::helloworld::HelloReply { message, ..Default::default() }))
    }

    async fn say_goodbye(
        self: Arc<Self>,
        _request: Request<arc::helloworld::HelloRequest>,
    ) -> Result<Response<arc::helloworld::HelloReply>, Status> {
        Ok(Response::new(arc::helloworld::HelloReply::default()))
    }
}

#[async_trait::async_trait]
impl boxed_arc::helloworld::greeter_server::Greeter for Polite {
    async fn say_hello(
        self: Arc<Self>,
        request: Request<boxed_arc::helloworld::HelloRequest>,
    ) -> Result<Response<boxed_arc::helloworld::HelloReply>, Status> {
        let message = format!("{}, {}", self.greeting, request.into_inner().name);
        Ok(Response::new(boxed_arc::helloworld::HelloReply { message, ..Default::default() }))
    }
}

impl optional::helloworld::greeter_server::Greeter for Polite {}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use verbwire::Channel;

    use super::*;

    fn polite() -> Polite {
        Polite { greeting: "good day".to_owned() }
    }

    /// Polls to the end on this thread: calls in process never wait for anything here.
    pub(super) fn finish<F: Future>(future: F) -> F::Output {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(output) => output,
            std::task::Poll::Pending => unreachable!("the handlers do not wait"),
        }
    }

    #[test]
    fn a_trait_object_is_served() {
        use boxed::helloworld::{greeter_client::GreeterClient, greeter_server, HelloRequest};

        let chosen: Arc<dyn greeter_server::Greeter> = Arc::new(polite());
        let server = greeter_server::GreeterServer::from_arc(chosen);
        let client = GreeterClient::new(Channel::in_process(server));
        let request = HelloRequest { name: "you".to_owned() };
        let reply = finish(client.say_hello(request)).expect("the greeter answers");
        assert_eq!(reply.into_inner().message, "good day, you");
    }

    #[test]
    fn a_handler_has_an_arc_of_its_service() {
        use arc::helloworld::{greeter_client::GreeterClient, HelloRequest};

        let client = GreeterClient::in_process(polite());
        let request = HelloRequest { name: "you".to_owned() };
        let reply = finish(client.say_hello(request)).expect("the greeter answers");
        assert_eq!(reply.into_inner().message, "good day, you");
    }

    #[test]
    fn a_method_that_was_left_out_answers_unimplemented() {
        let boxed = {
            use boxed_arc::helloworld::{greeter_client::GreeterClient, HelloRequest};
            let client = GreeterClient::in_process(polite());
            assert!(finish(client.say_hello(HelloRequest::default())).is_ok());
            finish(client.say_goodbye(HelloRequest::default())).expect_err("it is left out")
        };
        let unboxed = {
            use optional::helloworld::{greeter_client::GreeterClient, HelloRequest};
            let client = GreeterClient::in_process(polite());
            finish(client.say_goodbye(HelloRequest::default())).expect_err("it is left out")
        };
        for status in [boxed, unboxed] {
            assert_eq!(status.code(), verbwire::Code::Unimplemented);
            assert_eq!(
                status.message(),
                "helloworld.Greeter.SayGoodbye is not implemented by this server"
            );
        }
    }

    #[test]
    fn the_descriptor_set_is_in_the_binary() {
        const SET: &[u8] = verbwire::include_file_descriptor_set!("first");
        // Field 1 of the set, the first file; its field 1 is its name.
        assert_eq!(SET[0], 0x0a);
        assert!(SET.windows(13).any(|part| part == b"greeter.proto"));
    }
}
