//! The streams of one call, as one of its sides has them, and who waits on them.

use std::task::{Poll, Waker};

use super::holding::{Holding, Queue};
use super::{Next, RecvStream, SendStream, Taken, Violation};
use crate::buf::Body;

/// At most one stream in each direction.
#[derive(Debug)]
pub struct CallStreams {
    outgoing: Option<SendStream>,
    incoming: Option<RecvStream<Body>>,
    holding: Holding,
    /// The task that feeds the outgoing stream.
    feeder: Option<Waker>,
    /// The task that reads the incoming one.
    reader: Option<Waker>,
}

/// The stream does not go on, as a rule because its call is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over;

impl CallStreams {
    /// The streams of a call that begins.
    pub fn new(outgoing: Option<SendStream>, incoming: Option<RecvStream<Body>>) -> Self {
        Self { outgoing, incoming, holding: Holding::default(), feeder: None, reader: None }
    }

    /// Ready when the next message may be sent. The task of `waker` is woken for that, and when the stream is over.
    pub fn poll_window(&mut self, waker: &Waker) -> Poll<Result<(), Over>> {
        let Some(outgoing) = &self.outgoing else { return Poll::Ready(Err(Over)) };
        register(&mut self.feeder, waker);
        if outgoing.may_send() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The number of the next message, which is going to be sent, and whether one may follow at once.
    pub fn number(&mut self, len: usize) -> Option<(u32, Next)> {
        self.outgoing.as_mut().map(|outgoing| {
            let number = outgoing.number(len);
            (number, if outgoing.may_send() { Next::MayGo } else { Next::MayWait })
        })
    }

    /// Ends the outgoing stream; how many messages it had, if there was one.
    pub fn end_outgoing(&mut self) -> Option<u32> {
        self.outgoing.take().map(|mut outgoing| outgoing.end())
    }

    /// Whether there is, or was, something to read.
    pub fn is_reading(&self) -> bool {
        self.incoming.as_ref().is_some_and(RecvStream::is_read)
    }

    /// Whether messages may come.
    pub fn has_incoming(&self) -> bool {
        self.incoming.is_some()
    }

    /// Whether all messages of the incoming stream have come, and its end.
    pub fn is_complete(&self) -> bool {
        self.incoming.as_ref().is_none_or(RecvStream::is_complete)
    }

    /// The peer lets more come. Returns whom that wakes.
    pub fn handle_window(&mut self, granted: u64) -> Option<Waker> {
        let opens = self.outgoing.as_mut().is_some_and(|outgoing| outgoing.handle_window(granted));
        if opens { self.feeder.take() } else { None }
    }

    /// A message came in. Returns whom that wakes.
    ///
    /// # Errors
    ///
    /// The peer broke a rule of streams.
    pub fn handle_message(&mut self, number: u32, body: Body) -> Result<Option<Waker>, Violation> {
        let Some(incoming) = &mut self.incoming else { return Ok(None) };
        let queue = Queue { waiting: incoming.waiting(), has_gap: incoming.has_gap() };
        let body = self.holding.keep(body, queue);
        incoming.handle_message(number, body.len(), body)?;
        Ok(self.news())
    }

    /// The peer says how many messages there are. Returns whom that wakes.
    ///
    /// # Errors
    ///
    /// The peer broke a rule of streams.
    pub fn handle_end(&mut self, messages: u32) -> Result<Option<Waker>, Violation> {
        let Some(incoming) = &mut self.incoming else { return Ok(None) };
        incoming.handle_end(messages)?;
        Ok(self.news())
    }

    fn news(&mut self) -> Option<Waker> {
        let incoming = self.incoming.as_ref()?;
        let is_worth_it = incoming.has_message() || incoming.is_complete();
        if is_worth_it { self.reader.take() } else { None }
    }

    /// The next message, or the end. The task of `waker` is woken for either.
    pub fn poll_message(&mut self, waker: &Waker) -> Poll<Option<Taken<Body>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        if let Some(taken) = incoming.take() {
            return Poll::Ready(Some(taken));
        }
        if incoming.is_complete() {
            return Poll::Ready(None);
        }
        register(&mut self.reader, waker);
        Poll::Pending
    }

    /// The next message, which is not taken; `None` at the end. The task of `waker` is woken for either.
    pub fn poll_next(&mut self, waker: &Waker) -> Poll<Option<Body>> {
        let Some(incoming) = &self.incoming else { return Poll::Ready(None) };
        let next = incoming.next().cloned();
        if next.is_some() || incoming.is_complete() {
            return Poll::Ready(next);
        }
        register(&mut self.reader, waker);
        Poll::Pending
    }

    /// What the messages cost that wait to be taken.
    pub fn waiting_cost(&self) -> u64 {
        self.incoming.as_ref().map_or(0, RecvStream::waiting_cost)
    }

    /// A message that is here.
    pub fn take(&mut self) -> Option<Taken<Body>> {
        self.incoming.as_mut()?.take()
    }

    /// The task of `waker` is woken when something comes in.
    pub fn await_news(&mut self, waker: &Waker) {
        register(&mut self.reader, waker);
    }

    /// Nobody reads the incoming stream any more.
    pub fn close_incoming(&mut self) {
        self.incoming.iter_mut().for_each(RecvStream::close);
    }

    /// Both directions are over, whatever has not been read. Returns whom that wakes.
    pub fn close(&mut self) -> impl Iterator<Item = Waker> + use<> {
        self.outgoing = None;
        self.close_incoming();
        self.wakers()
    }

    /// Whoever waits.
    pub fn wakers(&mut self) -> impl Iterator<Item = Waker> + use<> {
        self.feeder.take().into_iter().chain(self.reader.take())
    }

    /// Who feeds the outgoing stream.
    pub fn take_feeder(&mut self) -> Option<Waker> {
        self.feeder.take()
    }
}

fn register(slot: &mut Option<Waker>, waker: &Waker) {
    match slot {
        Some(known) => known.clone_from(waker),
        none => *none = Some(waker.clone()),
    }
}
