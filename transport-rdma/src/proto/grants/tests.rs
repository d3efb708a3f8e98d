use fastrand::Rng;

use super::*;

const KIB: u64 = 1 << 10;

fn scheduler(granted: u64) -> GrantScheduler<u8, u32> {
    GrantScheduler::new(GrantLimits { granted, window: 512 * KIB, standing: granted / 4 })
}

/// Who is admitted now, in order.
fn admitted(scheduler: &mut GrantScheduler<u8, u32>) -> Vec<(u8, u32, Admission)> {
    std::iter::from_fn(|| scheduler.poll_admitted()).collect()
}

fn names(admitted: &[(u8, u32, Admission)]) -> Vec<(u8, u32)> {
    admitted.iter().map(|(connection, ticket, _)| (*connection, *ticket)).collect()
}

#[test]
fn connections_take_turns_whoever_asked_first() {
    let mut scheduler = scheduler(2 * KIB);
    for ticket in 0..3 {
        scheduler.request(1, ticket, KIB);
    }
    scheduler.request(2, 10, KIB);
    scheduler.request(3, 20, KIB);
    let mut order = Vec::new();
    let mut open = admitted(&mut scheduler);
    while !open.is_empty() {
        order.extend(names(&open));
        open.drain(..).for_each(|(.., admission)| scheduler.release(admission));
        open = admitted(&mut scheduler);
    }
    assert_eq!(order, [(1, 0), (2, 10), (3, 20), (1, 1), (1, 2)]);
    assert_eq!(scheduler.granted(), 0);
}

#[test]
fn a_long_grant_counts_with_the_write_window() {
    let mut scheduler = scheduler(1024 * KIB);
    for ticket in 0..3 {
        scheduler.request(1, ticket, 1 << 30);
    }
    assert_eq!(admitted(&mut scheduler).len(), 2);
    assert_eq!(scheduler.granted(), 1024 * KIB);
}

#[test]
fn what_exceeds_the_bound_is_admitted_when_alone() {
    let mut scheduler = scheduler(100 * KIB);
    scheduler.request(1, 0, 60 * KIB);
    scheduler.request(2, 1, 200 * KIB);
    scheduler.request(3, 2, KIB);
    let mut open = admitted(&mut scheduler);
    assert_eq!(names(&open), [(1, 0)], "short ones do not overtake the long one for ever");
    scheduler.release(open.remove(0).2);
    let mut open = admitted(&mut scheduler);
    assert_eq!(names(&open), [(2, 1)]);
    scheduler.release(open.remove(0).2);
    assert_eq!(names(&admitted(&mut scheduler)), [(3, 2)]);
}

#[test]
fn who_withdraws_or_ends_holds_nobody_up() {
    let mut scheduler = scheduler(100 * KIB);
    scheduler.request(1, 0, 60 * KIB);
    let open = admitted(&mut scheduler);
    scheduler.request(2, 1, 200 * KIB);
    scheduler.request(3, 2, 200 * KIB);
    scheduler.request(4, 3, 40 * KIB);
    scheduler.withdraw(2, &1);
    scheduler.withdraw(2, &1);
    scheduler.remove(3);
    assert_eq!(names(&admitted(&mut scheduler)), [(4, 3)]);
    drop(open);
}

#[test]
fn grants_that_nobody_asked_for_never_go_before_those_who_wait() {
    let mut scheduler = scheduler(100 * KIB);
    let standing = scheduler.admit_unasked(25 * KIB, Unasked::Standing).expect("a quarter");
    assert_eq!(scheduler.admit_unasked(KIB, Unasked::Standing), None);
    let reply = scheduler.admit_unasked(75 * KIB, Unasked::Reply).expect("the rest");
    assert_eq!(scheduler.admit_unasked(KIB, Unasked::Reply), None);
    scheduler.request(1, 0, 80 * KIB);
    scheduler.release(reply);
    assert_eq!(scheduler.admit_unasked(KIB, Unasked::Reply), None, "somebody waits");
    scheduler.release(standing);
    assert_eq!(names(&admitted(&mut scheduler)), [(1, 0)]);
    assert!(scheduler.admit_unasked(KIB, Unasked::Standing).is_some());
}

#[test]
fn standing_grants_keep_nobody_from_being_alone() {
    let mut scheduler = scheduler(100 * KIB);
    let standing = scheduler.admit_unasked(25 * KIB, Unasked::Standing).expect("a quarter");
    scheduler.request(1, 0, 90 * KIB);
    scheduler.request(2, 0, 90 * KIB);
    let first = admitted(&mut scheduler);
    assert_eq!(names(&first), [(1, 0)], "nothing but what stands is granted");
    first.into_iter().for_each(|(.., admission)| scheduler.release(admission));
    assert_eq!(names(&admitted(&mut scheduler)), [(2, 0)]);
    scheduler.release(standing);
}

/// Random requests, releases, withdrawals and ends; then everything is released.
fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let limit = 1000 * KIB;
    let mut scheduler = scheduler(limit);
    let (mut open, mut waiting): (Vec<Admission>, Vec<(u8, u32)>) = (Vec::new(), Vec::new());
    for ticket in 0..400 {
        let connection = rng.u8(..5);
        match rng.u8(..6) {
            0..=2 => {
                scheduler.request(connection, ticket, rng.u64(1..2000 * KIB));
                waiting.push((connection, ticket));
            }
            3 if !open.is_empty() => scheduler.release(open.swap_remove(rng.usize(..open.len()))),
            4 if !waiting.is_empty() => {
                let (connection, ticket) = waiting.swap_remove(rng.usize(..waiting.len()));
                scheduler.withdraw(connection, &ticket);
            }
            5 if rng.u8(..8) == 0 => {
                scheduler.remove(connection);
                waiting.retain(|(of, _)| *of != connection);
            }
            _ => {}
        }
        for (connection, ticket, admission) in admitted(&mut scheduler) {
            let first = waiting.iter().position(|(of, _)| *of == connection).expect("it waits");
            let oldest =
                waiting.iter().filter(|(of, _)| *of == connection).map(|(_, at)| *at).min();
            assert_eq!(oldest, Some(ticket), "first in, first out, seed {seed}");
            let at = waiting.iter().position(|entry| *entry == (connection, ticket));
            waiting.swap_remove(at.unwrap_or(first));
            open.push(admission);
        }
        assert!(scheduler.granted() <= limit, "seed {seed}");
        assert!(waiting.is_empty() || !open.is_empty(), "nobody is admitted, seed {seed}");
    }
    while let Some(admission) = open.pop() {
        scheduler.release(admission);
        for (connection, ticket, admission) in admitted(&mut scheduler) {
            waiting.retain(|entry| *entry != (connection, ticket));
            open.push(admission);
        }
    }
    assert_eq!((scheduler.granted(), waiting.len()), (0, 0), "seed {seed}");
}

#[test]
fn the_bound_holds_and_everybody_is_admitted_in_the_end() {
    (0..500).for_each(run);
}
