use super::*;

const LIFETIME: Duration = Duration::from_secs(30);

fn ticket(connection: u64) -> Ticket {
    let token = [u8::try_from(connection).expect("few connections"); 16];
    Ticket { token, connection, incarnation: 100 + connection }
}

fn with(connections: &[u64]) -> (Tickets, Instant) {
    let (mut tickets, now) = (Tickets::new(LIFETIME, 4), Instant::now());
    for connection in connections {
        tickets.issue(now, ticket(*connection)).expect("room");
    }
    (tickets, now)
}

#[test]
fn a_ticket_admits_once() {
    let (mut tickets, now) = with(&[1, 2]);
    assert_eq!(tickets.redeem(now, Some(ticket(1))), Ok(1));
    assert_eq!(tickets.redeem(now, Some(ticket(1))), Err(Refused::Used));
    assert_eq!(tickets.redeem(now, Some(ticket(2))), Ok(2));
    assert_eq!(tickets.out(), 0);
    let expected = TicketCounts { issued: 2, redeemed: 2, used: 1, ..TicketCounts::default() };
    assert_eq!(tickets.counts(), expected);
}

#[test]
fn a_ticket_admits_until_its_lifetime_is_over() {
    for (after, expected) in [
        (LIFETIME - Duration::from_nanos(1), Ok(1)),
        (LIFETIME, Err(Refused::Expired)),
        (LIFETIME * 9, Err(Refused::Expired)),
    ] {
        let (mut tickets, now) = with(&[1]);
        assert_eq!(tickets.redeem(now + after, Some(ticket(1))), expected, "{after:?}");
    }
}

#[test]
fn nobody_is_let_in_without_a_ticket_or_with_a_forged_one() {
    let (mut tickets, now) = with(&[1]);
    assert_eq!(tickets.redeem(now, None), Err(Refused::Missing));
    for at in 0..16 {
        let mut forged = ticket(1);
        forged.token[at] ^= 1;
        assert_eq!(tickets.redeem(now, Some(forged)), Err(Refused::Unknown));
    }
    assert_eq!(tickets.redeem(now, Some(ticket(3))), Err(Refused::Unknown));
    assert_eq!(tickets.redeem(now, Some(ticket(1))), Ok(1), "its owner is not hurt");
    assert_eq!((tickets.counts().missing, tickets.counts().unknown), (1, 17));
}

#[test]
fn a_ticket_of_another_connection_or_client_admits_nobody_and_stays_good() {
    let (mut tickets, now) = with(&[1, 2]);
    let elsewhere = Ticket { connection: 2, ..ticket(1) };
    let someone = Ticket { incarnation: 9, ..ticket(1) };
    let nowhere = Ticket { connection: 7, ..ticket(1) };
    for stolen in [elsewhere, someone, nowhere] {
        assert_eq!(tickets.redeem(now, Some(stolen)), Err(Refused::NotYours), "{stolen:?}");
    }
    assert_eq!(tickets.redeem(now, Some(ticket(1))), Ok(1));
    assert_eq!(tickets.redeem(now, Some(elsewhere)), Err(Refused::NotYours), "used, and stolen");
    assert_eq!(tickets.redeem(now, Some(ticket(2))), Ok(2));
}

#[test]
fn a_newer_ticket_takes_the_place_of_the_older() {
    let (mut tickets, now) = with(&[1]);
    let newer = Ticket { token: [9; 16], ..ticket(1) };
    tickets.issue(now, newer).expect("in the place of the other");
    assert_eq!(tickets.out(), 1);
    assert_eq!(tickets.redeem(now, Some(ticket(1))), Err(Refused::Used));
    assert_eq!(tickets.redeem(now, Some(newer)), Ok(1));
}

#[test]
fn a_connection_that_ends_takes_its_ticket_along() {
    let (mut tickets, now) = with(&[1]);
    tickets.forget(1);
    assert_eq!(tickets.redeem(now, Some(ticket(1))), Err(Refused::Expired));
}

#[test]
fn no_more_are_out_than_allowed_and_expired_ones_make_room() {
    let (mut tickets, now) = with(&[1, 2, 3, 4]);
    assert_eq!(tickets.issue(now, ticket(5)), Err(TooMany { most: 4 }));
    tickets.issue(now, ticket(4)).expect("it has one already");
    tickets.issue(now + LIFETIME, ticket(5)).expect("the others are over");
    assert_eq!(tickets.out(), 1);
    for connection in 0..255 {
        tickets.issue(now + LIFETIME * 2, ticket(connection)).ok();
        tickets.forget(connection);
    }
    assert!(tickets.gone.len() <= REMEMBERED);
}
