use fastrand::Rng;

use super::*;

const FLOOR: u32 = 6;
const MOST: u32 = 62;

fn kept(for_missing: u32, for_newcomers: u32) -> Kept {
    Kept { for_missing, for_newcomers }
}

fn start() -> Instant {
    Instant::now()
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// What a member's borrower knows: its loan, and what it was told to come down to.
#[derive(Debug)]
struct Borrower {
    id: MemberId,
    loan: u32,
    keep: Option<u32>,
    /// Whether it answers.
    honest: bool,
}

/// Tells borrowers of their changes.
fn tell(loans: &mut Loans, borrowers: &mut [Borrower]) {
    while let Some(id) = loans.poll_changed() {
        let borrower = borrowers.iter_mut().find(|borrower| borrower.id == id).expect("a member");
        while let Some(change) = loans.take_change(id) {
            match change {
                Change::Lend(count) => {
                    assert!(count > 0);
                    (borrower.loan, borrower.keep) = (borrower.loan + count, None);
                }
                Change::Keep(keep) => borrower.keep = Some(keep),
            }
        }
    }
}

/// An honest borrower that was asked gives back.
fn give_back(loans: &mut Loans, borrower: &mut Borrower, now: Instant) {
    let Some(keep) = borrower.keep.filter(|_| borrower.honest) else { return };
    let count = borrower.loan.saturating_sub(keep);
    (borrower.loan, borrower.keep) = (borrower.loan - count, None);
    loans.give_back(borrower.id, count, now);
}

fn check(loans: &Loans, borrowers: &[Borrower], seed: u64) {
    let Shares { posted, floors, lent, .. } = loans.shares();
    assert!(floors + lent + loans.kept.for_missing <= posted, "seed {seed}: {:?}", loans.shares());
    let known: u32 = borrowers.iter().map(|borrower| borrower.loan).sum();
    assert!(known <= lent, "seed {seed}: borrowers have {known}, and {lent} are lent");
    assert_eq!(floors, FLOOR * u32::try_from(borrowers.len()).expect("few"), "seed {seed}");
}

#[test]
fn no_more_is_promised_than_is_posted_and_who_waits_is_served() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let mut loans = Loans::new(rng.u32(20..400), kept(rng.u32(0..10), rng.u32(0..10)));
        let (mut now, mut borrowers) = (start(), Vec::<Borrower>::new());
        for _ in 0..600 {
            now += millis(rng.u64(..40));
            let some = (!borrowers.is_empty()).then(|| rng.usize(..borrowers.len().max(1)));
            match (rng.u8(..10), some) {
                (0, _) => match loans.admit(FLOOR, MOST) {
                    Ok(id) => {
                        borrowers.push(Borrower {
                            id,
                            loan: 0,
                            keep: None,
                            honest: rng.u8(..8) > 0,
                        });
                    }
                    Err(full) => assert_eq!(full.members, borrowers.len(), "seed {seed}"),
                },
                (1, Some(at)) if rng.bool() => {
                    let gone = borrowers.swap_remove(at);
                    loans.leave(gone.id, now);
                }
                (2..=4, Some(at)) => loans.want(borrowers[at].id, rng.u32(1..40), now),
                (5..=7, Some(at)) => give_back(&mut loans, &mut borrowers[at], now),
                (8, _) => loans.serve(now),
                _ => {}
            }
            if rng.bool() {
                tell(&mut loans, &mut borrowers);
            }
            check(&loans, &borrowers, seed);
        }
        // Everybody is honest, and time passes: nobody waits for ever.
        borrowers.iter_mut().for_each(|borrower| borrower.honest = true);
        let lendable = (loans.lent + loans.unpromised()).saturating_sub(loans.kept.for_newcomers);
        for _ in 0..10 * borrowers.len() {
            now += HELD;
            loans.serve(now);
            tell(&mut loans, &mut borrowers);
            borrowers.iter_mut().for_each(|borrower| give_back(&mut loans, borrower, now));
        }
        check(&loans, &borrowers, seed);
        let waiting = loans.shares().waiting;
        let alone = loans.holders().count() <= 1;
        assert!(waiting == 0 || lendable == 0 || alone, "seed {seed}: {:?}", loans.shares());
        for gone in std::mem::take(&mut borrowers) {
            loans.leave(gone.id, now);
        }
        let Shares { floors, lent, members, waiting, .. } = loans.shares();
        assert_eq!((floors, lent, members, waiting), (0, 0, 0, 0), "seed {seed}");
    }
}

/// Lends to a member until it has so many.
fn lend(loans: &mut Loans, id: MemberId, count: u32, now: Instant) {
    let mut left = count;
    while left > 0 {
        loans.want(id, left, now);
        match loans.take_change(id) {
            Some(Change::Lend(lent)) => left -= lent,
            other => panic!("{left} of {count} were not lent: {other:?}"),
        }
    }
}

