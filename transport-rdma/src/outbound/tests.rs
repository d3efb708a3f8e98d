use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Wake;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use verbwire_core::ErrorKind;
use verbwire_core::buf::Body;
use verbwire_core::message::{Form, GoAway, Head, Message, MethodId, ReplyForm};
use verbwire_core::transport::inbound::{InboundLimits, LandingPool};
use verbwire_core::transport::{Announced, Incoming, Placement, PlacementHook, SendHints};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{HEADER_LEN, Hello, Kind};

use super::*;
use crate::decoder::FrameDecoder;
use crate::memory::Domain;
use crate::pool::{PoolSize, Sources, Staging};
use crate::proto::credit::Windows;
use crate::proto::rendezvous::{OwnerLimits, WriterLimits};
use crate::reaper::InPlace;
use crate::rendezvous::{RendezvousLimits, Settled};

struct Anywhere;

impl PlacementHook for Anywhere {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Pool
    }
}

struct Asleep;

impl Wake for Asleep {
    fn wake(self: Arc<Self>) {}
}

const FRAME: usize = 4096;

fn limits() -> OutboundLimits {
    OutboundLimits {
        messages: 8,
        bytes: 128 << 10,
        frame: FRAME,
        frame_body: 1 << 20,
        in_pieces: usize::MAX,
        signal_from: usize::MAX,
    }
}

fn windows(data: u32, control: u32) -> Windows {
    Windows { data, control }
}

fn outbound(peer: Windows, slots: u32) -> Outbound {
    let credits = Credits::new(peer, windows(8, 8));
    Outbound::new(limits(), credits, SendQueue::new(slots), rendezvous())
}

/// Bodies that are written, of which these tests have none.
fn rendezvous() -> Rendezvous {
    let owner = OwnerLimits {
        rts: 8,
        advertised: 8,
        quarantine: 1 << 20,
        revoke_timeout: Duration::from_secs(2),
    };
    let writer = WriterLimits { chunk: 256 << 10, window: 2, rts: 8, advertised: 8, standing: 0 };
    let limits = RendezvousLimits { owner, writer, max_sge: 6, standing: 0 };
    Rendezvous::new(limits, (Sources::new(), Domain::unique()))
}

fn call(slot: u32) -> CallId {
    CallId { slot, generation: 1 }
}

fn request(slot: u32, len: usize) -> Message {
    let head = Head::Request {
        call: call(slot),
        method: MethodId(1),
        path: None,
        timeout: Duration::from_secs(1),
        form: Form::Whole,
        reply: ReplyForm::Whole,
        slot: None,
    };
    Message::with_body(head, Body::from(Bytes::from(vec![7; len])))
}

fn cancel(slot: u32) -> Message {
    Message::bare(Head::Cancel { call: call(slot) })
}

fn push(stage: &mut Outbound, message: Message) {
    stage.push(Outgoing { message, hints: SendHints::default() }).expect("room");
}

/// Kinds and slots of what goes out now.
fn next(stage: &mut Outbound) -> Vec<(Kind, u32)> {
    let mut frames = Vec::new();
    stage.next(&mut frames);
    frames.iter().map(|frame| (frame.header.kind, frame.header.call.slot)).collect()
}

#[test]
fn control_passes_data_but_not_of_its_own_call() {
    let mut stage = outbound(windows(8, 8), 40);
    for message in [request(1, 0), request(2, 0), cancel(2), cancel(3)] {
        push(&mut stage, message);
    }
    let expected = [(Kind::Cancel, 3), (Kind::Request, 1), (Kind::Request, 2), (Kind::Cancel, 2)];
    assert_eq!(next(&mut stage), expected);
}

#[test]
fn without_a_slot_the_next_post_is_after_sends() {
    let mut stage = outbound(windows(8, 8), 1);
    push(&mut stage, request(1, 0));
    push(&mut stage, request(2, 0));
    assert_eq!(next(&mut stage), [(Kind::Request, 1)]);
    assert_eq!(stage.next_post(), NextPost::AfterSends);
    stage.handle_sent(1);
    assert_eq!(stage.next_post(), NextPost::Now);
}

