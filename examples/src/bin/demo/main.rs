//! What `make demo` runs: one server at several targets, a client for each, and what the calls cost.
//!
//!     demo [--seconds N] [TARGET]...    N seconds for each figure, default 0.5
//!
//! Besides at `tcp://`, `unix://` and `mem://`, the server listens at each TARGET, such as `rdma://10.0.0.1:0`, the
//! address of an RDMA device, in a build with the feature `rdma`. `make demo-device` does that in the device lab.
//!
//! Read `greeter-server.rs` and `greeter-client.rs` first: they are what a program of your own looks like.

mod measure;
mod server;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use measure::Figures;
use table::Row;

mod helloworld {
    verbwire::include_proto!("helloworld");
}
mod blockstore {
    verbwire::include_proto!("blockstore");
}

/// What can fail in many ways, which all end in one printed sentence.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "usage: demo [--seconds N] [TARGET]..., with N from 0.001 to 3600, and targets such as \
                     rdma://10.0.0.1:0";

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
    let Arguments { window, targets } = arguments(std::env::args().skip(1))?;
    let server = server::start(targets).await?;
    println!("serving at {}\n", server.targets().join(", "));
    let mut rows = Vec::new();
    for target in server.targets() {
        let channel = verbwire::connect(target).await?;
        rows.push(Row::new(target, Figures::measure(&channel, window).await?));
    }
    server.stop().await?;
    table::print(&rows);
    explain(window);
    Ok(())
}

struct Arguments {
    /// How long each figure is measured.
    window: Duration,
    /// Where the server listens besides.
    targets: Vec<String>,
}

fn arguments(words: impl Iterator<Item = String>) -> Outcome<Arguments> {
    let mut words = words.peekable();
    let mut window = Duration::from_millis(500);
    if words.next_if_eq("--seconds").is_some() {
        let seconds = words.next().and_then(|number| number.parse().ok());
        let Some(seconds @ 0.001..=3600.0) = seconds else { return Err(USAGE.into()) };
        window = Duration::from_secs_f64(seconds);
    }
    let targets: Vec<_> = words.collect();
    if targets.iter().any(|target| !target.contains("://")) {
        return Err(USAGE.into());
    }
    Ok(Arguments { window, targets })
}

fn explain(window: Duration) {
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
    if !cfg!(feature = "rdma") {
        println!(
            "RDMA: not in this build; the feature rdma brings rdma:// and what auto:// moves to, see README.md. `make demo-device` \
             shows it on emulated devices."
        );
    }
}
