//! A buffer that is out, the way back for it, and a place in the line for one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Chunk, Served, Store, closed};
use crate::pool::classes::Class;
use crate::pool::counts::Counts;
use crate::pool::error::PoolError;
use crate::pool::stock::{Place, Ticket};

/// A buffer that was handed out. Dropped, it returns.
pub(in crate::pool) struct Held<B: Chunk> {
    /// `None` only when the buffer has moved on and `self` is about to drop.
    chunk: Option<B>,
    origin: Origin<B>,
}

const MOVED: &str = "a buffer moves on only when its holder is consumed";

impl<B: Chunk> Held<B> {
    pub(super) fn new(chunk: B, origin: Origin<B>) -> Self {
        Self { chunk: Some(chunk), origin }
    }

    pub(in crate::pool) fn chunk(&self) -> &B {
        self.chunk.as_ref().expect(MOVED)
    }

    pub(in crate::pool) fn chunk_mut(&mut self) -> &mut B {
        self.chunk.as_mut().expect(MOVED)
    }

    pub(in crate::pool) fn store(&self) -> &Arc<Store<B>> {
        &self.origin.store
    }

    /// The buffer, and the way back for it.
    pub(in crate::pool) fn split(mut self) -> (B, Origin<B>) {
        (self.chunk.take().expect(MOVED), self.origin.clone())
    }
}

impl<B: Chunk> Drop for Held<B> {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.origin.put(chunk);
        }
    }
}

/// Where a buffer came from.
pub(in crate::pool) struct Origin<B: Chunk> {
    place: Place,
    store: Arc<Store<B>>,
}

impl<B: Chunk> Origin<B> {
    pub(super) fn new(place: Place, store: Arc<Store<B>>) -> Self {
        Self { place, store }
    }

    #[cfg(test)]
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Puts the buffer back.
    pub(in crate::pool) fn put(&self, chunk: B) {
        self.store.put(self.place, chunk);
    }

    /// A received message holds the buffer from now on.
    pub(in crate::pool) fn pin(&self, bytes: usize) {
        self.store.pin(bytes);
    }

    /// Puts a buffer back that a received message has held.
    pub(in crate::pool) fn unpin(&self, chunk: B, bytes: usize) {
        self.store.unpin(bytes);
        self.put(chunk);
    }

    pub(in crate::pool) fn counts(&self) -> &Counts {
        &self.store.counts
    }
}

impl<B: Chunk> Clone for Origin<B> {
    fn clone(&self) -> Self {
        Self { place: self.place, store: Arc::clone(&self.store) }
    }
}

/// A place in the line; ready with the buffer.
pub(super) struct Waiting<B: Chunk> {
    receiver: oneshot::Receiver<Served<B>>,
    line: (Class, Ticket),
    store: Arc<Store<B>>,
    since: Instant,
}

impl<B: Chunk> Waiting<B> {
    pub(super) fn new(
        receiver: oneshot::Receiver<Served<B>>,
        line: (Class, Ticket),
        store: Arc<Store<B>>,
    ) -> Self {
        Self { receiver, line, store, since: Instant::now() }
    }

    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}

impl<B: Chunk> Future for Waiting<B> {
    type Output = Served<B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Served<B>> {
        let served = ready!(Pin::new(&mut self.receiver).poll(cx));
        Poll::Ready(served.unwrap_or_else(|_| Err(PoolError::Closed(closed()))))
    }
}

impl<B: Chunk> Drop for Waiting<B> {
    fn drop(&mut self) {
        self.store.counts.waited(self.since.elapsed());
        self.store.leave(self.line);
    }
}
