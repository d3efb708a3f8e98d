use super::*;
use std::sync::Arc;
use std::task::Wake;

use bytes::Bytes;
use verbwire_core::config::{Limits, Random};
use verbwire_core::message::{Form, Head, MethodId, ReplyForm};
use verbwire_core::proto::hello::Identity;
use verbwire_core::transport::SendHints;
use verbwire_core::wire::HEADER_LEN;

const FRAME: usize = 4096;

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

fn outbound(queue_bytes: usize) -> Outbound {
    Outbound::new(OutboundLimits { queue_bytes, body_bytes: 100 * FRAME, frame_body: FRAME })
}

fn call(slot: u32) -> CallId {
    CallId { slot, generation: 1 }
}

fn request(slot: u32, len: usize) -> Outgoing {
    let head = Head::Request {
        call: call(slot),
        method: MethodId(1),
        path: None,
        timeout: std::time::Duration::from_secs(1),
        form: Form::Whole,
        reply: ReplyForm::Whole,
        slot: None,
    };
    Outgoing {
        message: Message::with_body(head, Body::from(Bytes::from(vec![0; len]))),
        hints: SendHints::default(),
    }
}

fn push(outbound: &mut Outbound, slot: u32, len: usize) {
    outbound.push(request(slot, len)).expect("room");
}

/// The frames of the next batch: slot, offset of a piece, body length, flags.
fn next_frames(outbound: &mut Outbound) -> Vec<(u32, u32, u32, Flags)> {
    let mut batch = Batch::default();
    let (next, _) = outbound.next(&mut batch);
    assert_eq!(next == Next::Write, !batch.is_written());
    let bytes = batch.drain();
    let mut frames = Vec::new();
    let mut rest = &bytes[..];
    while let Some((header, behind)) = rest.split_first_chunk::<HEADER_LEN>() {
        let header = Header::decode(header).expect("a frame");
        frames.push((header.call.slot, header.aux, header.body_len, header.flags));
        let has_body = !header.flags.contains(Flags::BODY_FOLLOWS);
        let body = if has_body { header.body_len as usize } else { 0 };
        rest = &behind[body..];
    }
    assert!(rest.is_empty());
    frames
}

#[test]
fn small_frames_go_before_the_next_piece_and_bodies_take_turns() {
    let (none, last, follows) = (Flags::default(), Flags::LAST, Flags::BODY_FOLLOWS);
    let mut outbound = outbound(1 << 20);
    push(&mut outbound, 1, 2 * FRAME + 1);
    push(&mut outbound, 2, FRAME + 5);
    push(&mut outbound, 3, 10);
    let first =
        [(1, 0, 8193, follows), (2, 0, 4101, follows), (3, 0, 10, none), (1, 0, 4096, none)];
    assert_eq!(next_frames(&mut outbound), first);
    push(&mut outbound, 4, FRAME);
    let second = [(4, 0, 4096, none), (2, 0, 4096, none)];
    assert_eq!(next_frames(&mut outbound), second);
    assert_eq!(next_frames(&mut outbound), [(1, 4096, 4096, none)]);
    assert_eq!(next_frames(&mut outbound), [(2, 4096, 5, last)]);
    assert!(!outbound.is_empty());
    assert_eq!(next_frames(&mut outbound), [(1, 8192, 1, last)]);
    assert!(outbound.is_empty());
    assert_eq!(next_frames(&mut outbound), []);
}

#[test]
fn a_revoked_body_ends_with_aborted_and_whole_frames_stay() {
    let mut outbound = outbound(1 << 20);
    push(&mut outbound, 1, 2 * FRAME);
    push(&mut outbound, 2, 3);
    next_frames(&mut outbound);
    assert_eq!(outbound.revoke(call(2)), Revoked::Nothing);
    assert_eq!(outbound.revoke(call(1)), Revoked::Aborted);
    assert_eq!(outbound.revoke(call(1)), Revoked::Nothing);
    assert_eq!(next_frames(&mut outbound), [(1, 4096, 0, Flags::ABORTED)]);
    assert!(outbound.is_empty());
}

#[test]
fn a_full_queue_gives_the_message_back_until_its_batch_is_written() {
    let mut outbound = outbound(100);
    push(&mut outbound, 1, 60);
    let refused = outbound.push(request(2, 7));
    let Err(SendError::Full(back)) = refused else {
        panic!("expected full, got {refused:?}");
    };
    assert_eq!(back.message.body.len(), 7);
    let waker = Waker::from(Arc::new(Nobody));
    assert!(outbound.wait(&waker));
    assert!(outbound.wait(&waker));
    let mut batch = Batch::default();
    let (next, woken) = outbound.next(&mut batch);
    assert_eq!((next, woken.len()), (Next::Write, 0));
    assert!(!outbound.has_room(), "the batch is not written yet");
    batch.drain();
    let (next, woken) = outbound.next(&mut batch);
    assert_eq!((next, woken.len()), (Next::Idle, 1));
    assert!(!outbound.wait(&waker));
}

