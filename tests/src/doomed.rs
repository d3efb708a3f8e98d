//! Servers that die without a word.
//!
//! Over sockets a server is a process of its own, this binary run again, and dies by SIGKILL. In one
//! process it is a runtime of its own, and dies by being dropped.

use std::io::Read as _;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use verbwire::Error;

use crate::fixture::{Fixture, Serving, offering};
use crate::island::Island;
use crate::service::Desk;

/// The argument that turns this binary into a server at the target that follows.
pub const SERVE: &str = "--serve";

/// How a server dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Its process is killed.
    Process,
    /// Its runtime is dropped.
    Runtime,
}

/// A server that lives until it is killed.
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
    /// Starts a server at `target`.
    ///
    /// # Panics
    ///
    /// If it does not begin to serve.
    pub async fn start(fixture: &Fixture, target: &str) -> Self {
        match fixture.backend().death {
            Death::Process => Self::start_process(target).await,
            Death::Runtime => Self::start_runtime(target.to_owned()).await,
        }
    }

    async fn start_process(target: &str) -> Self {
        let program = std::env::current_exe().expect("this binary has a path");
        let mut child = Command::new(program)
            .args([SERVE, target])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this binary can be run again");
        let said = child.stdout.take().expect("stdout is piped");
        let line = BufReader::new(said).lines().next_line().await;
        let target = line.expect("stdout can be read");
        Self {
            target: target.expect("a server says where it listens"),
            life: Life::Process(Box::new(child)),
        }
    }

    async fn start_runtime(target: String) -> Self {
        let island = Island::new();
        let serving =
            island.run(async move { Serving::start(offering(&Desk::default()), &target).await });
        let target = serving.await.target().to_owned();
        Self { target, life: Life::Runtime(island) }
    }

    /// Where it listens, ports filled in.
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

/// Serves at `target` and says where, until this process is killed or its parent is gone.
///
/// # Errors
///
/// `target` cannot be bound.
pub async fn serve(target: &str) -> Result<(), Error> {
    let bound = offering(&Desk::default()).bind(&[target]).await?;
    println!("{}", bound.local_targets()[0]);
    std::thread::spawn(|| {
        // The parent writes nothing, and its end of the pipe closes when it ends.
        let _end = std::io::stdin().read(&mut [0]);
        std::process::exit(0)
    });
    bound.serve().await
}
