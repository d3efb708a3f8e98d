use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

const WINDOW: u32 = 1000;

/// Sends a message of this length at once.
fn pass(sender: &mut SendStream, receiver: &mut RecvStream<usize>, len: usize) {
    assert!(sender.may_send());
    let number = sender.number(len);
    receiver.handle_message(number, len, len).expect("allowed");
}

fn drain(receiver: &mut RecvStream<usize>) -> Vec<usize> {
    std::iter::from_fn(|| receiver.take().map(|taken| taken.message)).collect()
}

#[test]
fn one_message_may_go_beyond_the_window_and_none_after_it() {
    let (mut sender, mut receiver) = (SendStream::new(WINDOW), RecvStream::new(WINDOW));
    pass(&mut sender, &mut receiver, 900);
    pass(&mut sender, &mut receiver, 1 << 30);
    assert!(!sender.may_send());
    assert_eq!(receiver.take().expect("the first").granted, Some(1964));
    let granted = receiver.take().expect("the long one").granted.expect("more than a quarter");
    assert!(sender.handle_window(granted));
    assert!(sender.may_send());
}

#[test]
fn grants_come_by_quarters_of_the_window_and_never_fall() {
    let (mut sender, mut receiver) = (SendStream::new(WINDOW), RecvStream::new(WINDOW));
    for _ in 0..5 {
        pass(&mut sender, &mut receiver, 36);
    }
    let grants: Vec<_> = (0..5).map(|_| receiver.take().expect("five").granted).collect();
    assert_eq!(grants, [None, None, Some(1300), None, None]);
    assert!(!sender.handle_window(1300), "nothing waited for it");
    sender.handle_window(5);
    assert_eq!(sender.granted, 1300);
}

#[test]
fn a_window_of_one_byte_still_lets_every_message_through() {
    let (mut sender, mut receiver) = (SendStream::new(1), RecvStream::new(1));
    for len in [0, 5000, 1] {
        pass(&mut sender, &mut receiver, len);
        assert!(!sender.may_send());
        let granted = receiver.take().expect("here").granted.expect("all of it");
        assert!(sender.handle_window(granted));
    }
}

#[test]
fn what_overtakes_waits_for_what_it_overtook() {
    let mut receiver = RecvStream::new(WINDOW);
    assert_eq!(receiver.handle_message(1, 10, 'b'), Ok(Change::Nothing));
    assert_eq!(receiver.handle_end(3), Ok(Change::Nothing));
    assert_eq!(receiver.take(), None);
    assert_eq!(receiver.handle_message(0, 500, 'a'), Ok(Change::News));
    assert!(!receiver.is_complete());
    assert_eq!(receiver.handle_message(2, 1, 'c'), Ok(Change::News));
    assert!(receiver.is_complete());
    let taken: String = std::iter::from_fn(|| receiver.take()).map(|taken| taken.message).collect();
    assert_eq!(taken, "abc");
}

#[test]
fn a_late_long_message_is_no_violation_although_a_later_one_filled_the_window() {
    let (mut sender, mut receiver) = (SendStream::new(WINDOW), RecvStream::new(WINDOW));
    let (first, second) = (sender.number(100), sender.number(5000));
    assert_eq!(receiver.handle_message(second, 5000, 2), Ok(Change::Nothing));
    assert_eq!(receiver.handle_message(first, 100, 1), Ok(Change::News));
    assert_eq!(drain(&mut receiver), [1, 2]);
}

#[test]
fn every_broken_rule_of_streams_is_named() {
    let receiver = |end: Option<u32>| {
        let mut receiver = RecvStream::new(WINDOW);
        receiver.handle_message(0, 10, ()).expect("the first");
        receiver.handle_message(2, 10, ()).expect("the third");
        end.into_iter().for_each(|end| {
            receiver.handle_end(end).expect("the end");
        });
        receiver
    };
    for number in [0, 2] {
        let repeated = receiver(None).handle_message(number, 0, ());
        assert_eq!(repeated, Err(Violation::Repeated { number }));
    }
    for number in [16, 1 << 20, u32::MAX / 2 + 1, u32::MAX] {
        let beyond = receiver(None).handle_message(number, 0, ());
        assert_eq!(beyond, Err(Violation::Window { number, granted: 1000 }));
    }
    let behind = receiver(Some(4)).handle_message(4, 0, ());
    assert_eq!(behind, Err(Violation::BehindEnd { number: 4, total: 4 }));
    for messages in [0, 1, 2] {
        let short = receiver(None).handle_end(messages);
        assert_eq!(short, Err(Violation::ShortEnd { messages }));
    }
    assert_eq!(receiver(Some(3)).handle_end(3), Err(Violation::EndedTwice));
    let far = receiver(None).handle_end(1 << 30);
    assert_eq!(far, Err(Violation::Window { number: (1 << 30) - 1, granted: 1000 }));
}

