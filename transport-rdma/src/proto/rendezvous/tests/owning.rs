//! What an owner does with time, limits and ends.

use tokio::time::Instant;

use super::super::wire::Fin;
use super::*;

#[test]
fn a_cts_grants_the_body_and_a_page_more() {
    let mut owner = Owner::new(LIMITS);
    owner.handle_rts(RtsNumber(0), len(100), None).expect("the first");
    assert!(owner.is_waiting(RtsNumber(0)) && !owner.has_cts());
    let id = owner.grant(RtsNumber(0), 'a', place('a')).expect("it waits");
    assert_eq!(owner.grant(RtsNumber(0), 'b', place('b')), Err('b'), "one CTS for one RTS");
    let cts =
        Frame::Cts { rts: Some(RtsNumber(0)), grant: Grant { id, place: place('a'), len: 4196 } };
    assert_eq!(owner.poll_cts(), Some(cts));
    assert_eq!(owner.poll_cts(), None);
}

#[test]
fn a_grant_whose_cts_was_not_posted_is_taken_back_at_once() {
    let now = Instant::now();
    let mut owner = Owner::new(LIMITS);
    owner.handle_rts(RtsNumber(0), len(100), None).expect("the first");
    owner.grant(RtsNumber(0), 'a', place('a')).expect("it waits");
    let standing = owner.stand(len(9), 'b', place('b'));
    owner.give_up(RtsNumber(0), now).expect("no cap");
    owner.revoke(standing, now).expect("no cap");
    assert_eq!(released(&mut owner), [('a', Proof::NeverGiven), ('b', Proof::NeverGiven)]);
    assert_eq!((owner.poll_cts(), owner.quarantined()), (None, 0));
    assert_eq!(abort_of(owner.poll_abort()), [Name::Rts(RtsNumber(0))]);
}

#[test]
fn an_abort_whose_grant_closes_before_it_is_posted_is_not_sent() {
    let (mut owner, grant) = granted(100);
    owner.give_up(RtsNumber(0), Instant::now()).expect("no cap");
    assert_eq!((owner.has_abort(), owner.quarantined()), (true, 4196));
    let fin = Fin { grant, offset: 0, len: 100, crc: None };
    assert_eq!(owner.handle_fin(fin, Carrier::Frame), Ok(Arrived::Discarded));
    assert_eq!(released(&mut owner), [('a', Proof::Fin)]);
    assert_eq!((owner.poll_abort(), owner.quarantined()), (None, 0));
    assert_eq!((owner.poll_timeout(), owner.poll_dropped()), (None, None));
}

#[test]
fn a_revoke_timeout_without_end_gives_a_silent_peer_for_ever() {
    let start = Instant::now();
    let (mut owner, _) =
        granted_within(OwnerLimits { revoke_timeout: Duration::MAX, ..LIMITS }, 100);
    owner.give_up(RtsNumber(0), start).expect("no cap");
    assert_eq!((owner.poll_timeout(), owner.quarantined()), (None, 4196));
    assert_eq!(owner.handle_timeout(start + 1000 * TIMEOUT), Ok(()));
}

#[test]
fn the_revoke_timeout_runs_from_the_last_arrival() {
    let start = Instant::now();
    let (mut owner, _) = granted(100);
    owner.handle_arrival(start + TIMEOUT);
    assert_eq!(owner.poll_timeout(), None, "nothing is in quarantine");
    owner.give_up(RtsNumber(0), start).expect("no cap");
    assert_eq!(owner.poll_timeout(), Some(start + TIMEOUT));
    owner.handle_arrival(start + TIMEOUT / 2);
    assert_eq!(owner.handle_timeout(start + TIMEOUT), Ok(()));
    let due = start + TIMEOUT / 2 + TIMEOUT;
    assert_eq!(owner.poll_timeout(), Some(due));
    let fault = Fault::RevokeTimeout { grants: 1, timeout: TIMEOUT };
    assert_eq!(owner.handle_timeout(due), Err(fault));
    assert_eq!(released(&mut owner), [], "time alone proves nothing");
    owner.handle_destroyed();
    assert_eq!(released(&mut owner), [('a', Proof::Destroyed)]);
    assert_eq!((owner.quarantined(), owner.poll_timeout()), (0, None));
}

