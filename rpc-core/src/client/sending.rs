//! A call's request as its caller gave it: what each attempt at the call is made of.
//!
//! Owns what does not depend on a connection. What does, compression and the limits of the peer, is settled for each attempt.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::link::{Link, Unsent};
use super::turn::Turn;
use crate::buf::Body;
use crate::compression::Compression;
use crate::message::{Form, MethodId, ReplyForm, SlotUse};
use crate::metadata::MetadataMap;
use crate::proto::resend::Repeatable;
use crate::proto::stream::{CallStreams, RecvStream, SendStream, StreamWindows};
use crate::request::Request;
use crate::status::Status;
use crate::streaming::Messages;
use crate::sync::{Mutex, lock};
use crate::wire::metadata;

/// What is called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method {
    pub(super) number: MethodId,
    /// Of a method that is known. Else the request's streams have it.
    pub(super) path: Option<&'static str>,
    pub(super) idempotent: bool,
}

/// A request that may be sent more than once.
pub(super) struct Sending {
    method: Method,
    body: Body,
    /// Encoded; empty if there is none.
    metadata: Bytes,
    compression: Option<Compression>,
    deadline: Instant,
    expected_reply: Option<u64>,
    /// Boxed, so that calls without any stay short.
    streams: Option<Box<NewStreams>>,
    slot: Option<Box<SlotUse>>,
    /// Taken before. Of the first attempt only.
    turn: Turn,
    wait_for_ready: Option<bool>,
    /// Whether it has to go where the last attempt went.
    stays: bool,
}

/// The streams of a request that has not been handed to the transport.
#[derive(Debug, Clone)]
pub(super) struct NewStreams {
    /// The request, in the place of the body.
    pub(super) requests: Option<Arc<Unpolled>>,
    pub(super) replies: ReplyForm,
    /// Of a method that was given by its path.
    pub(super) path: Option<Arc<str>>,
    /// As the request says it.
    pub(super) compression: Option<Compression>,
}

/// A stream of requests for the one who takes it first, to poll it. As long as nobody has, another attempt can be made with it.
pub(super) struct Unpolled(Mutex<Option<Box<dyn Messages>>>);

impl Sending {
    /// The request of a call that is due at `deadline`.
    pub(super) fn new<Req>(
        method: Method,
        request: &mut Request<Req>,
        body: Body,
        streams: Option<Box<NewStreams>>,
        deadline: Instant,
    ) -> Self {
        Self {
            method,
            body,
            metadata: metadata::encode(request.metadata(), &MetadataMap::new()),
            compression: request.compression(),
            deadline,
            expected_reply: request.expected_reply(),
            streams,
            slot: request.slot().map(Box::new),
            turn: request.take_turn().unwrap_or_else(Turn::free),
            wait_for_ready: request.wait_for_ready(),
            stays: false,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Of the encoded block.
    pub(super) fn metadata_len(&self) -> usize {
        self.metadata.len()
    }

    pub(super) fn wait_for_ready(&self) -> Option<bool> {
        self.wait_for_ready
    }

    pub(super) fn turn(&self) -> Option<&Turn> {
        Some(&self.turn).filter(|turn| !turn.is_free())
    }

    /// The next attempt has to go where the last one went.
    pub(super) fn stay(&mut self) {
        self.stays = true;
    }

    pub(super) fn stays(&self) -> bool {
        self.stays
    }

    /// The same, for an attempt that may not be the last.
    pub(super) fn share(&mut self) -> Self {
        Self {
            method: self.method,
            body: self.body.clone(),
            metadata: self.metadata.clone(),
            compression: self.compression,
            deadline: self.deadline,
            expected_reply: self.expected_reply,
            streams: self.streams.clone(),
            slot: self.slot.clone(),
            turn: mem::replace(&mut self.turn, Turn::free()),
            wait_for_ready: self.wait_for_ready,
            stays: self.stays,
        }
    }

    /// The request as it is sent over `link`. Refused here if the peer would refuse it.
    pub(super) fn over(self, link: &Link) -> Result<Unsent, Status> {
        let shared = link.shared();
        let mut streams = self.streams;
        if let Some(streams) = &mut streams {
            if streams.requests.is_some() {
                shared.check_streams()?;
            }
            streams.compression = self.compression;
        }
        let body = shared.outgoing(self.body, self.compression)?;
        shared.check_metadata(self.metadata.len())?;
        Ok(Unsent {
            method: self.method.number,
            path: self.method.path,
            body,
            metadata: self.metadata,
            deadline: self.deadline,
            expected_reply: self.expected_reply,
            streams,
            slot: self.slot,
            turn: Some(self.turn),
        })
    }

    /// What another attempt may do. A stream of requests that nobody has polled is from now on that attempt's.
    pub(super) fn repeatable(&mut self) -> Repeatable {
        if let Some(requests) = self.streams.as_mut().and_then(|streams| streams.requests.as_mut())
        {
            let Some(unpolled) = requests.take() else { return Repeatable::Never };
            *requests = Arc::new(Unpolled::new(unpolled));
        }
        match (&self.slot, self.method.idempotent) {
            (Some(_), _) => Repeatable::BySlot,
            (None, true) => Repeatable::Always,
            (None, false) => Repeatable::IfNotExecuted,
        }
    }
}

impl NewStreams {
    pub(super) fn into_feed(self) -> Option<(Arc<Unpolled>, Option<Compression>)> {
        Some((self.requests?, self.compression))
    }

    pub(super) fn request_form(&self) -> Form {
        if self.requests.is_some() { Form::Stream } else { Form::Whole }
    }

    pub(super) fn open(&self, windows: StreamWindows) -> CallStreams {
        let outgoing = self.requests.as_ref().map(|_| SendStream::new(windows.peer));
        let incoming = (self.replies != ReplyForm::Whole).then(|| RecvStream::new(windows.local));
        CallStreams::new(outgoing, incoming)
    }
}

impl Unpolled {
    pub(super) fn new(requests: Box<dyn Messages>) -> Self {
        Self(Mutex::new(Some(requests)))
    }

    /// The stream, for whoever comes first.
    pub(super) fn take(&self) -> Option<Box<dyn Messages>> {
        lock(&self.0).take()
    }
}

impl std::fmt::Debug for Unpolled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unpolled")
    }
}
