//! Serves `helloworld.Greeter` until Ctrl-C.
//!
//!     greeter-server [TARGET]...        default: tcp://127.0.0.1:7000

use std::process::ExitCode;

use helloworld::greeter_server::{Greeter, GreeterServer};
use helloworld::{HelloReply, HelloRequest};
use verbwire::{Error, Request, Response, Server, Status};

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
            return Err(Status::invalid_argument("name is empty; say who to greet"));
        }
        let message = format!("Hello {name}!");
        Ok(Response::new(HelloReply { message }))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut targets: Vec<String> = std::env::args().skip(1).collect();
    if targets.iter().any(|target| target.starts_with('-')) {
        eprintln!("usage: greeter-server [TARGET]..., for example tcp://127.0.0.1:7000");
        return ExitCode::FAILURE;
    }
    if targets.is_empty() {
        targets.push("tcp://127.0.0.1:7000".to_owned());
    }
    match serve(&targets).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter-server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(targets: &[String]) -> Result<(), Error> {
    let bound = Server::builder().add_service(GreeterServer::new(MyGreeter)).bind(targets).await?;
    for target in bound.local_targets() {
        println!("listening at {target}");
    }
    // Calls that run when Ctrl-C comes may finish; new ones are told to go elsewhere.
    bound.serve_with_shutdown(ctrl_c()).await
}

async fn ctrl_c() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        eprintln!("greeter-server: cannot wait for Ctrl-C ({error}), so it ends now");
    }
}
