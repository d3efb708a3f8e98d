//! `mem://name`: connections inside one process, for tests and documentation.
//!
//! Messages cross as they are: nothing is encoded, bodies are handed over by reference count. Everything
//! else is as on a network: bounded queues, limits, HELLO, closing. Names belong to the process; a name is
//! free again when its listener is dropped.
//!
//! * [`MemTransport`]: connects and listens, over the process's table of names (`door`).
//! * `connection`: the two queues of a connection.

mod connection;
mod door;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{BoxFuture, Established, Listener, LocalSide, Secrecy, Target, Transport};
use crate::buf::Buffer;
use crate::error::{Error, ErrorKind};

use door::{Door, Knock, MemListener};

/// The transport of `mem://` targets.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemTransport;

impl Transport for MemTransport {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        Box::pin(async move {
            let door = Door::find(target.address()).ok_or_else(|| {
                let message = format!(
                    "nothing listens at {target} in this process: bind a server there first"
                );
                Error::new(ErrorKind::Unreachable, message)
            })?;
            let deadline = local.deadline;
            let (answer, answered) = oneshot::channel();
            door.knock(Knock { local, answer });
            // Who waits must not keep the door: with its listener goes the knock, and the wait ends.
            drop(door);
            match timeout_at(deadline, answered).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_gone)) => Err(Error::new(
                    ErrorKind::Unreachable,
                    format!("the server at {target} stopped before it answered"),
                )),
                Err(_elapsed) => Err(Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "the server at {target} said no HELLO in time: is its runtime running?"
                    ),
                )),
            }
        })
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        Box::pin(async move {
            let listener = MemListener::bind(target)?;
            Ok(Box::new(listener) as Box<dyn Listener>)
        })
    }

    fn secrecy(&self) -> Secrecy {
        Secrecy::Local
    }

    fn alloc(&self, len: usize, _deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(std::future::ready(Buffer::zeroed(len)))
    }
}

#[cfg(test)]
mod tests;