#[test]
fn control_gets_through_while_data_waits_for_credits() {
    let mut stage = outbound(windows(1, 1), 40);
    push(&mut stage, request(1, 0));
    push(&mut stage, request(2, 0));
    assert_eq!(next(&mut stage), [(Kind::Request, 1)]);
    assert_eq!(stage.next_post(), NextPost::AfterCredits);
    push(&mut stage, cancel(9));
    assert_eq!(stage.next_post(), NextPost::Now);
    assert_eq!(next(&mut stage), [(Kind::Cancel, 9)]);
    assert_eq!(stage.next(&mut Vec::new()).0, Next::Blocked);
}

#[test]
fn pieces_take_turns_with_short_messages_and_each_other() {
    let mut stage = outbound(windows(100, 8), 100);
    for slot in [1, 2] {
        push(&mut stage, request(slot, 3 * FRAME));
    }
    (3..8).for_each(|slot| push(&mut stage, request(slot, 0)));
    let data = |slot| (Kind::Data, slot);
    let request = |slot| (Kind::Request, slot);
    let mut sent = next(&mut stage);
    sent.extend(next(&mut stage));
    let (heads, short) = ([request(1), request(2)], [request(3), request(4)]);
    assert_eq!(sent[..4], [heads, short].concat());
    // Four in a row, and a piece waits.
    assert_eq!(sent[4..8], [data(1), request(5), request(6), request(7)]);
    assert_eq!(sent[8..], [2, 1, 2, 1, 2, 1, 2].map(data));
    assert_eq!(stage.next(&mut Vec::new()).0, Next::Idle);
}

#[test]
fn credit_goes_out_only_where_no_other_frame_tells_the_count() {
    let mut stage = outbound(windows(2, 2), 40);
    let account = Account { class: Class::Data, count: 0, loan: None };
    (0..2).for_each(|_| stage.handle_received(account).expect("true"));
    push(&mut stage, request(1, 0));
    let mut frames = Vec::new();
    stage.next(&mut frames);
    assert_eq!(frames.len(), 1);
    assert_eq!((frames[0].header.kind, frames[0].header.credits), (Kind::Request, 2));
    (0..2).for_each(|_| stage.handle_received(account).expect("true"));
    assert_eq!(next(&mut stage), [(Kind::Credit, 0)]);
    assert_eq!(stage.next(&mut Vec::new()).0, Next::Idle);
}

#[test]
fn a_body_that_is_given_up_ends_with_aborted_if_the_peer_knows_of_it() {
    let mut stage = outbound(windows(3, 8), 40);
    push(&mut stage, request(1, 10 * FRAME));
    push(&mut stage, request(2, 10 * FRAME));
    assert_eq!(next(&mut stage).len(), 3, "two heads and a piece");
    push(&mut stage, request(3, 10 * FRAME));
    assert_eq!(stage.revoke(call(3), Instant::now()), Revoked::Body);
    assert_eq!(stage.revoke(call(1), Instant::now()), Revoked::Body);
    assert_eq!(stage.revoke(call(1), Instant::now()), Revoked::Nothing);
    stage.handle_received(Account { class: Class::Control, count: 1, loan: None }).expect("true");
    let mut frames = Vec::new();
    stage.next(&mut frames);
    let header = frames[0].header;
    assert_eq!((header.kind, header.flags, header.call), (Kind::Data, Flags::ABORTED, call(1)));
    assert_eq!(header.aux as usize, FRAME - HEADER_LEN);
}

#[test]
fn room_is_counted_per_class_and_waited_for_once() {
    let mut stage = outbound(windows(8, 8), 40);
    (0..8).for_each(|slot| push(&mut stage, request(slot, 0)));
    let message = request(9, 0);
    let full = stage.push(Outgoing { message, hints: SendHints::default() });
    assert!(matches!(full, Err(SendError::Full(_))));
    push(&mut stage, cancel(50));
    let waker = Waker::from(Arc::new(Asleep));
    assert!(stage.wait(&waker) && stage.wait(&waker));
    let (_, woken) = stage.next(&mut Vec::new());
    assert_eq!(woken.len(), 1);
    assert!(!stage.wait(&waker));
}

