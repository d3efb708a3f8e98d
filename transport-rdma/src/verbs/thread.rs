//! The thread of a device: what must happen on it whether or not a runtime is there to do it.
//!
//! It reads the device's asynchronous events, and hears by an id of the connection manager, which is bound to the
//! device and used for nothing else, that the device is removed. A plain thread, since a device outlives runtimes.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread;

use verbwire_core::{Error, ErrorKind};

use super::channel::{Read, set_nonblocking};
use super::cm::{CmId, State, Step, removed};
use super::context::Context;
use super::events;
use super::fate::Fates;
use super::ret::{CallError, Errno};

/// The thread of a device. It ends when this is dropped.
pub(super) struct DeviceThread {
    /// Its closing is what the thread waits for besides events.
    _stop: PipeWriter,
}

/// What the thread looks after.
pub(super) struct Ward {
    pub(super) device: String,
    pub(super) context: Arc<Context>,
    pub(super) fates: Arc<Fates>,
    /// Bound to the device. `None` only once it gives no events any more.
    pub(super) sentinel: Option<CmId>,
}

impl DeviceThread {
    /// Begins to look after a device; calls `gone` when it is of no use any more.
    pub(super) fn start(
        ward: Ward,
        gone: impl Fn(&Error) + Send + 'static,
    ) -> Result<Self, CallError> {
        let failed = |error: std::io::Error| CallError {
            call: "starting a device's thread",
            errno: Errno(error.raw_os_error().unwrap_or(0)),
        };
        set_nonblocking(ward.context.as_raw_fd())?;
        let (stopped, stop) = pipe().map_err(failed)?;
        let thread = thread::Builder::new().name(format!("device-{}", ward.device));
        let duty = Duty { ward, stopped };
        thread.spawn(move || duty.run(&gone)).map_err(failed)?;
        Ok(Self { _stop: stop })
    }
}

/// The thread's own state.
struct Duty {
    ward: Ward,
    stopped: PipeReader,
}

/// Whether a thread has something left to do.
#[derive(PartialEq, Eq)]
enum Goes {
    On,
    Home,
}

impl Duty {
    fn run(mut self, gone: &dyn Fn(&Error)) {
        loop {
            match self.wait().map(|ready| self.handle_ready(ready, gone)) {
                Ok(Goes::On) => {}
                Ok(Goes::Home) => return,
                Err(error) => {
                    let device = &self.ward.device;
                    return tracing::error!(%error, device, "its events are not seen any more");
                }
            }
        }
    }

    /// Waits until something can be read; returns which: the end, the events, the sentinel.
    fn wait(&self) -> Result<[bool; 3], CallError> {
        // A negative descriptor is none.
        let sentinel = self.ward.sentinel.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        poll_readable([self.stopped.as_raw_fd(), self.ward.context.as_raw_fd(), sentinel])
    }

    fn handle_ready(&mut self, ready: [bool; 3], gone: &dyn Fn(&Error)) -> Goes {
        let [stopped, events, sentinel] = ready;
        if sentinel && self.is_removed() {
            self.handle_removal(gone);
            return Goes::Home;
        }
        if stopped || events && self.handle_events(gone) == Goes::Home {
            return Goes::Home;
        }
        Goes::On
    }

    /// Whether the sentinel says that the device is being removed.
    fn is_removed(&mut self) -> bool {
        while let Some(sentinel) = &self.ward.sentinel {
            match sentinel.read_event() {
                Ok(Read::Something(event)) => match State::Watching.react(event.kind) {
                    Step::Removed => return true,
                    _ => tracing::debug!(?event, "an event that a device's own id does not expect"),
                },
                Ok(Read::Empty) => return false,
                Err(error) => {
                    let device = &self.ward.device;
                    tracing::error!(%error, device, "its removal will not be heard");
                    self.ward.sentinel = None;
                }
            }
        }
        false
    }

    /// The kernel waits until nothing of the device is in use: by this process, and by the library for it.
    fn handle_removal(&self, gone: &dyn Fn(&Error)) {
        let device = &self.ward.device;
        gone(&removed(device));
        let released = self.ward.sentinel.as_ref().map(CmId::release_removed_device);
        if let Some(Err(error)) = released {
            tracing::error!(%error, device, "its removal waits for the end of this process");
        }
    }

    fn handle_events(&self, gone: &dyn Fn(&Error)) -> Goes {
        loop {
            let event = match events::read(&self.ward.context) {
                Ok(Read::Something(event)) => event,
                Ok(Read::Empty) => return Goes::On,
                Err(error) => {
                    // What a device says whose driver lets it go without waiting.
                    let message = format!("RDMA device {} is gone", self.ward.device);
                    gone(&Error::with_source(ErrorKind::Lost, message, error));
                    return Goes::Home;
                }
            };
            if let Some(cause) = events::tell(&self.ward.device, &self.ward.fates, event) {
                gone(&cause);
            }
        }
    }
}

/// Waits until one of `fds` can be read, or has ended; which ones.
fn poll_readable(fds: [RawFd; 3]) -> Result<[bool; 3], CallError> {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: `polled` has three entries, which are this call's to write.
    let returned = unsafe { libc::poll(polled.as_mut_ptr(), 3, -1) };
    let errno = Errno::last();
    if returned < 0 && errno.0 != libc::EINTR {
        return Err(CallError { call: "poll", errno });
    }
    Ok(polled.map(|polled| returned > 0 && polled.revents != 0))
}
