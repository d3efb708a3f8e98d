use std::any::{Any, TypeId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;
use crate::client::link::Link;
use crate::client::methods::MethodNumbers;
use crate::client::table::Table;
use crate::config::{ClientConfig, Limits, Random};
use crate::message::MethodId;
use crate::proto::hello::Identity;
use crate::pulse::Pulse;
use crate::status::{Code, Executed};
use crate::transport::mem::MemTransport;
use crate::transport::{BoxFuture, Connection, Established, Path};
use crate::wire::Hello;

const MINUTE: Duration = Duration::from_secs(60);

/// A connection whose send queue is full, and whose messages come with the word that there are no more.
#[derive(Default)]
struct Full {
    revoked: AtomicUsize,
    arrived: Mutex<Vec<Incoming>>,
}

impl Connection for Full {
    fn try_send(&self, outgoing: Outgoing) -> Result<(), SendError> {
        Err(SendError::Full(Box::new(outgoing)))
    }

    fn poll_ready(&self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) -> Poll<Result<(), Error>> {
        received.append(&mut self.arrived.lock());
        Poll::Pending
    }

    fn revoke(&self, _call: CallId) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
    }

    fn close(&self, _cause: Error) {}

    fn retire(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn path(&self) -> Path {
        Path { transport: "full", local: String::new(), peer: String::new() }
    }

    fn capability(&self, _id: TypeId) -> Option<&(dyn Any + Send + Sync)> {
        None
    }
}

fn link(connection: &Arc<Full>, table: &Arc<Table>) -> Link {
    let peer = Identity::new(Random::from_seed(1)).hello(&Limits::default());
    let established = Established { connection: Arc::clone(connection) as _, peer };
    let config = ClientConfig { default_timeout: MINUTE, ..ClientConfig::default() };
    let methods = Arc::new(Mutex::new(MethodNumbers::new(1)));
    Link::new(Arc::new(MemTransport), Arc::clone(table), established, &config, methods, 1000)
}

/// Begins a call that nobody is woken for.
fn begin(table: &Table) -> CallId {
    let begun = table
        .with(|calls| calls.begin(MethodId(1), Instant::now() + MINUTE, Waker::noop().clone()));
    begun.expect("open").call
}

/// No other poll may come that would bring them.
#[tokio::test(start_paused = true)]
async fn messages_behind_which_there_are_no_more_are_delivered_in_the_same_poll() {
    let (connection, table) = (Arc::new(Full::default()), Arc::new(Table::default()));
    let link = link(&connection, &table);
    let call = begin(&table);
    let head = Head::Response { call, code: Code::Ok, executed: Executed::Yes, messages: None };
    connection.arrived.lock().push(Incoming { message: Message::bare(head) });
    let mut driver = Driver::new(Arc::clone(link.shared()), Pulse::new(None, &Hello::default()));
    assert!(Pin::new(&mut driver).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let outcome = table.with(|calls| calls.poll_outcome(call, Waker::noop()));
    assert!(matches!(outcome, Poll::Ready(Ok(_))));
}

/// Revoking wakes the driver, so that a driver which revoked before its CANCEL was taken polled itself without
/// end for as long as the queue was full.
#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_not_revoked_again_and_again_while_the_queue_is_full() {
    let (connection, table) = (Arc::new(Full::default()), Arc::new(Table::default()));
    let link = link(&connection, &table);
    link.abandon(begin(&table));
    let mut driver = Driver::new(Arc::clone(link.shared()), Pulse::new(None, &Hello::default()));
    for _ in 0..3 {
        assert!(Pin::new(&mut driver).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(connection.revoked.load(Ordering::Relaxed), 0);
    assert!(table.with(|calls| calls.poll_cancel()).is_some(), "its CANCEL still waits");
}

#[tokio::test(start_paused = true)]
async fn calls_learn_whether_the_runtime_ended_or_the_task_panicked() {
    for (panics, words) in [(true, "panicked"), (false, "shut down")] {
        let (connection, table) = (Arc::new(Full::default()), Arc::new(Table::default()));
        let link = link(&connection, &table);
        let call = begin(&table);
        let driver = Driver::new(Arc::clone(link.shared()), Pulse::new(None, &Hello::default()));
        let task = tokio::spawn(async move {
            let _driver = driver;
            assert!(!panics, "as told");
        });
        assert_eq!(task.await.is_err(), panics);
        let outcome = table.with(|calls| calls.poll_outcome(call, Waker::noop()));
        let Poll::Ready(Err(status)) = outcome else { panic!("the call has not ended") };
        assert!(status.message().contains(words), "{status}");
    }
}
