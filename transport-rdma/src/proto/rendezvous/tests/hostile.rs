//! What a peer can say wrongly, each with its violation; and that nothing comes back or goes out by it.

use fastrand::Rng;
use tokio::time::Instant;

use super::super::wire::Fin;
use super::*;

fn fin(grant: GrantId, bytes: u32) -> Fin {
    Fin { grant, offset: 0, len: bytes, crc: None }
}

/// What the owner says to a FIN; its region stays where it is.
fn refused(owner: &mut Owner<char>, fin: Fin, carrier: Carrier) -> Violation {
    let violation = owner.handle_fin(fin, carrier).expect_err("a violation");
    assert_eq!((owner.open_grants(), owner.poll_released()), (1, None));
    violation
}

#[test]
fn forged_and_expired_grants_are_told_apart() {
    let (mut owner, open) = granted(100);
    for forged in [id(1, 0), id(0, 1), id(u32::MAX, 0), id(0, u32::MAX / 2)] {
        let expected = Violation::UnknownGrant { frame: "FIN", grant: forged };
        assert_eq!(refused(&mut owner, fin(forged, 100), Carrier::Frame), expected);
        let ack = names(&[Name::Grant(forged)]);
        let expected = Violation::UnknownGrant { frame: "ABORT_ACK", grant: forged };
        assert_eq!(owner.handle_abort_ack(&ack), Err(expected));
    }
    owner.handle_fin(fin(open, 100), Carrier::Frame).expect("the first");
    for (frame, error) in [
        ("FIN", owner.handle_fin(fin(open, 100), Carrier::Frame).map(|_| ())),
        ("ABORT_ACK", owner.handle_abort_ack(&names(&[Name::Grant(open)]))),
    ] {
        assert_eq!(error, Err(Violation::ClosedGrant { frame, grant: open }));
    }
    owner.handle_rts(RtsNumber(1), len(100), None).expect("the next");
    let next = owner.grant(RtsNumber(1), 'b', place('b')).expect("it waits");
    assert_eq!((next.index, next.generation), (open.index, open.generation + 1));
    assert!(owner.poll_cts().is_some());
    let expected = Violation::ClosedGrant { frame: "FIN", grant: open };
    assert_eq!(refused(&mut owner, fin(open, 100), Carrier::Frame), expected);
}

#[test]
fn a_grant_that_was_not_told_cannot_be_guessed() {
    let mut owner = Owner::new(LIMITS);
    owner.handle_rts(RtsNumber(0), len(9), None).expect("the first");
    let grant = owner.grant(RtsNumber(0), 'a', place('a')).expect("it waits");
    let expected = Violation::UnknownGrant { frame: "FIN", grant };
    assert_eq!(refused(&mut owner, fin(grant, 9), Carrier::Frame), expected);
}

#[test]
fn a_grant_is_for_what_it_was_given_for() {
    let other = CallId { generation: 8, ..CALL };
    let (response, request) = (Carrier::Response(CALL, len(9)), Carrier::Request(len(9)));
    let (mut by_rts, grant) = granted(9);
    for carrier in [request, response] {
        let expected = Violation::ForeignGrant { carrier, grant };
        assert_eq!(refused(&mut by_rts, fin(grant, 9), carrier), expected);
    }
    let mut advertised = Owner::new(LIMITS);
    let grant = advertised.advertise(CALL, len(9), 'a', place('a')).expect("the first").id;
    for carrier in [Carrier::Frame, request, Carrier::Response(other, len(9))] {
        let expected = Violation::ForeignGrant { carrier, grant };
        assert_eq!(refused(&mut advertised, fin(grant, 9), carrier), expected);
    }
    let mut standing = Owner::new(LIMITS);
    let grant = standing.stand(len(9), 'a', place('a'));
    assert!(standing.poll_cts().is_some());
    for carrier in [Carrier::Frame, response] {
        let expected = Violation::ForeignGrant { carrier, grant };
        assert_eq!(refused(&mut standing, fin(grant, 9), carrier), expected);
    }
}

