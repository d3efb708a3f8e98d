//! Servers and clients that die without a word.
//!
//! Over sockets and devices each is a process of its own, this binary run again, and dies by SIGKILL. In one
//! process it is a runtime of its own, and dies by being dropped.

use std::future::pending;
use std::io::Read as _;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use verbwire::{Error, Request};

use crate::fixture::{Fixture, LONG, Serving, endpoint, offering};
use crate::island::Island;
use crate::pki;
use crate::proto::conformance::conformance_client::ConformanceClient;
use crate::proto::conformance::step::Act;
use crate::proto::conformance::{ScanRequest, Ticket};
use crate::service::Desk;

/// The calls that a doomed client has open, each with a ticket of its own; every other one has a stream of replies.
pub const CALLS: u64 = 20;

/// How it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Its process is killed.
    Process,
    /// Its runtime is dropped.
    Runtime,
}

/// What it does until it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Serves at a target.
    Server,
    /// Has [`CALLS`] calls open to the server at a target.
    Client,
}

impl Part {
    /// The part that this binary plays if its first argument is this one.
    pub fn of_argument(argument: &str) -> Option<Self> {
        [Self::Server, Self::Client].into_iter().find(|part| part.argument() == argument)
    }

    fn argument(self) -> &'static str {
        match self {
            Self::Server => "--serve",
            Self::Client => "--call",
        }
    }
}

/// A server or client that lives until it is killed.
#[derive(Debug)]
pub struct Doomed {
    target: String,
    life: Life,
}

#[derive(Debug)]
enum Life {
    /// Killed when dropped, so that a failing case leaves nothing behind.
    Process(Box<Child>),
    Runtime(Island),
}

impl Doomed {
    /// Starts it at `target`.
    ///
    /// # Panics
    ///
    /// If it does not begin to serve, or does not connect.
    pub async fn start(fixture: &Fixture, part: Part, target: &str) -> Self {
        match fixture.backend().death {
            Death::Process => Self::start_process(part, target).await,
            Death::Runtime => Self::start_runtime(part, target.to_owned()).await,
        }
    }

    async fn start_process(part: Part, target: &str) -> Self {
        let program = std::env::current_exe().expect("this binary has a path");
        let mut child = Command::new(program)
            .args([part.argument(), target])
            .envs(pki::environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this binary can be run again");
        let said = child.stdout.take().expect("stdout is piped");
        let line = BufReader::new(said).lines().next_line().await;
        let target = line.expect("stdout can be read").expect("it says at which target it is");
        Self { target, life: Life::Process(Box::new(child)) }
    }

    async fn start_runtime(part: Part, target: String) -> Self {
        let island = Island::new();
        let started = island.run(async move {
            match part {
                Part::Server => {
                    let serving = Serving::start(server(), &target).await;
                    serving.target().to_owned()
                }
                Part::Client => {
                    call(&target).await.expect("a server listens there");
                    target
                }
            }
        });
        Self { target: started.await, life: Life::Runtime(island) }
    }

    /// Where it listens, ports filled in, or what it is connected to.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Kills it, and waits until it is dead.
    pub async fn kill(self) {
        match self.life {
            Life::Process(mut child) => child.kill().await.expect("a child can be killed"),
            Life::Runtime(island) => island.sink().await,
        }
    }
}

/// Plays `part` and says at which target, until this process is killed or its parent is gone.
///
/// # Errors
///
/// `target` cannot be bound, or not be connected to.
pub async fn play(part: Part, target: &str) -> Result<(), Error> {
    std::thread::spawn(|| {
        // The parent writes nothing, and its end of the pipe closes when it ends.
        let _end = std::io::stdin().read(&mut [0]);
        std::process::exit(0)
    });
    match part {
        Part::Server => {
            let bound = pki::trusting(server(), &[target]).bind(&[target]).await?;
            println!("{}", bound.local_targets()[0]);
            bound.serve().await
        }
        Part::Client => {
            call(target).await?;
            println!("{target}");
            pending().await
        }
    }
}

/// The suite's services, and the health of the server, which serves.
fn server() -> verbwire::Builder {
    offering(&Desk::default()).add_service(verbwire_health::health_reporter().1)
}

fn patient<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LONG * 10);
    request
}

/// Connects and leaves tasks behind that hold the calls.
async fn call(target: &str) -> Result<(), Error> {
    let client = ConformanceClient::new(endpoint(target).connect().await?);
    for number in 0..CALLS {
        if number % 2 == 0 {
            tokio::spawn(client.hang(patient(Ticket { number })));
            continue;
        }
        // Its replies have begun, and do not end.
        let hangs = ScanRequest { ticket: number, then: Act::Hang.into(), ..Default::default() };
        let call = client.scan(patient(hangs));
        tokio::spawn(async move { call.await?.into_inner().message().await });
    }
    Ok(())
}
