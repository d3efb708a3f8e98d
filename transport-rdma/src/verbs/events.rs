//! Asynchronous events of a device: port down, queue pair fatal, completion queue lost, device failed.
//!
//! Each is copied and acknowledged at once: destroying a queue pair waits for that. The type is read as a
//! number, because a library may be newer than the headers of this build.

use std::mem::MaybeUninit;

use rdma_sys::{
    ibv_ack_async_event, ibv_async_event, ibv_async_event_element_t, ibv_event_type,
    ibv_get_async_event,
};
use verbwire_core::{Error, ErrorKind};

use super::channel::{Read, emptiness};
use super::context::Context;
use super::fate::{CqKey, Fates, PortNumber};
use super::ret::{CallError, minus_one};
use crate::nic::{NicError, QpNumber};

/// An event, copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AsyncEvent {
    /// A number of `enum ibv_event_type`, or a newer one.
    kind: u32,
    subject: Subject,
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Qp(QpNumber),
    Cq(CqKey),
    Port(PortNumber),
    Device,
}

/// What an event means for the device as a whole, once those have been told whom it concerns.
#[derive(Debug)]
pub(super) enum Told {
    /// Nothing more.
    Done,
    PortDown(PortNumber),
    PortUp(PortNumber),
    /// The device is of no use any more.
    Gone(Error),
}

const CQ_ERR: u32 = ibv_event_type::IBV_EVENT_CQ_ERR as u32;
const QP_FATAL: u32 = ibv_event_type::IBV_EVENT_QP_FATAL as u32;
const QP_REQ_ERR: u32 = ibv_event_type::IBV_EVENT_QP_REQ_ERR as u32;
const QP_ACCESS_ERR: u32 = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as u32;
const COMM_EST: u32 = ibv_event_type::IBV_EVENT_COMM_EST as u32;
const SQ_DRAINED: u32 = ibv_event_type::IBV_EVENT_SQ_DRAINED as u32;
const PATH_MIG: u32 = ibv_event_type::IBV_EVENT_PATH_MIG as u32;
const PATH_MIG_ERR: u32 = ibv_event_type::IBV_EVENT_PATH_MIG_ERR as u32;
const DEVICE_FATAL: u32 = ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32;
const PORT_ACTIVE: u32 = ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32;
const PORT_ERR: u32 = ibv_event_type::IBV_EVENT_PORT_ERR as u32;
const LAST_WQE_REACHED: u32 = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED as u32;

/// Takes an event, copies and acknowledges it.
pub(super) fn read(context: &Context) -> Result<Read<AsyncEvent>, CallError> {
    // Never a value of its type: the library may write a kind that the enum has not.
    let mut place = MaybeUninit::<ibv_async_event>::zeroed();
    let event = place.as_mut_ptr();
    // SAFETY: the context is open while it is borrowed, and the place is this call's to write.
    let returned = unsafe { ibv_get_async_event(context.raw(), event) };
    if let Read::Empty = emptiness(minus_one("ibv_get_async_event", returned))? {
        return Ok(Read::Empty);
    }
    // SAFETY: the library has written the event.
    let copied = unsafe { copy(event) };
    // SAFETY: the event was taken above and is acknowledged once.
    unsafe { ibv_ack_async_event(event) }
    Ok(Read::Something(copied))
}

/// # Safety
///
/// `event` points to an event of the library that is not acknowledged yet.
unsafe fn copy(event: *const ibv_async_event) -> AsyncEvent {
    // SAFETY: the field lies within the event.
    let kind = unsafe { &raw const (*event).event_type }.cast::<u32>();
    // SAFETY: the field has the size and alignment of a u32 (`repr(u32)`), and was written.
    let kind = unsafe { kind.read() };
    // SAFETY: the field was written, and any bytes are a value of the union.
    let element = unsafe { &(*event).element };
    // SAFETY: the caller's promise; kind and element are the event's.
    AsyncEvent { kind, subject: unsafe { subject(kind, element) } }
}

/// # Safety
///
/// The element is of an event of this kind that is not acknowledged yet.
unsafe fn subject(kind: u32, element: &ibv_async_event_element_t) -> Subject {
    match kind {
        CQ_ERR => {
            // SAFETY: events of this kind name a completion queue (man 3 ibv_get_async_event).
            let cq = unsafe { element.cq };
            Subject::Cq(CqKey(cq.addr()))
        }
        PORT_ERR | PORT_ACTIVE => {
            // SAFETY: events of this kind name a port.
            let port = unsafe { element.port_num };
            Subject::Port(PortNumber(u8::try_from(port).unwrap_or(0)))
        }
        QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR | COMM_EST | SQ_DRAINED | PATH_MIG | PATH_MIG_ERR
        | LAST_WQE_REACHED => {
            // SAFETY: events of this kind name a queue pair.
            let qp = unsafe { element.qp };
            // SAFETY: the queue pair exists until its event is acknowledged: its destruction waits for that.
            Subject::Qp(QpNumber(unsafe { (*qp).qp_num }))
        }
        _ => Subject::Device,
    }
}

