//! A driver's part in keep-alive: the timer of [`proto::keep_alive`](crate::proto::keep_alive), and PING and PONG.

use std::task::{Context, Poll};

use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::config::KeepAlive;
use crate::error::{Error, ErrorKind};
use crate::message::{Head, Message};
use crate::proto::keep_alive::{Found, KEEP_ALIVE, Watch};
use crate::transport::{Connection, Outgoing, SendError, SendHints};
use crate::wire::Hello;

/// One connection's.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// `None` where this side, or the peer, has no part in it.
    watch: Option<Watch>,
    alarm: Alarm,
    owes: Owes,
}

/// What is to be sent as soon as there is room. One PONG answers any number of PINGs, so that a peer that sends many makes this
/// side keep none.
#[derive(Debug, Default)]
struct Owes {
    ping: bool,
    pong: bool,
}

impl Pulse {
    /// Watches a peer that said `hello`, from now on.
    pub(crate) fn new(settings: Option<KeepAlive>, hello: &Hello) -> Self {
        let settings = settings.filter(|_| hello.features & KEEP_ALIVE != 0);
        let watch = settings.map(|settings| Watch::new(settings, Instant::now()));
        Self { watch, alarm: Alarm::default(), owes: Owes::default() }
    }

    /// Something came.
    pub(crate) fn handle_heard(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.handle_heard();
        }
    }

    /// Whether the message was for this, and for nobody else.
    pub(crate) fn handle_message(&mut self, head: &Head) -> bool {
        match head {
            Head::Ping => {
                self.owes.pong = true;
                true
            }
            Head::Pong => true,
            _ => false,
        }
    }

    /// Asks and answers. To be polled after what has arrived was received. A peer that is dead ends its connection.
    pub(crate) fn poll(&mut self, connection: &dyn Connection, cx: &mut Context<'_>) {
        while let Some(watch) = &mut self.watch {
            let Poll::Ready(now) = self.alarm.poll(Some(watch.next()), cx) else { break };
            match watch.look(now) {
                Found::Wait => {}
                Found::Ask => self.owes.ping = true,
                Found::Dead => {
                    connection.close(Error::new(ErrorKind::Lost, watch.why_dead()));
                    self.watch = None;
                }
            }
        }
        let Owes { ping, pong } = &mut self.owes;
        for (owed, head) in [(pong, Head::Pong), (ping, Head::Ping)] {
            while *owed {
                let outgoing =
                    Outgoing { message: Message::bare(head.clone()), hints: SendHints::default() };
                match connection.try_send(outgoing) {
                    Err(SendError::Full(_)) if connection.poll_ready(cx).is_pending() => return,
                    Err(SendError::Full(_)) => {}
                    Ok(()) | Err(SendError::Closed(_)) => *owed = false,
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