#[test]
fn quarantine_beyond_its_cap_is_a_fault() {
    let now = Instant::now();
    let mut owner = Owner::new(LIMITS);
    for number in 0..2 {
        owner.handle_rts(RtsNumber(number), len(60 << 10), None).expect("within the limit");
        owner.grant(RtsNumber(number), 'a', place('a')).expect("it waits");
        assert!(owner.poll_cts().is_some());
    }
    owner.give_up(RtsNumber(0), now).expect("below the cap");
    owner.give_up(RtsNumber(0), now).expect("given up once");
    let fault = Fault::QuarantineFull { bytes: 128 << 10, cap: 100 << 10 };
    assert_eq!(owner.give_up(RtsNumber(1), now), Err(fault));
    assert_eq!(released(&mut owner), []);
}

#[test]
fn the_cap_leaves_room_for_one_message_of_the_longest_kind() {
    assert_eq!(quarantine_cap(128 << 20, 64 << 20), (64 << 20) + 4096);
    assert_eq!(quarantine_cap(1 << 30, 64 << 20), 256 << 20);
    assert_eq!(quarantine_cap(0, u64::MAX), u64::MAX);
}

#[test]
fn a_body_that_does_not_come_in_time_is_given_up() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let mut owner = Owner::new(LIMITS);
    for number in 0..3_u32 {
        let deadline = (number < 2).then(|| start + second * (number + 1));
        owner.handle_rts(RtsNumber(number), len(100), deadline).expect("within the limit");
    }
    owner.grant(RtsNumber(0), 'a', place('a')).expect("it waits");
    assert!(owner.poll_cts().is_some());
    assert_eq!(owner.poll_timeout(), Some(start + second));
    assert_eq!(owner.handle_timeout(start), Ok(()));
    assert_eq!(owner.poll_dropped(), None);
    owner.handle_timeout(start + 2 * second).expect("no cap");
    let dropped: Vec<_> = std::iter::from_fn(|| owner.poll_dropped()).collect();
    assert_eq!(dropped, [RtsNumber(0), RtsNumber(1)]);
    assert_eq!(
        abort_of(owner.poll_abort()),
        [Name::Grant(id(0, 0)), Name::Rts(RtsNumber(1))],
        "one frame for both"
    );
    assert!(owner.is_waiting(RtsNumber(2)));
    assert_eq!(owner.poll_timeout(), Some(start + 2 * second + TIMEOUT));
}

#[test]
fn what_the_writer_takes_back_is_dropped_once() {
    let (mut owner, grant) = granted(100);
    owner.handle_rts(RtsNumber(1), len(100), None).expect("the next");
    let ack = names(&[Name::Grant(grant), Name::Rts(RtsNumber(1))]);
    owner.handle_abort_ack(&ack).expect("both are open");
    assert_eq!(released(&mut owner), [('a', Proof::AbortAck)]);
    let dropped: Vec<_> = std::iter::from_fn(|| owner.poll_dropped()).collect();
    assert_eq!(dropped, [RtsNumber(0), RtsNumber(1)]);
    assert_eq!(owner.open_requests(), 0);
}

#[test]
fn advertised_grants_are_bounded_and_closed_by_a_response_without_a_body() {
    let mut owner = Owner::new(LIMITS);
    let first = owner.advertise(CALL, len(100), 'a', place('a')).expect("the first");
    assert_eq!(first.len, 4196);
    assert!(owner.may_advertise(0) && !owner.may_advertise(1), "one more");
    owner.advertise(CALL, len(100), 'b', place('b')).expect("the second");
    assert!(!owner.may_advertise(0));
    assert_eq!(owner.advertise(CALL, len(100), 'c', place('c')), Err('c'));
    owner.handle_unused(first.id).expect("it is open");
    assert_eq!(released(&mut owner), [('a', Proof::AbortAck)]);
    assert!(owner.advertise(CALL, len(100), 'c', place('c')).is_ok());
}

#[test]
fn revoking_a_standing_grant_loses_no_request_that_crosses_it() {
    let mut owner = Owner::new(LIMITS);
    let grant = owner.stand(len(100), 'a', place('a'));
    assert!(owner.poll_cts().is_some());
    owner.revoke(grant, Instant::now()).expect("no cap");
    let fin = Fin { grant, offset: 7, len: 50, crc: None };
    let arrived = owner.handle_fin(fin, Carrier::Request(len(50))).expect("it is open");
    let landed = Landed { region: 'a', offset: 7, len: len(50), crc: None, rts: None };
    assert_eq!(arrived, Arrived::Landed(landed));
    assert_eq!((owner.quarantined(), owner.poll_timeout()), (0, None));
}
