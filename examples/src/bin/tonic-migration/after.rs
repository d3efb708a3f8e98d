//! The same, natively.

use std::error::Error;
use std::time::Duration;

use verbwire::{Request, Response, Server, Status};

use helloworld::greeter_client::GreeterClient;
use helloworld::greeter_server::{Greeter, GreeterServer};
use helloworld::{HelloReply, HelloRequest};

mod helloworld {
    verbwire::include_proto!("helloworld");
}

struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(Status::invalid_argument("whom shall I greet?"));
        }
        Ok(Response::new(HelloReply { message: format!("Hello {name}!") }))
    }
}

/// Serves until the program ends; where it listens.
pub(crate) async fn serve(target: &str) -> Result<String, Box<dyn Error>> {
    let server = Server::builder().add_service(GreeterServer::new(MyGreeter));
    let bound = server.bind(&[target]).await?;
    let target = bound.local_targets()[0].to_string();
    tokio::spawn(bound.serve());
    Ok(target)
}

/// Greets; what the service says.
pub(crate) async fn greet(target: &str, name: &str) -> Result<String, Box<dyn Error>> {
    let client = GreeterClient::new(verbwire::connect(target).await?);
    let mut request = Request::new(HelloRequest { name: name.to_owned() });
    request.set_timeout(Duration::from_secs(10));
    match client.say_hello(request).await {
        Ok(reply) => Ok(reply.into_inner().message),
        Err(status) => Err(status.message().into()),
    }
}
