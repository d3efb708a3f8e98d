//! Events of the connection manager, copied: the library's own is acknowledged before anybody acts on it, since
//! destroying an id waits for that.

use std::ptr::NonNull;

use rdma_sys::{rdma_cm_event, rdma_cm_event_type as kinds};

use super::id::CmId;

/// An event.
#[derive(Debug)]
pub(in crate::verbs) struct CmEvent {
    pub(in crate::verbs) kind: CmEventKind,
    /// 0, a negated errno, or a reason that depends on the kind and the wire.
    pub(super) status: i32,
    /// What the peer sent along; padded with zeros on InfiniBand.
    pub(super) private_data: Vec<u8>,
    /// The id that a connect request made. Dropped, the request is refused.
    pub(super) request: Option<CmId>,
    /// Reads that the peer allows and wants, of a connect request.
    pub(super) peer_reads: (u8, u8),
}

/// A number of `enum rdma_cm_event_type`, or a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::verbs) struct CmEventKind(pub(super) u32);

impl CmEventKind {
    pub(super) const ADDR_RESOLVED: Self = Self(kinds::RDMA_CM_EVENT_ADDR_RESOLVED);
    pub(super) const ADDR_ERROR: Self = Self(kinds::RDMA_CM_EVENT_ADDR_ERROR);
    pub(super) const ROUTE_RESOLVED: Self = Self(kinds::RDMA_CM_EVENT_ROUTE_RESOLVED);
    pub(super) const ROUTE_ERROR: Self = Self(kinds::RDMA_CM_EVENT_ROUTE_ERROR);
    pub(super) const CONNECT_REQUEST: Self = Self(kinds::RDMA_CM_EVENT_CONNECT_REQUEST);
    pub(super) const CONNECT_RESPONSE: Self = Self(kinds::RDMA_CM_EVENT_CONNECT_RESPONSE);
    pub(super) const CONNECT_ERROR: Self = Self(kinds::RDMA_CM_EVENT_CONNECT_ERROR);
    pub(super) const UNREACHABLE: Self = Self(kinds::RDMA_CM_EVENT_UNREACHABLE);
    pub(super) const REJECTED: Self = Self(kinds::RDMA_CM_EVENT_REJECTED);
    pub(super) const ESTABLISHED: Self = Self(kinds::RDMA_CM_EVENT_ESTABLISHED);
    pub(super) const DISCONNECTED: Self = Self(kinds::RDMA_CM_EVENT_DISCONNECTED);
    pub(super) const DEVICE_REMOVAL: Self = Self(kinds::RDMA_CM_EVENT_DEVICE_REMOVAL);
    pub(super) const TIMEWAIT_EXIT: Self = Self(kinds::RDMA_CM_EVENT_TIMEWAIT_EXIT);

    /// Whether the event's parameters are those of a connection.
    fn has_parameters(self) -> bool {
        matches!(
            self,
            Self::CONNECT_REQUEST | Self::CONNECT_RESPONSE | Self::REJECTED | Self::ESTABLISHED
        )
    }
}

impl CmEvent {
    /// Copies an event that is not acknowledged yet, but for the id that a request made.
    pub(super) fn copy(event: &rdma_cm_event) -> Self {
        let kind = CmEventKind(event.event);
        let mut copied = Self {
            kind,
            status: event.status,
            private_data: Vec::new(),
            request: None,
            peer_reads: (0, 0),
        };
        if kind.has_parameters() {
            // SAFETY: ids of the port space TCP have the parameters of a connection (man 3
            // rdma_get_cm_event), and the library zeroes what it does not fill.
            let parameters = unsafe { event.param.conn };
            copied.peer_reads = (parameters.responder_resources, parameters.initiator_depth);
            let len = usize::from(parameters.private_data_len);
            if let Some(data) = NonNull::new(parameters.private_data.cast_mut()).filter(|_| len > 0)
            {
                let data = data.cast::<u8>().as_ptr();
                // SAFETY: the event has so many bytes there until it is acknowledged, and nothing writes
                // to them.
                copied.private_data = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
            }
        }
        copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: u32, data: &[u8]) -> CmEvent {
        // SAFETY: the struct is plain numbers and pointers, for which zeros are a value.
        let mut event: rdma_cm_event = unsafe { std::mem::zeroed() };
        event.event = kind;
        event.param.conn = rdma_sys::rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: u8::try_from(data.len()).expect("short"),
            responder_resources: 3,
            initiator_depth: 4,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        };
        CmEvent::copy(&event)
    }

    #[test]
    fn only_events_of_a_connection_have_private_data() {
        let kept = event(kinds::RDMA_CM_EVENT_ESTABLISHED, b"abc");
        assert_eq!((kept.private_data.as_slice(), kept.peer_reads), (&b"abc"[..], (3, 4)));
        for kind in [kinds::RDMA_CM_EVENT_ADDR_RESOLVED, kinds::RDMA_CM_EVENT_TIMEWAIT_EXIT, 4711] {
            let other = event(kind, b"abc");
            assert_eq!((other.kind, other.private_data.as_slice()), (CmEventKind(kind), &b""[..]));
        }
    }
}
