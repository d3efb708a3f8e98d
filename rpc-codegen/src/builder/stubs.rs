//! Options of clients, servers and the traits between.

use super::Builder;
use crate::emit::{HandlerBody, HandlerFuture, Receiver};

/// # Clients and servers
impl Builder {
    /// Whether clients are generated. They are by default.
    pub fn build_client(mut self, enable: bool) -> Self {
        self.stubs.client = enable;
        self
    }

    /// Whether service traits and servers are generated. They are by default. Without them, clients have no `in_process`.
    pub fn build_server(mut self, enable: bool) -> Self {
        self.stubs.server = enable;
        self
    }

    /// Whether the methods of service traits return boxed futures, as the macro of the `async-trait` crate makes them. They do
    /// not by default.
    ///
    /// For services that are trait objects, `Arc<dyn Greeter>`, and for implementations that have the macro already. It costs an
    /// allocation per call. The crate that implements the trait names `async-trait` in its manifest; generated code does not need it.
    ///
    /// ```text
    /// #[async_trait::async_trait]
    /// impl Greeter for Polite {
    ///     async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> { .. }
    /// }
    ///
    /// let chosen: Arc<dyn Greeter> = Arc::new(Polite);
    /// let server = Server::builder().add_service(GreeterServer::from_arc(chosen));
    /// ```
    pub fn async_trait(mut self, enable: bool) -> Self {
        self.stubs.handlers.future =
            if enable { HandlerFuture::AsyncTrait } else { HandlerFuture::Unboxed };
        self
    }

    /// Whether the methods of service traits take `self: Arc<Self>`, which a handler can move into a task, instead of `&self`.
    pub fn use_arc_self(mut self, enable: bool) -> Self {
        self.stubs.handlers.receiver = if enable { Receiver::Arc } else { Receiver::Reference };
        self
    }

    /// Whether an implementation may leave methods out, which then answer `Unimplemented`. By default it is a compile error,
    /// so that a method that was added to the `.proto` file is not forgotten. Replies in a stream are then a `BoxStream`
    /// instead of a type that the implementation names.
    pub fn generate_default_stubs(mut self, enable: bool) -> Self {
        self.stubs.handlers.body =
            if enable { HandlerBody::Unimplemented } else { HandlerBody::Required };
        self
    }

    /// Adds an attribute to the modules of clients. The path is that of a service, or of a package.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), verbwire_codegen::Error> {
    /// verbwire_codegen::configure()
    ///     .client_mod_attribute(".", r#"#[cfg(feature = "client")]"#)
    ///     .server_mod_attribute(".", r#"#[cfg(feature = "server")]"#)
    ///     .compile(&["proto/store.proto"], &["proto"])
    /// # }
    /// ```
    pub fn client_mod_attribute(
        mut self,
        path: impl Into<String>,
        attribute: impl Into<String>,
    ) -> Self {
        self.stubs.client_mod_attributes.push(path.into(), attribute.into());
        self
    }

    /// Adds an attribute to the structs of clients. The path is that of a service.
    pub fn client_attribute(
        mut self,
        path: impl Into<String>,
        attribute: impl Into<String>,
    ) -> Self {
        self.stubs.client_attributes.push(path.into(), attribute.into());
        self
    }

    /// Adds an attribute to the modules of servers. The path is that of a service, or of a package.
    ///
    /// With a `#[cfg(..)]`, the client's `in_process` is there under the same condition.
    pub fn server_mod_attribute(
        mut self,
        path: impl Into<String>,
        attribute: impl Into<String>,
    ) -> Self {
        self.stubs.server_mod_attributes.push(path.into(), attribute.into());
        self
    }

    /// Adds an attribute to the structs of servers. The path is that of a service.
    pub fn server_attribute(
        mut self,
        path: impl Into<String>,
        attribute: impl Into<String>,
    ) -> Self {
        self.stubs.server_attributes.push(path.into(), attribute.into());
        self
    }

    /// Adds an attribute to the traits that implementations implement, such as that of a mocking crate. The path is that of a
    /// service.
    pub fn trait_attribute(
        mut self,
        path: impl Into<String>,
        attribute: impl Into<String>,
    ) -> Self {
        self.stubs.trait_attributes.push(path.into(), attribute.into());
        self
    }
}
