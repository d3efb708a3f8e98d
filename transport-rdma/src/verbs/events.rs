//! Asynchronous events of a device: port down, queue pair fatal, completion queue lost, device gone.
//!
//! A plain thread reads them, since a device outlives runtimes. Each event is copied and acknowledged at once:
//! destroying a queue pair waits for that. The type is read as a number, because a library may be newer than
//! the headers of this build.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread;

use rdma_sys::{ibv_ack_async_event, ibv_async_event, ibv_event_type, ibv_get_async_event};
use verbwire_core::{Error, ErrorKind};

use super::channel::{Read, emptiness, set_nonblocking};
use super::context::Context;
use super::fate::{CqKey, Fates};
use super::ret::{CallError, Errno, minus_one};
use crate::nic::{NicError, QpNumber};

/// The thread of a device. It ends when this is dropped.
pub(super) struct EventThread {
    /// Its closing is what the thread waits for besides events.
    _stop: PipeWriter,
}

/// An event, copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AsyncEvent {
    /// A number of `enum ibv_event_type`, or a newer one.
    kind: u32,
    subject: Subject,
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Qp(QpNumber),
    Cq(CqKey),
    Port(i32),
    Device,
}

impl EventThread {
    /// Begins to read the events of `context` and to tell `fates`; calls `gone` when the device has gone.
    pub(super) fn start(
        name: &str,
        context: &Arc<Context>,
        fates: &Arc<Fates>,
        gone: impl Fn(&Error) + Send + 'static,
    ) -> Result<Self, CallError> {
        let failed = |error: std::io::Error| CallError {
            call: "starting a device's event thread",
            errno: Errno(error.raw_os_error().unwrap_or(0)),
        };
        set_nonblocking(context.as_raw_fd())?;
        let (stopped, stop) = pipe().map_err(failed)?;
        let (context, fates) = (Arc::clone(context), Arc::clone(fates));
        let device = name.to_owned();
        let thread = thread::Builder::new().name(format!("events-{name}"));
        thread.spawn(move || run(&device, &context, &fates, &stopped, &gone)).map_err(failed)?;
        Ok(Self { _stop: stop })
    }
}

/// Reads events until the device's handle is dropped.
fn run(
    device: &str,
    context: &Context,
    fates: &Fates,
    stopped: &PipeReader,
    gone: &dyn Fn(&Error),
) {
    loop {
        match wait([context.as_raw_fd(), stopped.as_raw_fd()]) {
            Ok(Woken::Events) => {}
            Ok(Woken::Stopped) => return,
            Err(error) => {
                return tracing::error!(%error, device, "its events are not seen any more");
            }
        }
        loop {
            match read(context) {
                Ok(Read::Something(event)) => {
                    if let Some(cause) = tell(device, fates, event) {
                        gone(&cause);
                    }
                }
                Ok(Read::Empty) => break,
                Err(error) => {
                    // What a device that was removed says.
                    let message = format!("RDMA device {device} is gone");
                    return gone(&Error::with_source(ErrorKind::Lost, message, error));
                }
            }
        }
    }
}

enum Woken {
    Events,
    Stopped,
}

/// Waits for either descriptor: events, or the end of the other's writer.
fn wait(fds: [RawFd; 2]) -> Result<Woken, CallError> {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: `polled` has two entries, which are this call's to write.
        let returned = unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
        if polled[1].revents != 0 {
            return Ok(Woken::Stopped);
        }
        if returned >= 0 {
            return Ok(Woken::Events);
        }
        let errno = Errno::last();
        if errno.0 != libc::EINTR {
            return Err(CallError { call: "poll", errno });
        }
    }
}

/// Takes an event, copies and acknowledges it.
fn read(context: &Context) -> Result<Read<AsyncEvent>, CallError> {
    // SAFETY: zeros are a value of every field; the type's zero is `IBV_EVENT_CQ_ERR`.
    let mut event: ibv_async_event = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open while it is borrowed, and `event` is this call's to write.
    let returned = unsafe { ibv_get_async_event(context.raw(), &raw mut event) };
    if let Read::Empty = emptiness(minus_one("ibv_get_async_event", returned))? {
        return Ok(Read::Empty);
    }
    let kind = (&raw const event.event_type).cast::<u32>();
    // SAFETY: the field has the size and alignment of a u32 (`repr(u32)`), and was written by the library.
    let kind = unsafe { kind.read() };
    let copied = AsyncEvent { kind, subject: subject(kind, &event) };
    // SAFETY: the event was taken above and is acknowledged once; of it only plain fields are read.
    unsafe { ibv_ack_async_event(&raw mut event) }
    Ok(Read::Something(copied))
}