#[test]
fn bodies_are_bounded_by_their_bytes() {
    let mut stage = outbound(windows(100, 8), 100);
    push(&mut stage, request(1, 128 << 10));
    let full = stage.push(Outgoing { message: request(2, 0), hints: SendHints::default() });
    assert!(matches!(full, Err(SendError::Full(_))));
    push(&mut stage, cancel(3));
    assert_eq!(stage.revoke(call(1), Instant::now()), Revoked::Body);
    push(&mut stage, request(2, 128 << 10));
    while matches!(stage.next(&mut Vec::new()).0, Next::Post | Next::PostLast) {}
    assert!(stage.queues.is_empty() && stage.queues.has_room());
}

#[test]
fn the_last_frames_say_when_they_are_sent() {
    let mut stage = outbound(windows(8, 8), 40);
    push(&mut stage, request(1, 0));
    push(&mut stage, request(2, 10 * FRAME));
    let cause = Error::new(ErrorKind::Closed, "enough");
    assert!(stage.end(EndKind::Closed, cause).is_empty());
    assert_eq!(stage.next(&mut Vec::new()).0, Next::End(EndKind::Closed));
    assert_eq!(stage.next(&mut Vec::new()).0, Next::Idle);
    let mut frames = Vec::new();
    stage.last(&mut frames);
    assert_eq!(frames.iter().map(|frame| frame.signal).collect::<Vec<_>>(), [Signal::Yes; 2]);
}

#[test]
fn a_close_behind_an_unsignalled_send_makes_up_one_that_is() {
    let mut stage = outbound(windows(8, 8), 40);
    push(&mut stage, request(1, 0));
    assert_eq!(next(&mut stage).len(), 1);
    let mut frames = Vec::new();
    stage.last(&mut frames);
    assert_eq!((frames.len(), frames[0].header.kind), (1, Kind::Credit));
    assert_eq!(frames[0].signal, Signal::Yes);
    frames.clear();
    stage.last(&mut frames);
    assert!(frames.is_empty());
}

#[test]
fn what_cannot_be_sent_is_refused_with_its_numbers() {
    let mut stage = outbound(windows(8, 8), 40);
    let mut message = request(1, 10);
    message.metadata = Bytes::from(vec![0; FRAME]);
    let refused = stage.push(Outgoing { message, hints: SendHints::default() });
    let Err(SendError::Closed(error)) = refused else { panic!("it was taken") };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("4096 bytes of metadata"), "{error}");
    let head = Head::GoAway { reason: GoAway::Draining };
    push(&mut stage, Message::with_body(head, Bytes::from(vec![b'x'; 2 * FRAME]).into()));
    let mut frames = Vec::new();
    stage.next(&mut frames);
    assert_eq!(frames[0].encode(&mut [0; FRAME], 0, |_| None).staged, FRAME);
}

/// One side: its stage, its decoder, and the sends that its device has not completed.
struct Side {
    stage: Outbound,
    decoder: FrameDecoder,
    receives: u32,
    posted: VecDeque<Signal>,
    received: Vec<Incoming>,
}

impl Side {
    fn new(peer: Windows, own: Windows, slots: u32) -> Self {
        let credits = Credits::new(peer, own);
        let stage = Outbound::new(limits(), credits, SendQueue::new(slots), rendezvous());
        let hello = Hello {
            max_message_size: 1 << 20,
            max_frame_body: 1 << 20,
            max_concurrent_calls: 1 << 16,
            ..Hello::default()
        };
        let pool = Arc::new(LandingPool::new(0));
        let decoder = FrameDecoder::new(InboundLimits::new(&hello, &hello), pool);
        let (posted, received) = (VecDeque::new(), Vec::new());
        Self { stage, decoder, receives: own.receives(), posted, received }
    }

