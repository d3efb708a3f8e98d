//! Client and server in two guests of the device lab, on a wire that loses packets: `lab pair`.
//!
//! Guest 1 serves, guest 2 calls, and both drop some of what they send. Each guest's drop counter has to have moved.
//!
//! * `direct`: calls over the device alone.
//! * `auto`: calls over TCP with the device beside it, at several rates of loss, and with the wire cut for a while.
//! * `site`: how the guests meet, and how packets get lost.

mod auto;
mod direct;
mod site;

use site::{Host, Outcome};

fn main() -> Outcome {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let host = Host::here()?;
        direct::run(host).await?;
        auto::run(host).await
    })
}