/// Tells those whom an event concerns.
///
/// Changes of LID, key, GID or subnet manager, and a request to register again, concern the connection manager:
/// a connection that they cut off ends when its messages are not acknowledged.
pub(super) fn tell(device: &str, fates: &Fates, event: AsyncEvent) -> Told {
    let lost = |message: String| Error::new(ErrorKind::Lost, message);
    tracing::debug!(device, ?event, "a device's event");
    match (event.kind, event.subject) {
        (QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR, Subject::Qp(qp)) => {
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
                "port {} of RDMA device {device} is down: check the cable and the link",
                port.0
            );
            fates.end_port(port, &lost(message));
            return Told::PortDown(port);
        }
        (PORT_ACTIVE, Subject::Port(port)) => {
            fates.port_is_up(port);
            return Told::PortUp(port);
        }
        (DEVICE_FATAL, _) => {
            return Told::Gone(lost(format!("RDMA device {device} has failed or was removed")));
        }
        _ => {}
    }
    Told::Done
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context as TaskContext, Poll, Waker};

    use super::*;
    use crate::verbs::fate::Watch;

    const PORT: PortNumber = PortNumber(1);
    const OTHER: PortNumber = PortNumber(2);

    /// An event about the port or the queue pair 1, as far as its kind names one.
    fn event(kind: u32) -> AsyncEvent {
        // SAFETY: zeros are a value of every field.
        let mut qp: rdma_sys::ibv_qp = unsafe { std::mem::zeroed() };
        qp.qp_num = 1;
        // SAFETY: as above.
        let mut raw: ibv_async_event = unsafe { std::mem::zeroed() };
        if matches!(kind, PORT_ACTIVE | PORT_ERR) {
            raw.element.port_num = 1;
        } else {
            raw.element.qp = &raw mut qp;
        }
        // SAFETY: the event names a queue pair that exists, or a port.
        AsyncEvent { kind, subject: unsafe { subject(kind, &raw.element) } }
    }

    fn is_over(watch: &Watch) -> Option<String> {
        match watch.poll(&mut TaskContext::from_waker(Waker::noop())) {
            Poll::Ready(error) => Some(error.to_string()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn only_errors_of_a_connection_or_its_port_end_it_whatever_else_a_device_says() {
        for kind in (1..64).filter(|kind| *kind != DEVICE_FATAL).chain([4711, u32::MAX]) {
            let fates = Arc::new(Fates::default());
            let watch = fates.watch(QpNumber(1), [CqKey(1); 2], PORT);
            let other = fates.watch(QpNumber(2), [CqKey(1); 2], OTHER);
            assert!(!matches!(tell("rxe0", &fates, event(kind)), Told::Gone(_)), "{kind}");
            let ends = matches!(kind, QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR | PORT_ERR);
            assert_eq!(is_over(&watch).is_some(), ends, "{kind}");
            assert_eq!(is_over(&other), None, "{kind}");
        }
    }

    #[test]
    fn an_event_of_a_kind_that_nobody_knows_is_about_the_device() {
        assert_eq!(event(4711), AsyncEvent { kind: 4711, subject: Subject::Device });
    }

    #[test]
    fn a_port_that_goes_down_and_up_is_known_by_its_number() {
        let fates = Arc::new(Fates::default());
        let watch = fates.watch(QpNumber(1), [CqKey(1); 2], PORT);
        assert!(matches!(tell("rxe0", &fates, event(PORT_ERR)), Told::PortDown(PORT)));
        let words = is_over(&watch).expect("the connection ended");
        assert!(words.starts_with("port 1 of RDMA device rxe0 is down"), "{words}");
        assert!(fates.is_down(PORT));
        assert!(matches!(tell("rxe0", &fates, event(PORT_ACTIVE)), Told::PortUp(PORT)));
        assert!(!fates.is_down(PORT));
    }

    #[test]
    fn a_device_that_has_failed_is_of_no_use_any_more() {
        let fates = Fates::default();
        let Told::Gone(cause) = tell("rxe0", &fates, event(DEVICE_FATAL)) else {
            panic!("it is gone")
        };
        assert!(cause.to_string().starts_with("RDMA device rxe0 has failed"), "{cause}");
    }
}
