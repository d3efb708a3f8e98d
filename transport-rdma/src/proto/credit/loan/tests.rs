use std::collections::VecDeque;

use fastrand::Rng;

use super::super::{Class, Credits, Windows};
use super::*;

#[derive(Debug, Clone, Copy)]
enum What {
    Data,
    Lend(Lend),
    Borrow(Borrow),
    Credit,
}

/// A frame on the wire.
type Frame = (What, Class, u32);

const FLOOR: Windows = Windows { data: 2, control: 2 };
const MOST: u32 = 16;

/// A borrower with data, a lender that gives and takes as it likes, and what is on its way between them.
struct World {
    borrower: Credits,
    lender: Credits,
    to_lender: VecDeque<Frame>,
    to_borrower: VecDeque<Frame>,
    data: u64,
    /// Receives that the lender has set aside beyond the floor.
    set_aside: u32,
    wanted: u32,
}

impl World {
    fn new() -> Self {
        let other = Windows { data: 3, control: 3 };
        Self {
            borrower: Credits::with_loans((FLOOR, MOST), other),
            lender: Credits::new(other, FLOOR),
            to_lender: VecDeque::new(),
            to_borrower: VecDeque::new(),
            data: 0,
            set_aside: 0,
            wanted: 0,
        }
    }

    fn borrower_sends(&mut self) -> bool {
        let (what, class) = if let Some(borrow) = self.borrower.poll_borrow(self.data > 0) {
            (What::Borrow(borrow), Class::Control)
        } else if self.data > 0 && self.borrower.may_send(Class::Data) {
            self.data -= 1;
            (What::Data, Class::Data)
        } else if let Some(window) = self.borrower.poll_credit() {
            (What::Credit, Class::Credit(window))
        } else {
            return false;
        };
        self.to_lender.push_back((what, class, self.borrower.handle_sent(class)));
        let data = self.to_lender.iter().filter(|(_, class, _)| *class == Class::Data).count();
        let promised = (FLOOR.data + self.set_aside) as usize;
        assert!(data <= promised, "{data} frames, and {promised} receives");
        true
    }

    fn lender_sends(&mut self) -> bool {
        let (what, class) = if let Some(lend) = self.lender.poll_lend() {
            (What::Lend(lend), Class::Control)
        } else if let Some(window) = self.lender.poll_credit() {
            (What::Credit, Class::Credit(window))
        } else {
            return false;
        };
        self.to_borrower.push_back((what, class, self.lender.handle_sent(class)));
        true
    }

    fn lender_receives(&mut self) -> bool {
        let Some((what, class, count)) = self.to_lender.pop_front() else { return false };
        self.lender.handle_reposted(class).expect("within what was promised");
        self.lender.handle_count(count).expect("honest");
        if let What::Borrow(borrow) = what {
            self.set_aside -= self.lender.handle_borrow(borrow).expect("honest");
            self.wanted = self.wanted.max(borrow.wanted);
        }
        true
    }

    fn borrower_receives(&mut self) -> bool {
        let Some((what, class, count)) = self.to_borrower.pop_front() else { return false };
        self.borrower.handle_reposted(class).expect("within what was promised");
        self.borrower.handle_count(count).expect("honest");
        if let What::Lend(lend) = what {
            self.borrower.handle_lend(lend).expect("honest");
        }
        true
    }

    fn lend(&mut self) {
        if std::mem::take(&mut self.wanted) > 0 && self.set_aside < MOST - FLOOR.data {
            self.set_aside += 1;
            self.lender.lend(Change::Lend(1));
        }
    }

    /// Lets both go on until neither can; the lender changes nothing.
    fn settle(&mut self) {
        while self.borrower_sends()
            | self.lender_sends()
            | self.lender_receives()
            | self.borrower_receives()
        {}
    }
}

#[test]
fn no_schedule_sends_beyond_what_is_set_aside_or_stops_and_what_is_asked_back_comes() {
    for seed in 0..400 {
        let mut rng = Rng::with_seed(seed);
        let mut world = World::new();
        for _ in 0..2000 {
            match rng.u8(..9) {
                0 | 1 => world.data += rng.u64(..4),
                2 => _ = world.borrower_sends(),
                3 => _ = world.lender_sends(),
                4 | 5 => _ = world.lender_receives(),
                6 => _ = world.borrower_receives(),
                7 => world.lend(),
                _ if rng.u8(..4) == 0 => {
                    world.lender.lend(Change::Keep(rng.u32(..=world.set_aside)));
                }
                _ => {}
            }
        }
        world.settle();
        assert_eq!(world.data, 0, "standstill with seed {seed}");
        world.lender.lend(Change::Keep(0));
        world.data = 100;
        world.settle();
        assert_eq!((world.data, world.set_aside), (0, 0), "seed {seed}");
    }
}