#[test]
fn who_has_all_gives_half_of_it_to_one_that_comes_later() {
    let (mut loans, now) = (Loans::new(2 * FLOOR + 40, kept(0, 0)), start());
    let [hog, late] = [(); 2].map(|()| loans.admit(FLOOR, MOST).expect("room"));
    lend(&mut loans, hog, 40, now);
    loans.want(late, 30, now);
    assert!(loans.waits(late));
    assert_eq!(loans.take_change(hog), Some(Change::Keep(20)));
    loans.give_back(hog, 20, now);
    assert_eq!(loans.take_change(late), Some(Change::Lend(10)), "half of what is free");
    assert!(!loans.waits(late));
}

#[test]
fn loans_leave_room_for_newcomers_and_are_asked_back_when_they_have_used_it() {
    let (mut loans, now) = (Loans::new(3 * FLOOR + 40, kept(0, 2 * FLOOR)), start());
    let hog = loans.admit(FLOOR, MOST).expect("room");
    lend(&mut loans, hog, 40, now);
    loans.want(hog, 1, now);
    assert_eq!(loans.take_change(hog), None, "the rest is not lent");
    loans.admit(FLOOR, MOST).expect("what was kept");
    loans.serve(now);
    assert_eq!(loans.take_change(hog), Some(Change::Keep(34)), "as much as one has used");
}

#[test]
fn a_loan_that_lies_idle_goes_to_who_can_use_it() {
    let (mut loans, now) = (Loans::new(2 * FLOOR + 8, kept(0, 0)), start());
    let [idle, busy] = [(); 2].map(|()| loans.admit(FLOOR, MOST).expect("room"));
    lend(&mut loans, idle, 4, now);
    lend(&mut loans, busy, 4, now);
    loans.want(busy, 8, now);
    assert!(loans.waits(busy));
    assert_eq!(loans.take_change(idle), None, "both have the same");
    loans.serve(now + HELD);
    assert_eq!(loans.take_change(idle), Some(Change::Keep(0)));
}

#[test]
fn a_borrower_that_does_not_answer_keeps_its_loan_and_holds_up_nobody() {
    let (mut loans, now) = (Loans::new(3 * FLOOR + 30, kept(0, 0)), start());
    let [silent, other, waiting] = [(); 3].map(|()| loans.admit(FLOOR, MOST).expect("room"));
    lend(&mut loans, silent, 16, now);
    lend(&mut loans, other, 14, now);
    loans.want(waiting, 5, now);
    assert_eq!(loans.take_change(silent), Some(Change::Keep(10)));
    loans.serve(now + millis(99));
    assert_eq!(loans.take_change(other), None);
    loans.serve(now + PATIENCE);
    assert_eq!(loans.take_change(other), Some(Change::Keep(10)));
    loans.give_back(other, 4, now + PATIENCE);
    assert_eq!(loans.take_change(waiting), Some(Change::Lend(2)));
}

#[test]
fn a_floor_that_is_not_there_is_refused_with_its_numbers() {
    let mut loans = Loans::new(2 * FLOOR + 5, kept(3, 0));
    let first = loans.admit(FLOOR, MOST).expect("room");
    loans.admit(FLOOR, MOST).expect("room");
    let refused = loans.admit(FLOOR, MOST).expect_err("none left");
    assert_eq!(refused, NoFloor { needed: 6, posted: 17, promised: 12, members: 2 });
    loans.leave(first, start());
    loans.leave(first, start());
    let second = loans.admit(FLOOR, MOST).expect("its place is free");
    loans.leave(first, start());
    assert_eq!(loans.shares().members, 2, "an old name of the entry {second:?}");
}

#[test]
fn receives_that_are_missing_are_lent_to_nobody_once_the_reserve_is_spent() {
    let (mut loans, now) = (Loans::new(FLOOR + 20, kept(10, 0)), start());
    let member = loans.admit(FLOOR, MOST).expect("room");
    loans.set_missing(10);
    assert!(loans.is_whole());
    loans.want(member, 1, now);
    assert_eq!(loans.take_change(member), Some(Change::Lend(1)));
    loans.set_missing(19);
    assert!(!loans.is_whole());
    loans.want(member, 1, now);
    assert_eq!(loans.take_change(member), None);
    loans.set_missing(18);
    loans.serve(now);
    assert_eq!(loans.take_change(member), Some(Change::Lend(1)));
}

#[test]
fn a_handshake_that_is_over_gives_its_receive_to_others() {
    let (mut loans, now) = (Loans::new(FLOOR + 1, kept(0, 0)), start());
    let member = loans.admit(FLOOR + 1, MOST).expect("room");
    loans.want(member, 5, now);
    assert_eq!(loans.take_change(member), None);
    loans.lower_floor(member, 1, now);
    assert_eq!(loans.take_change(member), Some(Change::Lend(1)));
}
