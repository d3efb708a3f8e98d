//! A runtime on a thread of its own that stops being driven, or ends, when a case says so.

use std::future::Future;
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};

/// A current-thread runtime that the case has in its hands.
#[derive(Debug)]
pub struct Island {
    handle: Handle,
    commands: mpsc::UnboundedSender<Command>,
    sunk: oneshot::Receiver<()>,
}

#[derive(Debug)]
enum Command {
    /// Drive no task until the next command.
    Freeze(oneshot::Sender<()>),
    Thaw,
}

impl Island {
    /// A runtime that is driven.
    ///
    /// # Panics
    ///
    /// If the system gives no thread.
    pub fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("the system gives what a runtime needs");
        let handle = runtime.handle().clone();
        let (commands, orders) = mpsc::unbounded_channel();
        let (sink, sunk) = oneshot::channel();
        thread::spawn(move || {
            drive(&runtime, orders);
            drop(runtime);
            // The case may have ended before.
            let _told = sink.send(());
        });
        Self { handle, commands, sunk }
    }

    /// Runs `work` on this runtime and waits for it.
    pub async fn run<F>(&self, work: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let ran = self.handle.spawn(work).await;
        ran.expect("the work of a case does not panic, and the runtime lives")
    }

    /// Stops driving: sockets stay open, tasks stay where they are.
    pub async fn freeze(&self) {
        let (done, frozen) = oneshot::channel();
        self.command(Command::Freeze(done));
        frozen.await.expect("the thread answers before it stops");
    }

    /// Drives again.
    pub fn thaw(&self) {
        self.command(Command::Thaw);
    }

    /// Drops the runtime with all its tasks, and waits until that is done.
    pub async fn sink(self) {
        let Self { commands, sunk, handle: _ } = self;
        drop(commands);
        sunk.await.expect("the thread says when it ends");
    }

    fn command(&self, command: Command) {
        let sent = self.commands.send(command);
        sent.expect("the thread lives as long as its island");
    }
}

impl Default for Island {
    fn default() -> Self {
        Self::new()
    }
}

/// Drives `runtime` until the orders end.
fn drive(runtime: &Runtime, mut orders: mpsc::UnboundedReceiver<Command>) {
    let mut next = runtime.block_on(orders.recv());
    while let Some(command) = next {
        next = match command {
            Command::Freeze(done) => {
                // Frozen all the same if the case has stopped waiting for it.
                let _told = done.send(());
                orders.blocking_recv()
            }
            Command::Thaw => runtime.block_on(orders.recv()),
        };
    }
}
