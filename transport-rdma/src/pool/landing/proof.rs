//! What proves that a grant is closed. Each is made where the engine learns it, and used up once.

/// The peer's FIN came on the queue pair of its Writes: they are all placed, and none follows.
#[derive(Debug)]
pub struct Fenced(());

impl Fenced {
    /// A FIN for this grant has been received on the queue pair that carries its Writes.
    pub(crate) fn by_fin() -> Self {
        Self(())
    }
}

/// No Write for the grant follows any more.
#[derive(Debug)]
pub struct GrantClosed(());

impl GrantClosed {
    /// An ABORT_ACK for this grant, or a RESPONSE that closes it unused, has been received on the queue pair that
    /// carries its Writes.
    pub(crate) fn by_abort_ack() -> Self {
        Self(())
    }

    /// The queue pair that carries its Writes is destroyed: the call to destroy it has returned.
    pub(crate) fn by_destruction() -> Self {
        Self(())
    }

    /// The peer was never told of the grant: its frame was not posted.
    pub(crate) fn by_silence() -> Self {
        Self(())
    }
}

impl From<Fenced> for GrantClosed {
    fn from(_fin: Fenced) -> Self {
        Self(())
    }
}
