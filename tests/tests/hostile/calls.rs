//! Proper frames that say what no caller may say, or what only an odd one would.

use std::time::Duration;

use verbwire::{Code, Executed};
use verbwire_core::message::{CallId, Form, GoAway, Head, MethodId, ReplyForm};
use verbwire_core::wire::{Header, Kind};
use verbwire_tests::fixture::{Fixture, Serving, in_time, offering};
use verbwire_tests::island::Island;
use verbwire_tests::raw::{self, RawPeer, call, message};
use verbwire_tests::service::Desk;
use verbwire_tests::spy;

use crate::bad::{ECHO, HANG, MAX_CALLS, PLENTY, Victim};
use crate::over_sockets;

over_sockets!(
    calls_that_break_the_rules_are_told_so_and_end_the_connection,
    messages_of_servers_end_a_clients_connection,
    an_unknown_method_ends_its_call_only,
    a_request_that_does_not_decode_ends_its_call_only,
    a_cancel_for_an_unknown_call_is_answered,
    a_call_cancelled_before_its_handler_is_entered_is_not_executed,
    the_server_ends_calls_at_their_deadline_by_itself,
    a_request_without_time_is_not_run,
    a_slot_used_again_drops_the_handler_before,
    a_peer_that_goes_away_drops_its_handlers,
);

fn numbered(slot: u32, method: u32, path: Option<&str>) -> Vec<u8> {
    let path = path.map(|path| path.to_owned().into());
    let method = MethodId(method);
    message(
        &Head::Request {
            call: call(slot),
            method,
            path,
            timeout: PLENTY,
            form: Form::Whole,
            reply: ReplyForm::Whole,
            slot: None,
        },
        b"",
    )
}

fn hang(id: CallId, ticket: u8) -> Vec<u8> {
    raw::request(id, HANG, PLENTY, &[0x08, ticket])
}

async fn calls_that_break_the_rules_are_told_so_and_end_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let beyond = hang(call(MAX_CALLS), 1);
    let far_beyond = hang(call(u32::MAX), 1);
    let cancel = message(&Head::Cancel { call: call(u32::MAX) }, b"");
    let words = "beyond max_concurrent_calls of 4";
    victim.assert_goes_away(&beyond, &format!("call 4.0 uses a slot {words}")).await;
    victim.assert_goes_away(&far_beyond, &format!("call 4294967295.0 uses a slot {words}")).await;
    victim.assert_goes_away(&cancel, &format!("call 4294967295.0 uses a slot {words}")).await;
    let twice = [hang(call(0), 2), hang(call(0), 3)].concat();
    victim.assert_goes_away(&twice, "call 0.0 was requested twice").await;
    let words = "method number 7 was never given a path";
    victim.assert_goes_away(&numbered(0, 7, None), words).await;
    let words = "method number 0 was never given a path";
    victim.assert_goes_away(&numbered(0, 0, None), words).await;
    let words = "method number 4294967295 exceeds max_interned_methods of 4096";
    victim.assert_goes_away(&numbered(0, u32::MAX, Some(ECHO)), words).await;
    let renamed = [numbered(0, 1, Some(ECHO)), numbered(1, 1, Some(HANG))].concat();
    victim.assert_goes_away(&renamed, "method number 1").await;
}

async fn messages_of_servers_end_a_clients_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let executed = Executed::Yes;
    let response = Head::Response { call: call(0), code: Code::Ok, executed, messages: None };
    let cancelled = Head::Cancelled { call: call(0), executed };
    for head in [response, cancelled] {
        let words = "a message that only servers send, for call 0.0";
        victim.assert_goes_away(&message(&head, b""), words).await;
    }
    let header = Header { aux: 17, ..Header::new(Kind::Response, call(0)) };
    victim.assert_ends(&header.encode(), "status code is 17, gRPC's are 0 to 16").await;
    // The last message of a client is allowed, and changes nothing.
    let mut peer = victim.raw_client().await;
    peer.send(&message(&Head::GoAway { reason: GoAway::Draining }, b"bye")).await;
    assert_answers(&mut peer, call(0)).await;
}

/// The connection of `peer` still serves calls.
async fn assert_answers(peer: &mut RawPeer, id: CallId) {
    peer.send(&raw::request(id, ECHO, PLENTY, b"\x0a\x02ok")).await;
    let frame = peer.frame().await.expect("a RESPONSE");
    let executed = Executed::Yes;
    assert_eq!(frame.head(), Head::Response { call: id, code: Code::Ok, executed, messages: None });
    assert_eq!(frame.body, b"\x0a\x02ok");
}

/// The next frame says that the call `id` failed; its words are returned.
async fn failure(peer: &mut RawPeer, id: CallId, code: Code, executed: Executed) -> String {
    let frame = peer.frame().await.expect("a RESPONSE");
    assert_eq!(frame.head(), Head::Response { call: id, code, executed, messages: None });
    String::from_utf8_lossy(&frame.body).into_owned()
}