    fn post(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.stage.next(&mut frames);
        self.posted.extend(frames.iter().map(|frame| frame.signal));
        let bytes = |frame: &Frame| {
            let mut buffer = vec![0; FRAME];
            let len = frame.encode(&mut buffer, 0, |_| None).staged;
            buffer.truncate(len);
            buffer
        };
        frames.iter().map(bytes).collect()
    }

    /// The device completes up to the next signalled send.
    fn complete(&mut self) -> bool {
        let Some(at) = self.posted.iter().position(|signal| *signal == Signal::Yes) else {
            return false;
        };
        self.posted.drain(..=at);
        self.stage.handle_sent(u32::try_from(at + 1).expect("few"));
        true
    }

    fn receive(&mut self, frame: &[u8]) {
        let account = self.decoder.decode(frame, &Anywhere, &mut self.received).expect("honest");
        self.stage.handle_received(account).expect("honest");
    }
}

#[test]
fn a_close_with_both_credits_in_flight_is_honest_and_says_when_it_is_sent() {
    let both = windows(4, 4);
    let (mut client, mut server) = (Side::new(both, both, 40), Side::new(both, both, 40));
    push(&mut client.stage, request(1, 0));
    push(&mut client.stage, cancel(1));
    for frame in client.post() {
        server.receive(&frame);
        let credit = server.post();
        assert_eq!(credit.len(), 1, "each window's debt is due at once");
        client.receive(&credit[0]);
    }
    push(&mut server.stage, Message::bare(Head::GoAway { reason: GoAway::Draining }));
    server.post().iter().for_each(|frame| client.receive(frame));
    assert!(server.posted.iter().all(|signal| *signal == Signal::No));
    let mut frames = Vec::new();
    server.stage.last(&mut frames);
    let [last] = &frames[..] else { panic!("{} frames", frames.len()) };
    assert_eq!((last.header.kind, last.signal), (Kind::Borrow, Signal::Yes));
    let mut buffer = [0; FRAME];
    let len = last.encode(&mut buffer, 0, |_| None).staged;
    client.receive(&buffer[..len]);
    assert_eq!(client.received.len(), 1, "GOAWAY alone");
    assert_eq!(client.stage.take_asked(), None);
}

#[test]
fn two_stages_deliver_everything_under_any_schedule() {
    for seed in 0..60 {
        let mut rng = Rng::with_seed(seed);
        let mut window = || windows(rng.u32(1..4), rng.u32(1..4));
        let (a, b) = (window(), window());
        let slots = 1 + u32::try_from(seed % 9).expect("small");
        let mut sides = [Side::new(b, a, slots), Side::new(a, b, slots)];
        let mut wires: [VecDeque<Vec<u8>>; 2] = Default::default();
        let mut sent = [0, 0];
        let mut idle = 0;
        while idle < 100 {
            let from = rng.usize(..2);
            let progress = match rng.u8(..4) {
                0 if sent[from] < 300 => {
                    let slot = u32::try_from(sent[from]).expect("few");
                    let lens = [0, 10, 4000, 4057, 9000, 40_000];
                    let message = match rng.usize(..8) {
                        at if at < 6 => request(slot, lens[at]),
                        _ => cancel(slot),
                    };
                    let hints = SendHints::default();
                    let taken = sides[from].stage.push(Outgoing { message, hints }).is_ok();
                    sent[from] += usize::from(taken);
                    taken
                }
                1 => {
                    let frames = sides[from].post();
                    wires[from].extend(frames.iter().cloned());
                    let room = sides[1 - from].receives as usize;
                    assert!(wires[from].len() <= room, "seed {seed}: a frame finds no receive");
                    !frames.is_empty()
                }
                2 => sides[from].complete(),
                _ => wires[from].pop_front().is_some_and(|frame| {
                    sides[1 - from].receive(&frame);
                    true
                }),
            };
            idle = if progress { 0 } else { idle + 1 };
        }
        for from in 0..2 {
            assert_eq!(sent[from], 300, "seed {seed}");
            assert_eq!(sides[1 - from].received.len(), 300, "seed {seed} stands still");
        }
    }
}

