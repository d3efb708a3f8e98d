//! Calls `helloworld.Greeter` once and prints the greeting.
//!
//!     greeter-client [TARGET [NAME]]    default: tcp://127.0.0.1:7000 world

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use helloworld::HelloRequest;
use helloworld::greeter_client::GreeterClient;
use verbwire::Request;

mod helloworld {
    verbwire::include_proto!("helloworld");
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().unwrap_or("tcp://127.0.0.1:7000".to_owned());
    let name = arguments.next().unwrap_or("world".to_owned());
    if target.starts_with('-') || arguments.next().is_some() {
        eprintln!("usage: greeter-client [TARGET [NAME]], for example tcp://127.0.0.1:7000 world");
        return ExitCode::FAILURE;
    }
    match greet(&target, name).await {
        Ok(greeting) => {
            println!("{greeting}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("greeter-client: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn greet(target: &str, name: String) -> Result<String, Box<dyn Error>> {
    let channel = verbwire::connect(target).await?;
    let greeter = GreeterClient::new(channel);

    // A bare `HelloRequest` works too, and then has the channel's default deadline.
    let mut request = Request::new(HelloRequest { name });
    request.set_timeout(Duration::from_secs(1));
    let reply = greeter.say_hello(request).await?;
    Ok(reply.into_inner().message)
}
