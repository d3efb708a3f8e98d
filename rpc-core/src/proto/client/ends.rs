//! How calls end without an answer: at their deadlines, with their connection, or because the peer goes away.

use std::task::Waker;

use tokio::time::Instant;

use super::{ClientCalls, State};
use crate::error::{Error, ErrorKind};
use crate::message::{CallId, GoAway};
use crate::status::{Executed, Origin, Status};

/// Why no call begins any more.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// The peer sent GOAWAY: running calls go on.
    GoAway { why: String, executed: Executed },
    /// The connection is gone.
    Closed(Error),
}

impl ClientCalls {
    /// When [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Ends the calls whose deadline has passed; `why` is asked what kept their replies, as far as that is known. Returns them
    /// with whom to wake.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        why: impl FnOnce() -> Option<String>,
    ) -> Vec<(CallId, Option<Waker>)> {
        if !self.deadlines.is_due(now) {
            return Vec::new();
        }
        let (mut expired, mut earliest) = (Vec::new(), None);
        let status = expired_status(why());
        for (call, caller) in self.calls.iter_mut() {
            let State::Waiting { waker, .. } = &mut caller.state else {
                continue;
            };
            if caller.deadline <= now {
                expired.push((call, waker.take()));
                caller.state = State::Done(Err(status.clone()));
                let others = caller.streams.as_mut().map(|streams| streams.streams.close());
                expired.extend(others.into_iter().flatten().map(|other| (call, Some(other))));
            } else if earliest.is_none_or(|earliest| caller.deadline < earliest) {
                earliest = Some(caller.deadline);
            }
        }
        self.deadlines.handle_looked(earliest);
        expired
    }

    /// The connection is gone: every call ends with the first cause. Returns whom to wake.
    pub fn handle_closed(&mut self, cause: Error) -> Vec<Waker> {
        let (cause, cut) = match &self.ended {
            None => {
                let cut = cause.to_status(Executed::Maybe);
                (cause, cut)
            }
            // What the peer said before it closed comes first.
            Some(End::GoAway { why, executed }) => {
                let said = |words| Error::with_source(cause.kind(), words, cause.clone());
                let of_running = match executed {
                    Executed::No => format!("{why}; connect again for new calls"),
                    _ => format!("{why}, and its end cut this call off, which may have run"),
                };
                let cut = said(of_running).to_status(*executed);
                (said(format!("{why}; connect again for new calls")), cut)
            }
            Some(End::Closed(_)) => return Vec::new(),
        };
        let mut wakers = Vec::new();
        let mut gone = Vec::new();
        for (call, caller) in self.calls.iter_mut() {
            match &mut caller.state {
                State::Waiting { waker, .. } => {
                    wakers.extend(waker.take());
                    caller.state = State::Done(Err(cut.clone()));
                    let others = caller.streams.as_mut().map(|streams| streams.streams.close());
                    wakers.extend(others.into_iter().flatten());
                }
                State::Abandoned => gone.push(call),
                State::Done(_) => {}
            }
        }
        gone.into_iter().for_each(|call| drop(self.calls.remove(call)));
        self.cancels.clear();
        self.ended = Some(End::Closed(cause));
        wakers
    }

    /// Why the peer asked for the end of the connection, if it did.
    pub fn leaving(&self) -> Option<&str> {
        match &self.ended {
            Some(End::GoAway { why, .. }) => Some(why),
            Some(End::Closed(_)) | None => None,
        }
    }

    /// Whether the peer asked for the end of the connection and no call needs it any more.
    pub fn is_drained(&mut self) -> bool {
        self.leaving().is_some()
            && self.calls.iter_mut().all(|(_, caller)| matches!(caller.state, State::Done(_)))
    }

    pub(super) fn go_away(&mut self, reason: GoAway, words: &str) -> Result<(), Error> {
        let why = match reason {
            GoAway::Draining => "the server is shutting down".to_owned(),
            GoAway::ProtocolViolation => {
                let message = format!("the server ended the connection: {words}");
                return Err(Error::new(ErrorKind::PeerFault, message));
            }
            GoAway::Overloaded => format!("the server is overloaded: {words}"),
            GoAway::Unknown(number) => {
                format!("the server takes no more calls ({number}): {words}")
            }
        };
        if self.ended.is_none() {
            // An overloaded server serves nothing on this connection.
            let executed = match reason {
                GoAway::Overloaded => Executed::No,
                _ => Executed::Maybe,
            };
            self.ended = Some(End::GoAway { why, executed });
        }
        Ok(())
    }
}

pub(super) fn refused(why: &str) -> Status {
    Status::unavailable(format!("{why}; connect again for new calls"))
        .with_executed(Executed::No)
        .with_origin(Origin::Transport)
}

fn expired_status(why: Option<String>) -> Status {
    let mut words = String::from("the deadline passed before the reply came");
    why.iter().for_each(|why| words.extend([": ", why]));
    Status::deadline_exceeded(words).with_executed(Executed::Maybe)
}
