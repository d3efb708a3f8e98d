//! Descriptors of the libraries in the runtime's reactor.
//!
//! The runtime's epoll is edge triggered. So a descriptor is made non-blocking, it is read until it is empty,
//! and only then is its readiness cleared ([`Readable::poll`]).

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use rdma_sys::{
    ibv_comp_channel, ibv_cq, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::context::Context;
use super::ret::{CallError, Errno, minus_one, non_null, zero_or_errno};

/// What one attempt to read gave.
pub(super) enum Read<T> {
    Something(T),
    Empty,
}

/// What fails where there is no runtime, or one that does no I/O.
pub(super) const NEEDS_IO: &str = "watching a descriptor on the current tokio runtime";

/// An object with a descriptor.
///
/// # Safety
///
/// `as_raw_fd` gives the same open descriptor until the object drops.
pub(super) unsafe trait Descriptor: AsRawFd {}

/// An object with a descriptor, owned, so that it is out of the reactor before it is closed.
pub(super) struct Readable<T: Descriptor> {
    fd: AsyncFd<T>,
}

impl<T: Descriptor> Readable<T> {
    /// Puts it into the reactor of the runtime that this is called on.
    pub(super) fn new(object: T) -> Result<Self, CallError> {
        set_nonblocking(object.as_raw_fd())?;
        let no_io = CallError { call: NEEDS_IO, errno: Errno(libc::ENOTSUP) };
        if Handle::try_current().is_err() {
            return Err(no_io);
        }
        let register = || {
            #[allow(
                deprecated,
                reason = "its successor, newer than the tokio asked for, asks for what `Descriptor` promises"
            )]
            AsyncFd::with_interest(object, Interest::READABLE)
        };
        // A runtime without I/O panics, and there is no way to ask it before. The object is dropped then.
        let fd = catch_unwind(AssertUnwindSafe(register)).map_err(|_panic| no_io)?;
        let fd = fd.map_err(|error| {
            let errno = Errno(error.raw_os_error().unwrap_or(libc::ENOTSUP));
            CallError { call: "watching a descriptor of verbs", errno }
        })?;
        Ok(Self { fd })
    }

    pub(super) fn get(&self) -> &T {
        self.fd.get_ref()
    }

    /// Reads once, and waits if there is nothing. For descriptors that hold one thing at most: what would be
    /// left is seen only with the next thing.
    pub(super) fn poll_one<R>(
        &self,
        cx: &mut TaskContext<'_>,
        read: impl Fn(&T) -> Result<Read<R>, CallError>,
    ) -> Poll<Result<R, CallError>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx)).map_err(waiting_failed)?;
            let taken = read(guard.get_inner())?;
            guard.clear_ready();
            if let Read::Something(value) = taken {
                return Poll::Ready(Ok(value));
            }
        }
    }

    /// Reads until there is something, or waits.
    pub(super) fn poll<R>(
        &self,
        cx: &mut TaskContext<'_>,
        read: impl Fn(&T) -> Result<Read<R>, CallError>,
    ) -> Poll<Result<R, CallError>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx)).map_err(waiting_failed)?;
            match read(guard.get_inner())? {
                Read::Something(value) => return Poll::Ready(Ok(value)),
                Read::Empty => guard.clear_ready(),
            }
        }
    }
}

fn waiting_failed(error: io::Error) -> CallError {
    let errno = Errno(error.raw_os_error().unwrap_or(libc::ECANCELED));
    CallError { call: "waiting for a descriptor of verbs", errno }
}

/// Turns `EAGAIN` into "empty".
pub(super) fn emptiness(result: Result<(), CallError>) -> Result<Read<()>, CallError> {
    match result {
        Ok(()) => Ok(Read::Something(())),
        Err(error) if matches!(error.errno.0, libc::EAGAIN | libc::EINTR) => Ok(Read::Empty),
        Err(error) => Err(error),
    }
}

/// Makes reads of a descriptor return `EAGAIN` instead of waiting.
pub(super) fn set_nonblocking(fd: RawFd) -> Result<(), CallError> {
    // SAFETY: takes and gives numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(CallError { call: "fcntl", errno: Errno::last() });
    }
    // SAFETY: as above.
    let returned = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    minus_one("fcntl", returned)
}

/// A completion channel.
///
/// # Invariants
///
/// `raw` is a completion channel of `context` until `self` drops; nothing else destroys it. Completion queues
/// that use it are destroyed before.
pub(super) struct CompChannel {
    raw: NonNull<ibv_comp_channel>,
    _context: Arc<Context>,
}

// SAFETY: libibverbs is thread safe; see `Context`.
unsafe impl Send for CompChannel {}
// SAFETY: as for `Send`.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    pub(super) fn create(context: &Arc<Context>) -> Result<Self, CallError> {
        // SAFETY: the context is open while it is borrowed.
        let raw = unsafe { ibv_create_comp_channel(context.raw()) };
        let raw = non_null("ibv_create_comp_channel", raw)?;
        Ok(Self { raw, _context: Arc::clone(context) })
    }

    pub(super) fn raw(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }

    /// Takes one event, which has to be acknowledged to the queue that it is of.
    pub(super) fn read(&self) -> Result<Read<*mut ibv_cq>, CallError> {
        let (mut cq, mut own) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel exists (invariant), and both places are this call's to write.
        let returned = unsafe { ibv_get_cq_event(self.raw(), &raw mut cq, &raw mut own) };
        let taken = emptiness(minus_one("ibv_get_cq_event", returned))?;
        Ok(match taken {
            Read::Something(()) => Read::Something(cq),
            Read::Empty => Read::Empty,
        })
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel exists (invariant); nothing writes to its descriptor.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

// SAFETY: a channel has one descriptor, from its creation to its destruction, which is by `Drop`.
unsafe impl Descriptor for CompChannel {}

impl Drop for CompChannel {
    fn drop(&mut self) {
        // SAFETY: the channel exists, and no queue uses it any more (invariant).
        let returned = unsafe { ibv_destroy_comp_channel(self.raw()) };
        if let Err(error) = zero_or_errno("ibv_destroy_comp_channel", returned) {
            tracing::error!(%error, "a completion channel stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, pipe};

    use super::*;

    // SAFETY: a pipe has one descriptor, until it is dropped.
    unsafe impl Descriptor for PipeReader {}

    fn register() -> Result<(), CallError> {
        let (reader, _writer) = pipe().expect("a pipe");
        Readable::new(reader).map(drop)
    }

    #[test]
    fn a_runtime_that_does_no_io_is_an_error_and_no_panic() {
        let needs_io = Err(CallError { call: NEEDS_IO, errno: Errno(libc::ENOTSUP) });
        assert_eq!(register(), needs_io);
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let without = builder.build().expect("a runtime");
        assert_eq!(without.block_on(async { register() }), needs_io);
        let with = builder.enable_io().build().expect("a runtime");
        assert_eq!(with.block_on(async { register() }), Ok(()));
    }
}