#[test]
fn more_than_was_granted_is_a_violation() {
    let mut receiver = RecvStream::new(WINDOW);
    receiver.handle_message(0, 936, ()).expect("the window");
    let beyond = receiver.handle_message(1, 0, ());
    assert_eq!(beyond, Err(Violation::Window { number: 1, granted: 1000 }));
    // So it is for what comes out of order.
    let mut receiver = RecvStream::new(WINDOW);
    receiver.handle_message(1, 936, ()).expect("it may have been first");
    assert!(receiver.handle_message(2, 0, ()).is_err());
}

#[test]
fn a_closed_stream_keeps_nothing_and_still_holds_its_sender_to_the_rules() {
    let mut receiver = RecvStream::new(WINDOW);
    receiver.handle_message(0, 100, 'a').expect("allowed");
    receiver.handle_message(2, 100, 'c').expect("allowed");
    receiver.close();
    receiver.handle_message(1, 100, 'b').expect("allowed");
    assert_eq!((receiver.take(), receiver.early.len()), (None, 0));
    assert!(receiver.handle_message(0, 0, 'x').is_err());
    assert!(receiver.handle_message(3, 500, 'd').is_ok());
    assert!(receiver.handle_message(4, 500, 'e').is_err());
}

#[test]
fn numbers_wrap() {
    let mut sender = SendStream::new(WINDOW);
    sender.count = u32::MAX;
    let mut receiver = RecvStream::new(WINDOW);
    receiver.arrived = u64::from(u32::MAX);
    for len in [1, 2, 3] {
        pass(&mut sender, &mut receiver, len);
    }
    assert_eq!(sender.end(), 2);
    assert_eq!(receiver.handle_end(2), Ok(Change::News));
    assert_eq!(drain(&mut receiver), [1, 2, 3]);
}

/// Memory that messages share, counted until the last of them lets go.
struct Chunk(Arc<AtomicUsize>);

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &[7; 16 << 10]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn short_messages_that_nobody_reads_keep_few_of_the_chunks_that_they_came_in() {
    let chunks = Arc::new(AtomicUsize::new(0));
    let mut streams = CallStreams::new(None, Some(RecvStream::new(1 << 20)));
    let mut arrive = |number: u32, len: usize| {
        chunks.fetch_add(1, Ordering::Relaxed);
        let chunk = Bytes::from_owner(Chunk(Arc::clone(&chunks)));
        streams.handle_message(number, chunk.slice(..len).into()).expect("within the window");
    };
    // The last of the first two hundred is missing, so that others wait behind a gap.
    (0..199).chain(200..1000).for_each(|number| arrive(number, 10));
    assert!(chunks.load(Ordering::Relaxed) <= 16, "{chunks:?} chunks for 10 bytes each");
    arrive(199, 8 << 10);
    assert!(chunks.load(Ordering::Relaxed) <= 17, "a long one is worth its chunk");
    for number in 0..1000 {
        let len = if number == 199 { 8 << 10 } else { 10 };
        let taken = streams.take().expect("all are here");
        assert_eq!(taken.message.into_bytes(), vec![7; len]);
    }
    assert_eq!(chunks.load(Ordering::Relaxed), 0);
}

/// What happens next in a run of a stream.
#[derive(Debug, Clone)]
enum Step {
    /// The sender sends a message of this length, if it may.
    Send(usize),
    /// One of the messages under way arrives.
    Arrive(usize),
    /// The user takes one.
    Take,
    /// One of the grants under way arrives.
    Granted(usize),
    /// The sender has no more.
    End,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![3 => 0..200_usize, 1 => 0..5000_usize];
    let step = prop_oneof![
        6 => len.prop_map(Step::Send),
        6 => any::<usize>().prop_map(Step::Arrive),
        6 => Just(Step::Take),
        4 => any::<usize>().prop_map(Step::Granted),
        1 => Just(Step::End),
    ];
    prop::collection::vec(step, 0..300)
}