#[test]
fn a_body_has_the_announced_length_and_lies_within_its_grant() {
    let (mut owner, grant) = granted(100);
    for wrong in [0, 99, 101, u32::MAX] {
        let expected = Violation::FinLen { grant, len: wrong, expected: 100 };
        assert_eq!(refused(&mut owner, fin(grant, wrong), Carrier::Frame), expected);
    }
    for offset in [4097, u32::MAX] {
        let beyond = Fin { offset, ..fin(grant, 100) };
        let (start, room) = (u64::from(offset), 4196);
        let expected = Violation::FinRange { grant, offset: start, end: start + 100, room };
        assert_eq!(refused(&mut owner, beyond, Carrier::Frame), expected);
    }
    let last = Fin { offset: 4096, ..fin(grant, 100) };
    assert!(owner.handle_fin(last, Carrier::Frame).is_ok());
}

#[test]
fn a_reply_longer_than_its_grant_is_out_of_range() {
    let mut owner = Owner::new(LIMITS);
    let grant = owner.advertise(CALL, len(100), 'a', place('a')).expect("the first").id;
    let carrier = Carrier::Response(CALL, len(u32::MAX));
    let expected = Violation::FinRange { grant, offset: 0, end: u64::from(u32::MAX), room: 4196 };
    assert_eq!(refused(&mut owner, fin(grant, u32::MAX), carrier), expected);
}

#[test]
fn rts_numbers_are_counted_and_bounded() {
    let mut owner = Owner::<char>::new(LIMITS);
    for wrong in [1, u32::MAX] {
        let number = RtsNumber(wrong);
        let expected = Violation::RtsOrder { number, expected: RtsNumber(0) };
        assert_eq!(owner.handle_rts(number, len(1), None), Err(expected));
    }
    for number in 0..3 {
        owner.handle_rts(RtsNumber(number), len(1), None).expect("within the limit");
    }
    let full = Err(Violation::TooManyRts { limit: 3 });
    assert_eq!(owner.handle_rts(RtsNumber(3), len(1), None), full);
    let now = Instant::now();
    owner.give_up(RtsNumber(1), now).expect("no cap");
    let text = "a peer that takes no ABORT cannot make this side queue more of them";
    assert_eq!(owner.handle_rts(RtsNumber(3), len(1), None), full, "{text}");
    assert_eq!(abort_of(owner.poll_abort()), [Name::Rts(RtsNumber(1))]);
    assert_eq!(owner.handle_rts(RtsNumber(3), len(1), None), Ok(()));
    let unknown = names(&[Name::Rts(RtsNumber(4))]);
    let expected = Violation::UnknownRts { frame: "ABORT_ACK", number: RtsNumber(4) };
    assert_eq!(owner.handle_abort_ack(&unknown), Err(expected));
}

#[test]
fn a_cts_grants_what_was_asked_for_and_on_a_page() {
    let (mut writer, _) = asked(100);
    let good = grant(id(5, 5), 'a', 100);
    let rts = Some(RtsNumber(0));
    for bytes in [1, 99, 101, u32::MAX] {
        let bad = grant(id(5, 5), 'a', bytes);
        let expected =
            Violation::GrantLen { grant: bad.id, len: u64::from(bytes) + 4096, expected: 4196 };
        assert_eq!(writer.handle_cts(rts, bad), Err(expected));
    }
    for address in [1, good.place.address + 8, u64::MAX - 4095] {
        let bad = Grant { place: Place { address, ..good.place }, ..good };
        let expected = Violation::GrantPlace { grant: bad.id, address, len: 4196 };
        assert_eq!(writer.handle_cts(rts, bad), Err(expected));
    }
    assert_eq!(writer.poll_write(), None, "nothing is written to any of these");
    assert_eq!(writer.handle_cts(rts, good), Ok(()));
}

