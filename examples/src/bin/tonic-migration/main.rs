//! One service before and after it moves from tonic: the same calls, over the same transport.
//!
//! `before` is code as it is written for tonic, with stubs that tonic generated; of all its lines, two are not tonic's. `after` is the
//! same with native stubs. In between, one end may be tonic's and the other native, so that clients and servers move one by one.
//!
//!     tonic-migration [TARGET]    default: tcp://127.0.0.1:0

use std::error::Error;
use std::process::ExitCode;

mod after;
mod before;

#[tokio::main]
async fn main() -> ExitCode {
    let target = std::env::args().nth(1).unwrap_or("tcp://127.0.0.1:0".to_owned());
    match migrate(&target).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tonic-migration: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn migrate(target: &str) -> Result<(), Box<dyn Error>> {
    let before = before::serve(target).await?;
    println!("tonic's client, tonic's service:   {}", before::greet(&before, "you").await?);
    println!("native client, tonic's service:    {}", after::greet(&before, "you").await?);
    let after = after::serve(target).await?;
    println!("tonic's client, native service:    {}", before::greet(&after, "you").await?);
    println!("native client, native service:     {}", after::greet(&after, "you").await?);
    for refused in [before::greet(&before, "").await.err(), after::greet(&after, "").await.err()] {
        println!("nobody to greet:                   {}", refused.ok_or("it was not refused")?);
    }
    Ok(())
}
