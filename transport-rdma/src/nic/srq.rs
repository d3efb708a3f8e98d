//! Shared receive queues: receives that the messages of many queue pairs take.

use std::any::Any;

use super::{NicError, RecvWr};

/// A shared receive queue.
///
/// Which queue pair took a receive is known when it completes. An empty queue is what a queue pair without receives is:
/// InfiniBand has the peer try again, and iWARP ends the connection of whoever sent.
pub trait Srq: Send + Sync + 'static {
    /// Posts receives, in order. The caller counts them and never has more posted than the queue holds.
    ///
    /// # Errors
    ///
    /// What is known of the batch is what is known of a failed post to a queue pair: all of it belongs to the NIC until
    /// the queue is destroyed. The queue pairs on it get fewer receives than was counted on, so that they are to end.
    fn post_recv(&self, batch: &[RecvWr]) -> Result<(), NicError>;

    /// Destroys the queue, after all queue pairs on it. When this returns no NIC touches the memory of its receives any
    /// more. May block; called once, off the runtime's workers.
    fn destroy(&self);

    /// The implementation's own type, for [`Nic::create_qp_on`](super::Nic).
    fn as_any(&self) -> &dyn Any;
}