#[test]
fn a_cts_answers_an_rts_once() {
    let (mut writer, _) = asked(100);
    let forged = (Some(RtsNumber(1)), grant(id(0, 0), 'a', 100));
    let expected = Violation::UnknownRts { frame: "CTS", number: RtsNumber(1) };
    assert_eq!(writer.handle_cts(forged.0, forged.1), Err(expected));
    let rts = Some(RtsNumber(0));
    writer.handle_cts(rts, grant(id(0, 0), 'a', 100)).expect("the first");
    let again = writer.handle_cts(rts, grant(id(0, 0), 'a', 100));
    assert_eq!(again, Err(Violation::GrantInUse { grant: id(0, 0) }));
    let second = Violation::SecondCts { number: RtsNumber(0), grant: id(1, 0) };
    assert_eq!(writer.handle_cts(rts, grant(id(1, 0), 'b', 100)), Err(second));
    let abort = names(&[Name::Rts(RtsNumber(1))]);
    let expected = Violation::UnknownRts { frame: "ABORT", number: RtsNumber(1) };
    assert_eq!(writer.handle_abort(&abort), Err(expected));
}

#[test]
fn grants_that_nobody_asked_for_are_bounded() {
    let mut writer = Writer::<char>::new(WRITER);
    let empty = Grant { len: 4096, ..grant(id(0, 0), 'a', 1) };
    let expected = Violation::GrantLen { grant: id(0, 0), len: 4096, expected: 4097 };
    assert_eq!(writer.handle_cts(None, empty), Err(expected), "room for no body");
    writer.handle_cts(None, grant(id(0, 0), 'a', 1)).expect("one standing");
    let second = writer.handle_cts(None, grant(id(1, 0), 'b', 1));
    assert_eq!(second, Err(Violation::TooManyGrants { what: "standing", limit: 1 }));
    for index in 1..3 {
        writer.handle_advertised(grant(id(index, 0), 'c', 1)).expect("two advertised");
    }
    let full = Err(Violation::TooManyGrants { what: "advertised", limit: 2 });
    assert_eq!(writer.handle_advertised(grant(id(3, 0), 'd', 1)), full);
    writer.handle_abort(&names(&[Name::Grant(id(1, 0))])).expect("known");
    let text = "a peer that takes no ABORT_ACK cannot make this side queue more of them";
    assert_eq!(writer.handle_advertised(grant(id(3, 0), 'd', 1)), full, "{text}");
    assert_eq!(abort_of(writer.poll_abort_ack()), [Name::Grant(id(1, 0))]);
    assert_eq!(writer.handle_advertised(grant(id(3, 0), 'd', 1)), Ok(()));
}

#[test]
fn an_abort_of_what_is_unknown_changes_nothing() {
    let (mut writer, _) = asked(100);
    let before = writer.clone();
    writer.handle_abort(&names(&[Name::Grant(id(9, 9))])).expect("it may be late");
    assert_eq!(writer, before);
}

#[test]
fn what_a_violation_says_names_the_numbers() {
    let grant = id(2, 1);
    let texts = [
        (
            Violation::ClosedGrant { frame: "FIN", grant }.to_string(),
            "FIN for grant 2.1, which is closed",
        ),
        (
            Violation::ForeignGrant { carrier: Carrier::Response(CALL, len(1)), grant }.to_string(),
            "FIN in the RESPONSE of call 3.7 for grant 2.1, which was given for something else",
        ),
        (
            Violation::GrantPlace { grant, address: 0x1001, len: 9 }.to_string(),
            "grant 2.1 of 9 bytes at 0x1001, expected a multiple of 4096 and an end below 2^64",
        ),
    ];
    for (text, expected) in texts {
        assert_eq!(text, expected);
    }
}

/// Names that are sometimes right.
fn guess(rng: &mut Rng) -> Names {
    let name = |rng: &mut Rng| match rng.bool() {
        true => Name::Rts(RtsNumber(rng.u32(..8))),
        false => Name::Grant(id(rng.u32(..4), rng.u32(..4))),
    };
    names(&[name(rng), name(rng)][..rng.usize(1..=2)])
}

/// Says which seed failed, wherever it panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it happens with seed {}", self.0);
        }
    }
}

/// Both machines, told anything in any order; each region and source comes back once.
#[test]
fn no_order_of_frames_can_panic_or_lose_memory() {
    let (mut landed, mut sent) = (0, 0);
    for seed in 0..4000 {
        let _seed = Seed(seed);
        landed += owner_told_anything(&mut Rng::with_seed(seed));
        sent += writer_told_anything(&mut Rng::with_seed(seed));
    }
    assert!(landed > 500 && sent > 500, "{landed} landed, {sent} were sent: guess better");
}