#[test]
fn bodies_by_reference_do_not_fill_the_queue() {
    let mut outbound = outbound(1000);
    for slot in 0..20 {
        push(&mut outbound, slot, FRAME);
    }
    assert!(outbound.has_room());
}

#[test]
fn the_first_end_is_the_one_that_is_told() {
    let mut outbound = outbound(100);
    let error = |text: &str| Error::new(ErrorKind::Lost, text);
    outbound.end(EndKind::Broken, error("first"));
    outbound.end(EndKind::Closed, error("second"));
    let refused = outbound.push(request(1, 1));
    let Err(SendError::Closed(cause)) = refused else {
        panic!("expected closed, got {refused:?}");
    };
    assert_eq!(cause.to_string(), "first");
    assert_eq!(outbound.ended().map(|(how, _)| how), Some(EndKind::Closed));
    assert!(!outbound.is_empty(), "the poster has to let the socket go");
    let mut batch = Batch::default();
    let (next, _) = outbound.next(&mut batch);
    assert_eq!(next, Next::End(EndKind::Closed));
    assert!(outbound.is_empty());
}

#[test]
fn a_peer_that_announces_tiny_frames_gets_usable_ones() {
    let local = Identity::new(Random::from_seed(1)).hello(&Limits::default());
    let peer = Hello { max_frame_body: 0, ..local.clone() };
    let limits = OutboundLimits::new(&local, &peer, &TcpConfig::default());
    assert_eq!(limits.frame_body, MIN_FRAME_BODY as usize);
}

#[test]
fn long_bodies_wait_for_the_long_ones_before_and_short_messages_do_not() {
    let limits = OutboundLimits { queue_bytes: 1 << 20, body_bytes: 10 * FRAME, frame_body: FRAME };
    let mut outbound = Outbound::new(limits);
    // One passes whatever its length, and fills the queue for others.
    push(&mut outbound, 1, 11 * FRAME);
    let refused = outbound.push(request(2, FRAME));
    assert!(matches!(refused, Err(SendError::Full(_))));
    push(&mut outbound, 3, 10);
    assert!(outbound.wait(&Arc::new(Nobody).into()));
    let mut batch = Batch::default();
    let mut turns = 0;
    while outbound.next(&mut batch).1.is_empty() {
        batch.drain();
        turns += 1;
    }
    // Each turn takes a piece; the one that the poster has counts until it is written.
    assert_eq!(turns, 2);
    push(&mut outbound, 2, FRAME);
    assert_eq!(outbound.revoke(call(1)), Revoked::Aborted);
    assert!(!outbound.wait(&Arc::new(Nobody).into()));
}

fn stream_message(number: u32, len: usize) -> Outgoing {
    let head = Head::Message { call: call(1), number };
    let body = Body::from(Bytes::from(vec![0; len]));
    Outgoing { message: Message::with_body(head, body), hints: SendHints::default() }
}

#[test]
fn a_stream_has_one_body_in_pieces_at_a_time_and_short_messages_pass_it() {
    let (none, last, follows) = (Flags::default(), Flags::LAST, Flags::BODY_FOLLOWS);
    let mut outbound = outbound(1 << 20);
    for (number, len) in [(0, FRAME + 1), (1, FRAME + 2), (2, 7)] {
        outbound.push(stream_message(number, len)).expect("room");
    }
    let first = [(1, 0, 4097, follows), (1, 0, 7, none), (1, 0, 4096, none)];
    assert_eq!(next_frames(&mut outbound), first);
    assert_eq!(next_frames(&mut outbound), [(1, 4096, 1, last), (1, 0, 4098, follows)]);
    assert_eq!(next_frames(&mut outbound), [(1, 0, 4096, none)]);
    assert_eq!(next_frames(&mut outbound), [(1, 4096, 2, last)]);
    assert!(outbound.is_empty());
    assert_eq!(outbound.bulk_bytes, 0);
}

#[test]
fn revoking_a_stream_gives_up_all_its_bodies() {
    let mut outbound = outbound(1 << 20);
    for number in 0..3 {
        outbound.push(stream_message(number, FRAME + 1)).expect("room");
    }
    next_frames(&mut outbound);
    assert_eq!(outbound.revoke(call(1)), Revoked::Aborted);
    assert_eq!(next_frames(&mut outbound), [(1, 4096, 0, Flags::ABORTED)]);
    assert!(outbound.is_empty());
    assert_eq!(outbound.bulk_bytes, 0);
}
