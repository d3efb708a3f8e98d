//! The load generator of the benchmark: one program for verbwire and every peer.
//!
//! Does: parses the command line, builds the runtime, generates load, measures, and prints one
//! JSON line. Owns: what a call, a warm-up and a measured second are, so that they are the same
//! for all. Does not: know any RPC framework, start a second process or compare anything; a
//! framework enters through [`Framework`], and `bench/run` starts and compares.
//!
//! | command | prints |
//! |---|---|
//! | `serve [--workers N]` | the bound address on the first line, then serves until killed |
//! | `load ADDRESS --callers N --size BYTES --seconds S [--server PID] [--workers N]` | rate, latency, CPU |
//! | `load ADDRESS .. --beside BYTES` | the same, while a payload of that length is sent again and again |
//! | `up ADDRESS --size BYTES --seconds S [--server PID]`, `down ..` | messages per second of one stream, CPU |
//! | `in-process --size BYTES --seconds S` | time and, if counted, heap allocations per call |
//! | `encode --size BYTES --seconds S` | time to encode one message |

mod args;
mod cpu;
mod load;
mod local;
mod stream;

use std::error::Error;
use std::process::ExitCode;

use bytes::Bytes;

use args::{Args, Command};

/// What a step of the benchmark returns; the error is printed and ends the process.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Reads how many heap allocations, reallocations included, the process has made so far.
pub type AllocationCount = fn() -> usize;

/// A client whose one method sends a payload and returns the one that came back.
///
/// Each caller of a load owns a clone; all clones share one connection.
pub trait Echo: Clone + Send + 'static {
    /// Sends `payload` in one unary call and returns the reply's payload.
    fn echo(&mut self, payload: Bytes) -> impl Future<Output = Outcome<Bytes>> + Send;

    /// Sends `payload` in one unary call and returns how many bytes of it the server had.
    fn take(&mut self, _payload: Bytes) -> impl Future<Output = Outcome<u64>> + Send {
        async { Err("this framework is not tried with long payloads".into()) }
    }

    /// Sends `payload` so many times in one stream and returns how many of them the server had.
    fn up(
        &mut self,
        _payload: Bytes,
        _messages: usize,
    ) -> impl Future<Output = Outcome<u64>> + Send {
        async { Err("this framework has no streams".into()) }
    }

    /// Asks for a stream of so many payloads, each of `size` bytes, and returns how many came.
    fn down(
        &mut self,
        _size: usize,
        _messages: usize,
    ) -> impl Future<Output = Outcome<u64>> + Send {
        async { Err("this framework has no streams".into()) }
    }
}

/// An RPC framework under test, with the settings it is tested with.
pub trait Framework {
    /// Its client over a connection.
    type Client: Echo;
    /// Its client of a service in the same process.
    type LocalClient: Echo;

    /// Binds a free port of the loopback interface, calls `announce` with the address and serves.
    fn serve(announce: impl FnOnce(String) + Send) -> impl Future<Output = Outcome<()>>;

    /// Opens one connection to what `serve` announced.
    fn connect(address: &str) -> impl Future<Output = Outcome<Self::Client>>;

    /// Returns a client of a service in this process, without a socket.
    fn in_process() -> impl Future<Output = Outcome<Self::LocalClient>>;

    /// Encodes a message that carries `payload`, as a call does, and returns its length in bytes.
    fn encode(payload: &Bytes) -> usize;
}

/// Runs the command that the process was started with.
///
/// `allocations` is given by a binary that has a counting allocator. That one is for counting
/// only: an allocator that counts is slower, so its times are not comparable.
pub fn run<F: Framework>(allocations: Option<AllocationCount>) -> ExitCode {
    match Args::parse(std::env::args().skip(1)).and_then(|args| execute::<F>(args, allocations)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn execute<F: Framework>(args: Args, allocations: Option<AllocationCount>) -> Outcome<()> {
    let runtime = runtime(args.workers)?;
    match args.command {
        Command::Serve => runtime.block_on(F::serve(|address| println!("{address}"))),
        Command::Load(address) => runtime.block_on(async {
            let client = F::connect(&address).await?;
            let figures = load::run(client, &args.load).await?;
            println!("{figures}");
            Ok(())
        }),
        Command::Stream(address, way) => runtime.block_on(async {
            let client = F::connect(&address).await?;
            println!("{}", stream::run(client, way, &args.load).await?);
            Ok(())
        }),
        Command::InProcess => runtime.block_on(async {
            let client = F::in_process().await?;
            let figures = local::in_process(client, &args.load, allocations).await?;
            println!("{figures}");
            Ok(())
        }),
        Command::Encode => {
            println!("{}", local::encode::<F>(&args.load)?);
            Ok(())
        }
    }
}

/// One worker is a current-thread runtime, so that the default compares cost and not scheduling.
fn runtime(workers: usize) -> Outcome<tokio::runtime::Runtime> {
    let mut builder = match workers {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if workers > 1 {
        builder.worker_threads(workers);
    }
    Ok(builder.enable_all().build()?)
}
