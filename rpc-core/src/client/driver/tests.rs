use std::any::{Any, TypeId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::client::link::Link;
use crate::client::table::Table;
use crate::config::{Limits, Random};
use crate::message::MethodId;
use crate::proto::hello::Identity;
use crate::transport::mem::MemTransport;
use crate::transport::{BoxFuture, Connection, Established, Path};

/// A connection whose send queue is full.
#[derive(Default)]
struct Full {
    revoked: AtomicUsize,
}

impl Connection for Full {
    fn try_send(&self, outgoing: Outgoing) -> Result<(), SendError> {
        Err(SendError::Full(Box::new(outgoing)))
    }

    fn poll_ready(&self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_recv(&self, _: &mut Context<'_>, _: &mut Vec<Incoming>) -> Poll<Result<(), Error>> {
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

/// Revoking wakes the driver, so that a driver which revoked before its CANCEL was taken polled itself without
/// end for as long as the queue was full.
#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_not_revoked_again_and_again_while_the_queue_is_full() {
    let connection = Arc::new(Full::default());
    let peer = Identity::new(Random::from_seed(1)).hello(&Limits::default());
    let established = Established { connection: Arc::clone(&connection) as _, peer };
    let table = Arc::new(Table::default());
    let minute = Duration::from_secs(60);
    let link = Link::new(Arc::new(MemTransport), Arc::clone(&table), established, (minute, 1000));
    let begun = table
        .with(|calls| calls.begin(MethodId(1), Instant::now() + minute, Waker::noop().clone()))
        .expect("open");
    link.abandon(begun.call);
    let mut driver = Driver::new(Arc::clone(link.shared()));
    for _ in 0..3 {
        assert!(Pin::new(&mut driver).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(connection.revoked.load(Ordering::Relaxed), 0);
    assert!(table.with(|calls| calls.poll_cancel()).is_some(), "its CANCEL still waits");
}
