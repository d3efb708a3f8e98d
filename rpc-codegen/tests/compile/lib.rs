//! Generated code has to compile without a warning, whatever the names in the `.proto` files are and whatever the crate
//! around it forbids.

#![deny(warnings, missing_docs, unreachable_pub, unused_qualifications, clippy::pedantic)]

verbwire::include_protos!();

pub mod forms;

/// The tree of the first call alone.
pub mod first {
    verbwire::include_protos!("first.rs");
}

/// The same packages, each included by itself.
pub mod single {
    /// Package `helloworld`.
    pub mod greeter {
        verbwire::include_proto!("helloworld");
    }

    /// No package, and the one that it names.
    pub mod no_package {
        verbwire::include_proto!("");

        /// Package `shop`.
        pub mod shop {
            /// Package `shop.items`.
            pub mod items {
                verbwire::include_proto!("shop.items");
            }
        }
    }
}

/// What is not used in a crate is not worth a warning either.
mod unused {
    verbwire::include_proto!("comments");
}

/// Uses of the stubs, as a user would write them.
pub mod uses {
    use std::future::Future;

    use verbwire::{Request, Response, Status};

    use crate::helloworld::greeter_client::GreeterClient;
    use crate::helloworld::greeter_server::{Greeter, GreeterServer};
    use crate::helloworld::{HelloReply, HelloRequest};

    /// A greeter.
    #[derive(Debug, Clone)]
    pub struct Polite;

    impl Greeter for Polite {
        async fn say_hello(
            &self,
            request: Request<HelloRequest>,
        ) -> Result<Response<HelloReply>, Status> {
            let reply = HelloReply {
                message: format!("hello, {}", request.into_inner().name),
                ..HelloReply::default()
            };
            Ok(Response::new(reply))
        }

        async fn say_goodbye(
            &self,
            _request: Request<HelloRequest>,
        ) -> Result<Response<HelloReply>, Status> {
            Ok(Response::new(HelloReply::default()))
        }
    }

    /// The service that a server takes.
    #[must_use]
    pub fn service() -> GreeterServer<Polite> {
        GreeterServer::new(Polite).clone()
    }

    /// A call that can be spawned.
    ///
    /// # Errors
    ///
    /// None: the greeter always answers.
    pub fn call() -> impl Future<Output = Result<HelloReply, Status>> + Send + 'static {
        let client = GreeterClient::in_process(Polite);
        async move {
            let request = HelloRequest { name: "you".to_owned() };
            let reply = client.clone().say_hello(request).await?;
            Ok(reply.into_inner())
        }
    }
}
