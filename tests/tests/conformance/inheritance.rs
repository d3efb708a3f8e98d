//! What calls inside a handler inherit, and how those whom a handler leaves behind learn of its end.

use std::time::Duration;

use verbwire::{Code, Request};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::context::{self, Surroundings};
use verbwire_tests::fixture::{Fixture, LONG, Late, begin, in_time};
use verbwire_tests::proto::context::context_client::ContextClient;
use verbwire_tests::proto::context::relay_request::Way;
use verbwire_tests::proto::context::{LeaveRequest, LeftRequest, RelayRequest};

pub(crate) const CASES: &[Case] = &[
    case!(a_call_inside_a_handler_has_what_is_left_of_its_deadline),
    case!(the_smaller_of_both_deadlines_counts),
    case!(spawn_and_shield_hand_the_deadline_on_and_plain_tasks_do_not),
    case!(a_detached_call_has_no_deadline_but_its_own),
    case!(a_deadline_ends_the_calls_behind_it_too),
    case!(a_cancel_ends_the_calls_behind_it_too),
    case!(who_is_left_behind_learns_that_the_call_was_cancelled),
    case!(who_is_left_behind_learns_that_the_deadline_has_passed),
    case!(who_is_left_behind_learns_nothing_of_a_call_that_returned),
    case!(a_task_that_serves_no_call_has_the_channels_default),
];

/// Far below the default of a channel, which is a minute.
const OUTER: Duration = Duration::from_secs(25);

struct Chain {
    front: ContextClient,
    first: Surroundings,
    second: Surroundings,
}

async fn chain(fixture: &Fixture) -> Chain {
    let second = Surroundings::default();
    let first = Surroundings::before(context::client_of(fixture, second.clone()).await);
    let front = context::client_of(fixture, first.clone()).await;
    Chain { front, first, second }
}

fn relay(way: Way, timeout: Duration) -> Request<RelayRequest> {
    let mut request = Request::new(RelayRequest { way: way.into(), ..RelayRequest::default() });
    request.set_timeout(timeout);
    request
}

/// What the server behind has left of a call that has `OUTER` in front.
async fn left(chain: &Chain, way: Way, inner: Duration) -> Duration {
    let mut request = relay(way, OUTER);
    request.get_mut().timeout_us = u64::try_from(inner.as_micros()).expect("short");
    let reply = chain.front.relay(request).await.expect("relay");
    Duration::from_micros(reply.get_ref().left_us)
}

async fn a_call_inside_a_handler_has_what_is_left_of_its_deadline(fixture: Fixture) {
    let left = left(&chain(&fixture).await, Way::Direct, Duration::ZERO).await;
    assert!(left <= OUTER && left > OUTER / 2, "{left:?}");
}

async fn the_smaller_of_both_deadlines_counts(fixture: Fixture) {
    let chain = chain(&fixture).await;
    let shorter = left(&chain, Way::Direct, OUTER / 2).await;
    assert!(shorter <= OUTER / 2 && shorter > OUTER / 4, "{shorter:?}");
    let longer = left(&chain, Way::Direct, OUTER * 100).await;
    assert!(longer <= OUTER && longer > OUTER / 2, "{longer:?}");
}

async fn spawn_and_shield_hand_the_deadline_on_and_plain_tasks_do_not(fixture: Fixture) {
    let chain = chain(&fixture).await;
    for way in [Way::Spawned, Way::Shielded] {
        let left = left(&chain, way, Duration::ZERO).await;
        assert!(left <= OUTER && left > OUTER / 2, "{way:?}: {left:?}");
    }
    let plain = left(&chain, Way::PlainTask, Duration::ZERO).await;
    assert!(plain > OUTER, "{plain:?}");
}

async fn a_detached_call_has_no_deadline_but_its_own(fixture: Fixture) {
    let chain = chain(&fixture).await;
    let default = left(&chain, Way::Detached, Duration::ZERO).await;
    assert!(default > OUTER, "{default:?}");
    let own = left(&chain, Way::Detached, OUTER * 100).await;
    assert!(own > OUTER * 50, "{own:?}");
}

async fn a_deadline_ends_the_calls_behind_it_too(fixture: Fixture) {
    let chain = chain(&fixture).await;
    in_time(async |time| {
        let mut request = relay(Way::Direct, time);
        request.get_mut().hangs = true;
        let status = chain.front.relay(request).await.expect_err("hangs");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        let was_entered = chain.second.events().has("hangs");
        was_entered.then_some(()).ok_or(Late("the handler behind was not entered"))
    })
    .await;
    chain.first.events().until("handler dropped").await;
    chain.second.events().until("handler dropped").await;
}

async fn a_cancel_ends_the_calls_behind_it_too(fixture: Fixture) {
    let chain = chain(&fixture).await;
    let mut request = relay(Way::Direct, LONG);
    request.get_mut().hangs = true;
    let call = begin(chain.front.relay(request)).await;
    chain.second.events().until("hangs").await;
    call.abort();
    chain.first.events().until("handler dropped").await;
    chain.second.events().until("handler dropped").await;
}

async fn who_is_left_behind_learns_that_the_call_was_cancelled(fixture: Fixture) {
    let service = Surroundings::default();
    let client = context::client_of(&fixture, service.clone()).await;
    let call = begin(client.leave_behind(LeaveRequest { returns: false })).await;
    service.events().until("left behind").await;
    assert!(!service.events().has("told by the future"));
    call.abort();
    service.events().until("told by the future").await;
    service.events().until("told in a task").await;
}

async fn who_is_left_behind_learns_that_the_deadline_has_passed(fixture: Fixture) {
    let service = Surroundings::default();
    let client = context::client_of(&fixture, service.clone()).await;
    in_time(async |time| {
        let mut request = Request::new(LeaveRequest { returns: false });
        request.set_timeout(time);
        let status = client.leave_behind(request).await.expect_err("does not return");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        let was_entered = service.events().has("left behind");
        was_entered.then_some(()).ok_or(Late("the handler left nobody behind"))
    })
    .await;
    service.events().until("told by the future").await;
    service.events().until("told in a task").await;
}

async fn who_is_left_behind_learns_nothing_of_a_call_that_returned(fixture: Fixture) {
    let service = Surroundings::default();
    let client = context::client_of(&fixture, service.clone()).await;
    client.leave_behind(LeaveRequest { returns: true }).await.expect("returns");
    service.events().until("left behind").await;
    // Long enough for news of another call.
    client.left(LeftRequest {}).await.expect("left");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!service.events().has("told by the future"));
    assert!(!service.events().has("told in a task"));
}

async fn a_task_that_serves_no_call_has_the_channels_default(fixture: Fixture) {
    let client = context::client(&fixture).await;
    let reply = verbwire::spawn(client.left(LeftRequest {})).await.expect("no panic");
    assert!(Duration::from_micros(reply.expect("left").get_ref().left_us) > OUTER);
}
