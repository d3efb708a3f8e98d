//! What `make demo` runs: one server at three targets, a client for each, and what the calls cost.
//!
//!     demo [--seconds N]                N seconds for each figure, default 0.5
//!
//! Read `greeter-server.rs` and `greeter-client.rs` first: they are what a program of your own looks like.

mod measure;
mod server;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use measure::Figures;
use table::Row;
use verbwire::ErrorKind;

mod helloworld {
    verbwire::include_proto!("helloworld");
}
mod blockstore {
    verbwire::include_proto!("blockstore");
}

/// What can fail in many ways, which all end in one printed sentence.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome<()> {
    let window = window(std::env::args().skip(1))?;
    let server = server::start().await?;
    println!("serving at {}\n", server.targets().join(", "));
    let mut rows = Vec::new();
    for target in server.targets() {
        let channel = verbwire::connect(target).await?;
        rows.push(Row::new(target, Figures::measure(&channel, window).await?));
    }
    server.stop()?;
    table::print(&rows);
    explain(window).await;
    Ok(())
}

/// How long each figure is measured.
fn window(mut arguments: impl Iterator<Item = String>) -> Outcome<Duration> {
    let Some(option) = arguments.next() else {
        return Ok(Duration::from_millis(500));
    };
    let seconds = arguments.next().and_then(|number| number.parse().ok());
    match (option.as_str(), seconds, arguments.next()) {
        ("--seconds", Some(seconds @ 0.001..=3600.0), None) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("usage: demo [--seconds N], with N from 0.001 to 3600".into()),
    }
}

async fn explain(window: Duration) {
    println!(
        "\np50, p99   time of a call with {} B in it, one call at a time\n\
         calls/s    the same calls by {} callers on one connection\n\
         upload     1 MiB in each call, {} callers on one connection\n",
        measure::NAME_LEN,
        measure::CALLERS,
        measure::UPLOADERS
    );
    println!(
        "Each figure is from {window:?} of one process on this machine: it shows that calls run, not which \
         transport is fast.\nOver each, mem:// too, a call wakes another thread and is woken by it, and on a \
         busy machine that outweighs the rest.\n`make bench` compares with other frameworks."
    );
    // Asked instead of written down, so that this line is true of every version.
    match verbwire::connect("rdma://127.0.0.1:7000").await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!(
                "RDMA: not in this build; the feature rdma has a preview of rdma://, see README.md."
            );
        }
        Err(error) => println!("RDMA: {error}."),
        Ok(_) => println!("RDMA: rdma://127.0.0.1:7000 answers."),
    }
}
