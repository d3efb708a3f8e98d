use super::*;
use fastrand::Rng;

const MESSAGES: u64 = 1_000_000;

/// A frame on the wire.
#[derive(Debug, Clone, Copy)]
struct Frame {
    class: Class,
    count: u32,
}

/// One side with its queues and its posted receives.
struct Side {
    credits: Credits,
    posted: u32,
    data: u64,
    control: u64,
}

impl Side {
    fn new(peer: Windows, own: Windows) -> Self {
        Self { credits: Credits::new(peer, own), posted: own.receives(), data: 0, control: 0 }
    }

    /// The next frame that may go out. Control goes first, as in the transport.
    fn next(&mut self) -> Option<Frame> {
        let class = if let Some(window) = self.credits.poll_credit() {
            Class::Credit(window)
        } else if self.control > 0 && self.credits.may_send(Class::Control) {
            self.control -= 1;
            Class::Control
        } else if self.data > 0 && self.credits.may_send(Class::Data) {
            self.data -= 1;
            Class::Data
        } else {
            return None;
        };
        Some(Frame { class, count: self.credits.handle_sent(class) })
    }

    fn receive(&mut self, frame: Frame) {
        assert!(self.posted > 0, "{frame:?} finds no receive");
        // Posted again before it is looked at.
        self.credits.handle_reposted(frame.class).expect("an honest peer");
        self.credits.handle_count(frame.count).expect("an honest peer");
    }
}

/// Two sides and the frames on their way.
struct Pair {
    sides: [Side; 2],
    wires: [VecDeque<Frame>; 2],
}

impl Pair {
    fn new(windows: [Windows; 2]) -> Self {
        let [a, b] = windows;
        Self { sides: [Side::new(b, a), Side::new(a, b)], wires: Default::default() }
    }

    fn send(&mut self, from: usize) -> bool {
        let Some(frame) = self.sides[from].next() else { return false };
        self.wires[from].push_back(frame);
        // Every frame on the wire holds a receive of the other side.
        let unreceived = u32::try_from(self.wires[from].len()).expect("few");
        assert!(unreceived <= self.sides[1 - from].posted, "more frames than receives");
        true
    }

    fn deliver(&mut self, from: usize) -> bool {
        let Some(frame) = self.wires[from].pop_front() else { return false };
        self.sides[1 - from].receive(frame);
        true
    }

    /// Lets both sides go on until neither can.
    fn settle(&mut self) {
        let mut progress = true;
        while progress {
            progress = false;
            for from in 0..2 {
                progress |= self.send(from);
                progress |= self.deliver(from);
            }
        }
    }

    fn waiting(&self) -> u64 {
        self.sides.iter().map(|side| side.data + side.control).sum()
    }
}

fn run(seed: u64, windows: [Windows; 2], messages: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut pair = Pair::new(windows);
    for _ in 0..messages {
        let side = rng.usize(..2);
        match rng.u8(..8) {
            0..=2 => pair.sides[side].data += 1,
            3 => pair.sides[side].control += 1,
            4 | 5 => drop(pair.send(side)),
            _ => drop(pair.deliver(side)),
        }
    }
    pair.settle();
    assert_eq!(pair.waiting(), 0, "standstill with seed {seed} and windows {windows:?}");
}

fn windows(data: u32, control: u32) -> Windows {
    Windows { data, control }
}

#[test]
fn every_frame_finds_a_receive_and_no_schedule_stops() {
    let sizes = [1, 2, 3];
    let mut cases = Vec::new();
    for data in sizes {
        for control in sizes {
            for peer in sizes {
                cases.push([windows(data, control), windows(peer, 4 - peer)]);
            }
        }
    }
    let share = MESSAGES / cases.len() as u64 + 1;
    cases.into_iter().zip(0..).for_each(|(case, seed)| run(seed, case, share));
}

#[test]
fn the_default_windows_never_stop() {
    run(7, [windows(64, 16), windows(64, 16)], MESSAGES);
}

#[test]
fn control_gets_through_while_data_waits() {
    let mut pair = Pair::new([windows(1, 1), windows(1, 1)]);
    pair.sides[0].data = 10;
    assert!(pair.send(0));
    assert!(!pair.send(0), "the data window is used up");
    pair.sides[0].control = 1;
    assert!(pair.send(0));
    assert_eq!(pair.wires[0][1].class, Class::Control);
}

#[test]
fn a_credit_is_never_answered_by_a_credit() {
    let mut pair = Pair::new([windows(1, 1), windows(1, 1)]);
    pair.sides[0].data = 1;
    assert!(pair.send(0) && pair.deliver(0));
    assert!(pair.send(1), "the debt of a window of one is due at once");
    assert_eq!(pair.wires[1][0].class, Class::Credit(Window::Data));
    assert!(pair.deliver(1));
    assert!(!pair.send(0) && !pair.send(1), "silence follows");
}

#[test]
fn a_frame_settles_the_debt_that_it_carries() {
    let mut credits = Credits::new(windows(4, 4), windows(4, 4));
    credits.handle_reposted(Class::Data).expect("within the window");
    assert_eq!(credits.poll_credit(), Some(Window::Data));
    assert_eq!(credits.handle_sent(Class::Data), 1);
    assert_eq!(credits.poll_credit(), None);
}

#[test]
fn a_count_beyond_what_was_sent_is_a_lie() {
    let mut credits = Credits::new(windows(2, 2), windows(2, 2));
    credits.handle_sent(Class::Data);
    let lie = FalseCredit { claimed: 2, in_flight: 1 };
    assert_eq!(credits.handle_count(2), Err(lie));
    let negative = FalseCredit { claimed: u32::MAX, in_flight: 1 };
    assert_eq!(credits.handle_count(u32::MAX), Err(negative));
    assert_eq!(credits.handle_count(1), Ok(()));
}

#[test]
fn counts_wrap() {
    let mut credits = Credits::new(windows(2, 2), windows(2, 2));
    credits.outbound.covered = u32::MAX;
    credits.handle_sent(Class::Data);
    assert_eq!(credits.handle_count(0), Ok(()));
    assert!(credits.may_send(Class::Data));
}

#[test]
fn a_frame_too_many_of_any_class_is_noticed_and_not_one_before() {
    for (class, allowed) in
        [(Class::Data, 3), (Class::Control, 5), (Class::Credit(Window::Data), 2)]
    {
        let mut credits = Credits::new(windows(1, 1), windows(3, 5));
        for _ in 0..allowed {
            assert_eq!(credits.handle_reposted(class), Ok(()));
        }
        let sent = allowed + 1;
        assert_eq!(credits.handle_reposted(class), Err(Overrun { class, sent, allowed }));
        // Once it is told, it may send anew.
        credits.handle_sent(Class::Data);
        assert_eq!(credits.handle_reposted(class), Ok(()));
    }
}