/// Returns how many bodies landed.
fn owner_told_anything(rng: &mut Rng) -> usize {
    let (mut owner, mut back, mut landed_count) = (Owner::new(LIMITS), Vec::new(), 0);
    let (now, regions) = (Instant::now(), 40_u32);
    for region in 0..regions {
        let number = RtsNumber(rng.u32(..8));
        let grant = id(rng.u32(..4), rng.u32(..4));
        let bytes = len(rng.u32(1..3));
        // Some of these take the region, others leave it.
        match rng.u8(..4) {
            0 | 1 => back.extend(owner.grant(number, region, place('a')).err()),
            2 => back.extend(owner.advertise(CALL, bytes, region, place('a')).err()),
            _ => drop(owner.stand(bytes, region, place('a'))),
        }
        match rng.u8(..9) {
            0..=2 => drop(owner.handle_rts(number, bytes, Some(now))),
            3 => drop((owner.poll_cts(), owner.poll_abort())),
            4 => drop(owner.handle_abort_ack(&guess(rng))),
            5 => drop((owner.give_up(number, now), owner.revoke(grant, now))),
            6 => drop(owner.handle_timeout(now)),
            _ => {
                let fin = Fin { offset: rng.u32(4095..4098), ..fin(grant, bytes.bytes()) };
                let carriers =
                    [Carrier::Frame, Carrier::Request(bytes), Carrier::Response(CALL, bytes)];
                let arrived = owner.handle_fin(fin, carriers[rng.usize(..3)]);
                if let Ok(Arrived::Landed(landed)) = arrived {
                    landed_count += 1;
                    back.push(landed.region);
                }
            }
        }
        back.extend(std::iter::from_fn(|| owner.poll_released()).map(|released| released.region));
    }
    owner.handle_destroyed();
    back.extend(std::iter::from_fn(|| owner.poll_released()).map(|released| released.region));
    back.sort_unstable();
    assert_eq!(back, (0..regions).collect::<Vec<_>>());
    assert_eq!((owner.open_grants(), owner.open_requests(), owner.quarantined()), (0, 0, 0));
    landed_count
}

/// Returns how many bodies were sent.
fn writer_told_anything(rng: &mut Rng) -> usize {
    let mut sent = 0;
    let (mut writer, mut begun, mut back) = (Writer::new(WRITER), Vec::new(), Vec::new());
    for _ in 0..40 {
        let grant = grant(id(rng.u32(..4), rng.u32(..4)), 'a', rng.u32(1..3));
        let number = RtsNumber(rng.u32(..8));
        let transfer = (!begun.is_empty()).then(|| begun[rng.usize(..begun.len().max(1))]);
        match rng.u8(..12) {
            0 | 1 => {
                let vias = [Via::Ask, Via::Standing, Via::Advertised(grant.id)];
                let body = body(rng.u32(1..3));
                begun.push(writer.begin(begun.len(), body, vias[rng.usize(..3)]));
            }
            2 => drop(writer.poll_announce()),
            3 => drop(writer.poll_write()),
            4 => sent += usize::from(writer.poll_fin().is_some()),
            5 => drop(writer.poll_abort_ack()),
            6 => drop(writer.handle_cts(Some(number), grant)),
            7 => drop(writer.handle_cts(None, grant)),
            8 => drop(writer.handle_advertised(grant)),
            9 => drop(writer.handle_abort(&guess(rng))),
            10 => {
                transfer.inspect(|transfer| writer.give_up(*transfer));
                writer.decline(grant.id);
            }
            _ => drop(transfer.inspect(|transfer| writer.handle_written(*transfer))),
        }
        back.extend(std::iter::from_fn(|| writer.poll_ended()).map(|ended| ended.source));
    }
    writer.handle_destroyed();
    back.extend(std::iter::from_fn(|| writer.poll_ended()).map(|ended| ended.source));
    back.sort_unstable();
    assert_eq!(back, (0..begun.len()).collect::<Vec<_>>());
    assert_eq!((writer.transfers(), writer.open_grants()), (0, 0));
    sent
}