fn stream_message(number: u32, len: usize) -> Message {
    let head = Head::Message { call: call(1), number };
    Message::with_body(head, Body::from(Bytes::from(vec![7; len])))
}

/// Kinds with the numbers of messages, and offsets of pieces.
fn next_of_stream(stage: &mut Outbound) -> Vec<(Kind, u32, u32)> {
    let mut frames = Vec::new();
    stage.next(&mut frames);
    let of = |frame: &Frame| (frame.header.kind, frame.header.method, frame.header.aux);
    frames.iter().map(of).collect()
}

#[test]
fn a_stream_has_one_body_in_pieces_at_a_time_and_others_pass_it() {
    let mut stage = outbound(windows(16, 8), 40);
    let piece = FRAME - 40;
    push(&mut stage, stream_message(0, piece + 1));
    push(&mut stage, stream_message(1, piece + 1));
    push(&mut stage, stream_message(2, 5));
    push(&mut stage, request(2, 5));
    let offset = u32::try_from(piece).expect("short");
    let expected = [
        (Kind::Message, 0, 0),
        (Kind::Message, 2, 0),
        (Kind::Request, 1, 0),
        (Kind::Data, 0, 0),
        (Kind::Data, 0, offset),
        (Kind::Message, 1, 0),
        (Kind::Data, 0, 0),
        (Kind::Data, 0, offset),
    ];
    assert_eq!(next_of_stream(&mut stage), expected);
}

#[test]
fn revoking_a_stream_gives_up_all_its_bodies() {
    let mut stage = outbound(windows(1, 8), 40);
    for number in 0..3 {
        push(&mut stage, stream_message(number, 2 * FRAME));
    }
    assert_eq!(next_of_stream(&mut stage), [(Kind::Message, 0, 0)]);
    assert_eq!(stage.revoke(call(1), Instant::now()), Revoked::Body);
    assert_eq!(stage.queues.revoke(call(1)), 0, "nothing is left");
}

#[test]
fn a_newer_window_takes_the_place_of_one_that_waits() {
    let mut stage = outbound(windows(1, 8), 40);
    push(&mut stage, request(2, 0));
    for granted in [100, 300, 200] {
        push(&mut stage, Message::bare(Head::Window { call: call(1), granted }));
    }
    assert_eq!(next(&mut stage), [(Kind::Request, 2)]);
    stage.handle_received(Account { class: Class::Data, count: 1, loan: None }).expect("honest");
    let mut frames = Vec::new();
    stage.next(&mut frames);
    let windows: Vec<_> = frames.iter().map(|frame| frame.header.time_us).collect();
    assert_eq!(windows, [300]);
}

#[tokio::test]
async fn memory_for_a_write_is_held_only_while_there_is_something_to_write() {
    let size = PoolSize { longest: 64 << 10, cap: 1 << 20, slab_len: 64 << 10 };
    let pool = Staging::new(size, Sources::new(), Arc::new(InPlace));
    let soon = || Instant::now() + Duration::from_secs(1);
    let credits = Credits::new(windows(8, 8), windows(8, 8));
    let limits = OutboundLimits { in_pieces: 16 << 10, ..limits() };
    let mut stage = Outbound::new(limits, credits, SendQueue::new(40), rendezvous());
    let early = pool.stage(64 << 10, soon()).await.expect("room");
    assert!(stage.set_reserve(early).is_some(), "there is nothing to write");
    push(&mut stage, request(1, 64 << 10));
    assert_eq!(next(&mut stage), [(Kind::Request, 1)]);
    let reserve = pool.stage(64 << 10, soon()).await.expect("room");
    assert!(stage.set_reserve(reserve).is_none());
    let mut settled = Settled::default();
    stage.settle(Instant::now(), &mut settled);
    assert!(settled.reserve.is_none(), "it is needed");
    stage.revoke(call(1), Instant::now());
    stage.settle(Instant::now(), &mut settled);
    assert!(settled.reserve.take().is_some());
    assert_eq!(pool.snapshot().in_use_bytes, 0);
}
