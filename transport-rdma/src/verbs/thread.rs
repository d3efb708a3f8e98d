//! The thread of a device: what must happen on it whether or not a runtime is there to do it.
//!
//! It reads the device's asynchronous events; it hears by an id of the connection manager, which is bound to the
//! device and used for nothing else, that the device is removed; and it keeps the ids that nobody uses any more and
//! that cannot be destroyed yet. A plain thread, since a device outlives runtimes.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use verbwire_core::{Error, ErrorKind};

use super::channel::{Read, set_nonblocking};
use super::cm::{CmId, Parting, Partings, PortState, State, Step, removed};
use super::context::Context;
use super::events::{self, Told};
use super::fate::Fates;
use super::ret::{CallError, Errno};

/// The thread of a device. It ends when this is dropped.
pub(super) struct DeviceThread {
    inbox: Sender<Parting<CmId>>,
    /// Rung for each id in the inbox. Its closing ends the thread.
    bell: PipeWriter,
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
        let (rung, bell) = pipe().map_err(failed)?;
        let (inbox, arriving) = channel();
        let thread = thread::Builder::new().name(format!("device-{}", ward.device));
        let duty = Duty { ward, arriving, rung, partings: Partings::new() };
        thread.spawn(move || duty.run(&gone)).map_err(failed)?;
        Ok(Self { inbox, bell })
    }

    /// Keeps an id until it can be destroyed.
    pub(super) fn part(&self, parting: Parting<CmId>) {
        // If the thread has ended, the id comes back and is destroyed.
        if self.inbox.send(parting).is_ok()
            && let Err(error) = (&self.bell).write(&[0])
        {
            tracing::debug!(%error, "a device's thread has ended");
        }
    }
}

/// The thread's own state.
struct Duty {
    ward: Ward,
    arriving: Receiver<Parting<CmId>>,
    rung: PipeReader,
    partings: Partings<CmId>,
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
            match self.wait().map(|ready| self.handle_ready(&ready, gone)) {
                Ok(Goes::On) => {}
                Ok(Goes::Home) => return,
                Err(error) => {
                    let device = &self.ward.device;
                    return tracing::error!(%error, device, "its events are not seen any more");
                }
            }
        }
    }

    /// Waits until something can be read or is due; returns which descriptors: the bell, the events, the sentinel,
    /// and those of the ids that linger, in their order.
    fn wait(&self) -> Result<Vec<bool>, CallError> {
        // A negative descriptor is none.
        let sentinel = self.ward.sentinel.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let fixed = [self.rung.as_raw_fd(), self.ward.context.as_raw_fd(), sentinel];
        let fds = fixed.into_iter().chain(self.partings.ids().map(AsRawFd::as_raw_fd));
        let now = Instant::now();
        // A millisecond more: it is not to wake before the time.
        let timeout = self.partings.poll_timer().map_or(-1, |due| {
            i32::try_from(due.saturating_duration_since(now).as_millis() + 1).unwrap_or(i32::MAX)
        });
        poll_readable(fds, timeout)
    }

    fn handle_ready(&mut self, ready: &[bool], gone: &dyn Fn(&Error)) -> Goes {
        let [bell, events, sentinel, partings @ ..] = ready else { return Goes::Home };
        if *sentinel && self.is_removed() {
            self.handle_removal(gone);
            return Goes::Home;
        }
        if *events && self.handle_events(gone) == Goes::Home {
            return Goes::Home;
        }
        self.handle_partings(partings);
        if *bell { self.take_arriving() } else { Goes::On }
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

    fn handle_events(&mut self, gone: &dyn Fn(&Error)) -> Goes {
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
            match events::tell(&self.ward.device, &self.ward.fates, event) {
                Told::Done => {}
                Told::PortDown(port) => self.partings.handle_port_down(port),
                Told::PortUp(port) => self.partings.handle_port_up(port, Instant::now()),
                Told::Gone(cause) => gone(&cause),
            }
        }
    }

    fn handle_partings(&mut self, ready: &[bool]) {
        // From the last to the first, so that indices stay.
        for (index, _) in ready.iter().enumerate().rev().filter(|(_, ready)| **ready) {
            let event = self.partings.ids().nth(index).map(CmId::read_event);
            let over = match event {
                Some(Ok(Read::Something(event))) => self.partings.handle_event(index, event.kind),
                Some(Ok(Read::Empty)) | None => None,
                Some(Err(_unusable)) => self.partings.remove(index),
            };
            drop(over);
        }
        drop(self.partings.handle_timer(Instant::now(), disconnect));
    }

    fn take_arriving(&mut self) -> Goes {
        // At most so many at a time; the bell stays readable for the others.
        let mut rings = [0; 64];
        match self.rung.read(&mut rings) {
            Ok(0) | Err(_) => return Goes::Home,
            Ok(_) => {}
        }
        for parting in self.arriving.try_iter() {
            let is_down = self.ward.fates.is_down(parting.port);
            let port = if is_down { PortState::Down } else { PortState::Up };
            drop(self.partings.add(parting, port, Instant::now()));
        }
        Goes::On
    }
}

/// Says what was held back.
fn disconnect(id: &CmId) {
    if let Err(error) = id.disconnect() {
        tracing::debug!(%error, "a connection whose port was down was not disconnected");
    }
}

/// Waits until one of `fds` can be read, or has ended, or for `timeout` milliseconds; -1 is for ever.
fn poll_readable(fds: impl Iterator<Item = RawFd>, timeout: i32) -> Result<Vec<bool>, CallError> {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<_> = fds.map(entry).collect();
    let count = libc::nfds_t::try_from(polled.len()).unwrap_or(0);
    // SAFETY: `polled` has so many entries, which are this call's to write.
    let returned = unsafe { libc::poll(polled.as_mut_ptr(), count, timeout) };
    let errno = Errno::last();
    if returned < 0 && errno.0 != libc::EINTR {
        return Err(CallError { call: "poll", errno });
    }
    Ok(polled.iter().map(|polled| returned > 0 && polled.revents != 0).collect())
}