async fn an_unknown_method_ends_its_call_only(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    for (slot, path) in [(0, "/conformance.Conformance/Nothing"), (1, ""), (2, "/../etc/passwd")] {
        peer.send(&raw::request(call(slot), path, PLENTY, b"")).await;
        let words = failure(&mut peer, call(slot), Code::Unimplemented, Executed::No).await;
        assert!(words.contains(&format!("{path} is not served here")), "{words}");
    }
    assert_answers(&mut peer, call(3)).await;
}

async fn a_request_that_does_not_decode_ends_its_call_only(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    for (slot, body) in [(0, &b"\xff\xff\xff"[..]), (1, b"\x0a\x7fshort"), (2, b"\x0b")] {
        peer.send(&raw::request(call(slot), ECHO, PLENTY, body)).await;
        let words = failure(&mut peer, call(slot), Code::Internal, Executed::No).await;
        assert!(words.contains("does not decode"), "{words}");
    }
    assert_answers(&mut peer, call(3)).await;
}

async fn a_cancel_for_an_unknown_call_is_answered(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    let id = CallId { slot: 3, generation: 9 };
    peer.send(&message(&Head::Cancel { call: id }, b"")).await;
    let frame = peer.frame().await.expect("a CANCELLED");
    assert_eq!(frame.head(), Head::Cancelled { call: id, executed: Executed::No });
    // Its REQUEST comes too late to run.
    peer.send(&hang(id, 1)).await;
    assert_answers(&mut peer, call(0)).await;
    assert_eq!(victim.witness.log().entries, 0);
}

async fn a_call_cancelled_before_its_handler_is_entered_is_not_executed(fixture: Fixture) {
    // On one thread no handler runs before everything that has arrived was looked at.
    let (island, desk, target) = (Island::new(), Desk::default(), fixture.target());
    let builder = offering(&desk);
    let serving = island.run(async move { Serving::start(builder, &target).await }).await;
    let mut peer = RawPeer::client(serving.target()).await;
    assert_answers(&mut peer, call(0)).await;
    island.freeze().await;
    let cancel = message(&Head::Cancel { call: call(1) }, b"");
    peer.send(&[hang(call(1), 1), cancel].concat()).await;
    island.thaw();
    let frame = peer.frame().await.expect("a CANCELLED");
    assert_eq!(frame.head(), Head::Cancelled { call: call(1), executed: Executed::No });
    assert_answers(&mut peer, call(2)).await;
    assert_eq!(desk.witness().log().entries, 0);
    // Once entered, it says so.
    peer.send(&hang(call(3), 3)).await;
    desk.witness().until(|log| log.entered.contains(&3)).await;
    peer.send(&message(&Head::Cancel { call: call(3) }, b"")).await;
    let frame = peer.frame().await.expect("a CANCELLED");
    assert_eq!(frame.head(), Head::Cancelled { call: call(3), executed: Executed::Yes });
}

async fn the_server_ends_calls_at_their_deadline_by_itself(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    in_time(async |time| {
        let mut peer = victim.raw_client().await;
        peer.send(&raw::request(call(0), HANG, time, &[0x08, 1])).await;
        let frame = peer.frame().await.expect("a RESPONSE");
        victim.witness.entered_in_time(1)?;
        let (code, executed) = (Code::DeadlineExceeded, Executed::Yes);
        let expected = Head::Response { call: call(0), code, executed, messages: None };
        assert_eq!(frame.head(), expected);
        let words = String::from_utf8_lossy(&frame.body);
        assert!(words.contains("deadline"), "{words}");
        victim.witness.until(|log| log.dropped.contains(&1)).await;
        assert_answers(&mut peer, call(1)).await;
        Ok(())
    })
    .await;
}

async fn a_request_without_time_is_not_run(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    peer.send(&raw::request(call(0), HANG, Duration::ZERO, &[0x08, 1])).await;
    failure(&mut peer, call(0), Code::DeadlineExceeded, Executed::No).await;
    // More time than any clock has is allowed.
    peer.send(&raw::request(call(1), ECHO, Duration::MAX, b"")).await;
    let frame = peer.frame().await.expect("a RESPONSE");
    assert!(matches!(frame.head(), Head::Response { code: Code::Ok, .. }));
    assert_eq!(victim.witness.log().entries, 0);
}

async fn a_slot_used_again_drops_the_handler_before(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    for generation in 0..20 {
        peer.send(&hang(
            CallId { slot: 0, generation },
            1 + u8::try_from(generation).expect("few"),
        ))
        .await;
    }
    assert_answers(&mut peer, call(1)).await;
    victim.witness.until(|log| log.entered.contains(&20) && log.running == 1).await;
}

async fn a_peer_that_goes_away_drops_its_handlers(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    for slot in 0..MAX_CALLS {
        peer.send(&hang(call(slot), u8::try_from(slot).expect("few"))).await;
    }
    victim.witness.until(|log| log.running == 4).await;
    let mark = peer.mark.clone();
    drop(peer);
    victim.witness.until(|log| log.running == 0 && log.dropped.len() == 4).await;
    spy::until(1, &["connection ended", &mark]).await;
}