fn send(credits: &mut Credits, frames: std::ops::Range<u32>) {
    for _ in frames {
        credits.handle_sent(Class::Data);
    }
}

#[test]
fn who_has_used_its_window_up_asks_once_for_as_much_again() {
    let mut credits = Credits::with_loans((FLOOR, 5), FLOOR);
    assert_eq!(credits.poll_borrow(true), None, "the window is open");
    send(&mut credits, 0..2);
    assert_eq!(credits.poll_borrow(false), None, "nothing waits");
    assert_eq!(credits.poll_borrow(true), Some(Borrow { returned: 0, wanted: 2 }));
    assert_eq!(credits.poll_borrow(true), None, "it has asked");
    credits.handle_lend(Lend { lent: 2, keep: KEEP_ALL }).expect("within the window");
    send(&mut credits, 0..2);
    assert_eq!(credits.poll_borrow(true), Some(Borrow { returned: 0, wanted: 1 }));
    credits.handle_lend(Lend { lent: 3, keep: KEEP_ALL }).expect("within the window");
    credits.handle_sent(Class::Data);
    assert_eq!(credits.poll_borrow(true), None, "there is no more");
}

#[test]
fn a_peer_that_lends_nothing_is_not_asked() {
    let mut credits = Credits::new(FLOOR, FLOOR);
    send(&mut credits, 0..2);
    assert!(!credits.has_borrow(|| true));
    let lend = Lend { lent: 1, keep: KEEP_ALL };
    assert_eq!(credits.handle_lend(lend), Err(FalseLoan::Lent { lent: 1, least: 0, most: 0 }));
}

#[test]
fn what_is_not_in_use_comes_back_at_once_and_the_rest_as_it_is_covered() {
    let mut credits = Credits::with_loans((FLOOR, MOST), FLOOR);
    credits.handle_lend(Lend { lent: 6, keep: KEEP_ALL }).expect("within the window");
    send(&mut credits, 0..5);
    credits.handle_lend(Lend { lent: 6, keep: 3 }).expect("the same loan");
    assert!(!credits.may_send(Class::Data));
    assert_eq!(credits.poll_borrow(true), Some(Borrow { returned: 3, wanted: 0 }));
    credits.handle_sent(Class::Control);
    assert_eq!(credits.poll_borrow(true), None);
    credits.handle_count(2).expect("in flight");
    assert_eq!(credits.poll_borrow(true), Some(Borrow { returned: 5, wanted: 0 }));
    assert!(!credits.may_send(Class::Data), "three are in flight, and it keeps three");
}

#[test]
fn frames_come_back_as_they_were() {
    let lend = Loan::Lend(Lend { lent: u64::MAX, keep: KEEP_ALL });
    let borrow = Loan::Borrow(Borrow { returned: 7, wanted: 3 });
    for loan in [lend, borrow] {
        let header = Header::decode(&loan.header().encode()).expect("a known kind");
        assert_eq!(Loan::decode(&header), Some(loan));
    }
    let credit = Header::new(Kind::Credit, loan_call());
    assert_eq!(Loan::decode(&credit), None);
}

fn loan_call() -> CallId {
    CallId { slot: 0, generation: 0 }
}

#[test]
fn a_borrower_cannot_return_what_it_has_not() {
    let mut credits = Credits::new(FLOOR, FLOOR);
    credits.lend(Change::Lend(3));
    let borrow = |returned| Borrow { returned, wanted: 0 };
    assert_eq!(credits.handle_borrow(borrow(2)), Ok(2));
    let lie = FalseLoan::Returned { returned: 4, least: 2, most: 3 };
    assert_eq!(credits.handle_borrow(borrow(4)), Err(lie));
    assert!(credits.handle_borrow(borrow(1)).is_err());
}

#[test]
fn a_peer_that_promises_more_than_is_used_may_lend_all_of_it_and_no_more() {
    let peer = Windows { data: 4000, control: 2 };
    let mut credits = Credits::with_loans((peer, 10_000), FLOOR);
    send(&mut credits, 0..4000);
    assert_eq!(credits.poll_borrow(true), Some(Borrow { returned: 0, wanted: 96 }));
    let lend = |lent| Lend { lent, keep: KEEP_ALL };
    credits.handle_lend(lend(6000)).expect("within what it announced");
    send(&mut credits, 0..96);
    assert!(!credits.may_send(Class::Data), "more is in flight than is remembered");
    assert!(credits.handle_lend(lend(6001)).is_err());
}