const QP_EVENTS: [u32; 7] = [
    ibv_event_type::IBV_EVENT_QP_FATAL as u32,
    ibv_event_type::IBV_EVENT_QP_REQ_ERR as u32,
    ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as u32,
    ibv_event_type::IBV_EVENT_COMM_EST as u32,
    ibv_event_type::IBV_EVENT_SQ_DRAINED as u32,
    ibv_event_type::IBV_EVENT_PATH_MIG as u32,
    ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED as u32,
];
const CQ_ERR: u32 = ibv_event_type::IBV_EVENT_CQ_ERR as u32;
const QP_FATAL: u32 = ibv_event_type::IBV_EVENT_QP_FATAL as u32;
const QP_ACCESS_ERR: u32 = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as u32;
const DEVICE_FATAL: u32 = ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32;
const PORT_ERR: u32 = ibv_event_type::IBV_EVENT_PORT_ERR as u32;
const PORT_ACTIVE: u32 = ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32;

fn subject(kind: u32, event: &ibv_async_event) -> Subject {
    match kind {
        CQ_ERR => {
            // SAFETY: events of this kind name a completion queue (man 3 ibv_get_async_event).
            let cq = unsafe { event.element.cq };
            Subject::Cq(CqKey(cq.addr()))
        }
        PORT_ERR | PORT_ACTIVE => {
            // SAFETY: events of this kind name a port.
            Subject::Port(unsafe { event.element.port_num })
        }
        kind if QP_EVENTS.contains(&kind) => {
            // SAFETY: events of this kind name a queue pair.
            let qp = unsafe { event.element.qp };
            // SAFETY: the queue pair exists until its event is acknowledged: its destruction waits for that.
            Subject::Qp(QpNumber(unsafe { (*qp).qp_num }))
        }
        _ => Subject::Device,
    }
}

/// Tells those whom an event concerns. `Some` if the device is gone.
fn tell(device: &str, fates: &Fates, event: AsyncEvent) -> Option<Error> {
    let lost = |message: String| Error::new(ErrorKind::Lost, message);
    tracing::debug!(device, ?event, "a device's event");
    match (event.kind, event.subject) {
        (QP_FATAL..=QP_ACCESS_ERR, Subject::Qp(qp)) => {
            let message = format!(
                "RDMA device {device} ended queue pair {} (asynchronous event {})",
                qp.0, event.kind
            );
            fates.end_qp(qp, &lost(message));
        }
        (CQ_ERR, Subject::Cq(key)) => {
            let reason = "the completion queue overflowed, so completions are lost".to_owned();
            let error = NicError { verb: "ibv_poll_cq", reason };
            let message = format!("RDMA device {device} lost a completion queue: it overflowed");
            fates.end_cq(key, &error, &lost(message));
        }
        (PORT_ERR, Subject::Port(port)) => {
            let message = format!(
                "port {port} of RDMA device {device} is down: check the cable and the link"
            );
            fates.end_all(&lost(message));
        }
        (DEVICE_FATAL, _) => {
            return Some(lost(format!("RDMA device {device} has failed or was removed")));
        }
        _ => {}
    }
    None
}

#[cfg(test)]
mod tests {
    use std::task::{Context as TaskContext, Poll, Waker};

    use super::*;

    fn raw(kind: u32) -> ibv_async_event {
        // SAFETY: as in `read`.
        let mut event: ibv_async_event = unsafe { std::mem::zeroed() };
        event.element.port_num = i32::try_from(kind).expect("small");
        event
    }

    #[test]
    fn an_event_of_a_kind_that_nobody_knows_concerns_the_device_and_ends_nothing() {
        let fates = Arc::new(Fates::default());
        let watch = fates.watch(QpNumber(1), [CqKey(1); 2]);
        let unknown = AsyncEvent { kind: 4711, subject: subject(4711, &raw(1)) };
        assert_eq!(unknown.subject, Subject::Device);
        assert!(tell("rxe0", &fates, unknown).is_none());
        assert!(watch.poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    }

    #[test]
    fn a_port_that_goes_down_ends_connections_with_its_name() {
        let fates = Arc::new(Fates::default());
        let watch = fates.watch(QpNumber(1), [CqKey(1); 2]);
        let event = AsyncEvent { kind: PORT_ERR, subject: subject(PORT_ERR, &raw(2)) };
        assert!(tell("rxe0", &fates, event).is_none(), "the device is still there");
        let Poll::Ready(error) = watch.poll(&mut TaskContext::from_waker(Waker::noop())) else {
            panic!("the connection ended")
        };
        assert!(error.to_string().starts_with("port 2 of RDMA device rxe0 is down"), "{error}");
    }
}
