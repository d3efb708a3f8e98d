//! Every interleaving of a writer and an owner, for a few bodies of two chunks.
//!
//! A [`World`](world::World) is both machines, the wires between them, the writer's NIC and the owner's memory.
//! The wires keep their order; when the connection breaks, any prefix of what is on them still arrives, and Writes
//! that were flushed may land as well. `explore` takes every action in every state that can be reached. After each
//! the world checks:
//!
//! * a Write lands only in a region that is granted to it, never in one that its pool or a user has;
//! * a source whose Write is not complete is not given back while its queue pair lives;
//! * a body that is delivered is whole, and where FIN says;
//! * no honest peer is accused.
//!
//! Where nothing more can happen (other than by will or by time) all regions and sources are back, each message has
//! ended once, and each grant was closed exactly once.

mod arrivals;
mod ends;
mod explore;
mod world;

use super::super::Via;
use explore::{Seen, explore, walk};
use world::{Plan, Scenario};

const ASK: Plan = Plan { len: 8, route: Via::Ask, advertised: 0 };

const REPLY: Plan = Plan { advertised: 8, ..ASK };

const STANDING: Plan = Plan { route: Via::Standing, ..ASK };

fn scenario(messages: &[Plan]) -> Scenario {
    let fickle = messages.len();
    Scenario { messages: messages.to_vec(), fickle, regions: 1, rts: 2, window: 2, standing: 0 }
}

fn crossings(seen: &Seen) -> Vec<&'static str> {
    seen.crossings.iter().copied().collect()
}

#[test]
fn one_body_by_rts_and_every_way_to_end_it() {
    let seen = explore(&scenario(&[ASK]));
    let expected = [
        "a CTS comes late",
        "an ABORT finds nothing",
        "an ABORT_ACK of an RTS closes its grant",
        "no proof in time",
        "the FIN comes after all",
    ];
    assert_eq!(crossings(&seen), expected);
}

#[test]
fn a_reply_into_its_advertised_grant_and_every_way_to_end_it() {
    let seen = explore(&scenario(&[REPLY]));
    let expected = [
        "a body whose grant is gone asks by RTS",
        "an ABORT finds nothing",
        "no proof in time",
        "the FIN comes after all",
    ];
    assert_eq!(crossings(&seen), expected);
}

#[test]
fn a_reply_longer_than_advertised_asks_by_rts() {
    let seen = explore(&scenario(&[Plan { advertised: 4, ..REPLY }]));
    assert!(!seen.crossings.contains("a body whose grant is gone asks by RTS"));
}

#[test]
fn a_request_into_a_standing_grant_and_every_way_to_end_it() {
    let seen = explore(&Scenario { standing: 8, ..scenario(&[STANDING]) });
    let expected = [
        "a CTS comes late",
        "a body whose grant is gone asks by RTS",
        "an ABORT finds nothing",
        "an ABORT_ACK of an RTS closes its grant",
        "no proof in time",
        "the FIN comes after all",
    ];
    assert_eq!(crossings(&seen), expected);
}

#[test]
fn two_bodies_share_one_region_and_neither_hangs() {
    let short = Plan { len: 4, ..ASK };
    explore(&Scenario { fickle: 1, ..scenario(&[ASK, short]) });
}

#[test]
fn a_reply_and_a_request_share_one_region_and_neither_hangs() {
    let (reply, request) = (Plan { len: 4, ..REPLY }, Plan { len: 4, ..ASK });
    explore(&Scenario { window: 1, fickle: 1, ..scenario(&[reply, request]) });
}

#[test]
fn a_second_rts_waits_for_its_turn() {
    let short = Plan { len: 4, ..ASK };
    explore(&Scenario { rts: 1, fickle: 1, ..scenario(&[short, short]) });
}

#[test]
fn many_bodies_by_chance() {
    let long = |len, plan: Plan| Plan { len, ..plan };
    let messages = vec![
        long(16, ASK),
        long(20, REPLY),
        long(4, REPLY),
        long(12, STANDING),
        long(8, STANDING),
        long(40, ASK),
        long(8, ASK),
    ];
    let fickle = messages.len();
    let scenario = Scenario { messages, fickle, regions: 2, rts: 2, window: 3, standing: 12 };
    (0..3000).for_each(|seed| walk(&scenario, seed));
}