/// Something under way to the receiver.
#[derive(Debug)]
enum Frame {
    Message { number: u32, len: usize, place: usize },
    End(u32),
}

struct Run {
    sender: SendStream,
    receiver: RecvStream<usize>,
    frames: Vec<Frame>,
    grants: Vec<u64>,
    sent: usize,
    taken: usize,
    ended: bool,
    /// What the messages cost that wait at the receiver, and the costliest of all.
    waiting: u64,
    costliest: u64,
}

impl Run {
    fn new(window: u32) -> Self {
        Self {
            sender: SendStream::new(window),
            receiver: RecvStream::new(window),
            frames: Vec::new(),
            grants: Vec::new(),
            sent: 0,
            taken: 0,
            ended: false,
            waiting: 0,
            costliest: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Send(len) if self.sender.may_send() => {
                let (number, place) = (self.sender.number(*len), self.sent);
                self.frames.push(Frame::Message { number, len: *len, place });
                self.sent += 1;
            }
            Step::Arrive(pick) if !self.frames.is_empty() => {
                let frame = self.frames.remove(pick % self.frames.len());
                self.arrive(frame);
            }
            Step::Take => self.take(),
            Step::Granted(pick) if !self.grants.is_empty() => {
                let granted = self.grants.remove(pick % self.grants.len());
                self.sender.handle_window(granted);
            }
            Step::End if !self.ended => {
                self.ended = true;
                self.frames.push(Frame::End(self.sender.end()));
            }
            _ => {}
        }
    }

    fn arrive(&mut self, frame: Frame) {
        match frame {
            Frame::Message { number, len, place } => {
                self.receiver.handle_message(number, len, place).expect("honest");
                self.waiting += cost(len);
                self.costliest = self.costliest.max(cost(len));
                assert!(self.waiting < self.receiver.window + self.costliest);
            }
            Frame::End(messages) => {
                self.receiver.handle_end(messages).expect("honest");
            }
        }
    }

    fn take(&mut self) {
        let before = self.receiver.taken;
        let Some(taken) = self.receiver.take() else { return };
        self.waiting -= self.receiver.taken - before;
        assert_eq!(taken.message, self.taken, "in order");
        self.taken += 1;
        self.grants.extend(taken.granted);
    }
}

proptest! {
    #[test]
    fn every_message_is_taken_in_order_whatever_overtakes_what(
        window in prop_oneof![1..200_u32, 200..5000_u32],
        steps in steps(),
    ) {
        let mut run = Run::new(window);
        steps.iter().for_each(|step| run.step(step));
        // Then everything that is under way comes, and the sender is never stuck.
        let total = run.sent + if run.ended { 0 } else { 20 };
        while run.taken < total {
            let before = (run.sent, run.taken, run.frames.len(), run.grants.len());
            if run.sent < total {
                run.step(&Step::Send(77));
            }
            run.step(&Step::Arrive(0));
            run.step(&Step::Take);
            run.step(&Step::Granted(0));
            let after = (run.sent, run.taken, run.frames.len(), run.grants.len());
            prop_assert_ne!(before, after, "nothing moves");
        }
        run.step(&Step::End);
        while !run.frames.is_empty() {
            run.step(&Step::Arrive(0));
        }
        prop_assert!(run.receiver.is_complete());
        prop_assert_eq!(run.waiting, 0);
    }

    #[test]
    fn no_input_panics_a_stream_or_makes_it_keep_more_than_its_window(
        window in prop_oneof![Just(0), 1..3000_u32, Just(u32::MAX)],
        input in prop::collection::vec(
            (
                prop_oneof![0..40_u32, any::<u32>()],
                prop_oneof![0..2000_usize, any::<usize>()],
                0..8_u8,
            ),
            0..200,
        ),
    ) {
        let mut receiver = RecvStream::new(window);
        let mut sender = SendStream::new(window);
        for (number, len, what) in input {
            match what {
                0 => drop(receiver.take()),
                1 => drop(receiver.handle_end(number)),
                2 => drop(sender.handle_window(len as u64)),
                3 if sender.may_send() => drop(sender.number(len)),
                4 if number % 37 == 0 => receiver.close(),
                _ => drop(receiver.handle_message(number, len, ())),
            }
            let kept = (receiver.ready.len() + receiver.early.len()) as u64;
            prop_assert!(kept * COST <= u64::from(window) + COST);
        }
    }
}
