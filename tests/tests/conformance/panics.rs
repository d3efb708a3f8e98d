//! Handlers that panic.

use verbwire::{Code, Executed, Status};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, Pair};
use verbwire_tests::proto::conformance::panic_request::Moment;
use verbwire_tests::proto::conformance::{Blob, PanicRequest, Ticket};
use verbwire_tests::runner::ON_PURPOSE;

pub(crate) const CASES: &[Case] = &[
    case!(a_panic_fails_its_call_and_no_other),
    case!(a_panic_in_an_inline_handler_fails_its_call_and_no_other),
    case!(panics_give_their_slots_back).over_one_connection(),
];

fn fall(moment: Moment) -> PanicRequest {
    PanicRequest { moment: moment.into(), secret: format!("{ON_PURPOSE}: the password is 1234") }
}

fn assert_panicked(status: &Status, method: &str) {
    assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Yes), "{status}");
    assert!(status.message().contains(method), "{status}");
    assert!(!status.message().contains("1234"), "{status}");
}

async fn assert_others_live<F, C>(pair: Pair, panic: F)
where
    F: Fn(PanicRequest) -> C,
    C: Future<Output = Status>,
{
    let other = tokio::spawn(pair.client.gate(Ticket { number: 1 }));
    pair.witness.until(|log| log.entered.contains(&1)).await;
    for moment in [Moment::FirstPoll, Moment::AfterAwait, Moment::FirstPoll] {
        assert_panicked(&panic(fall(moment)).await, "/conformance.Conformance/Panic");
    }
    pair.client.echo(Blob::default()).await.expect("echo");
    pair.witness.open(1);
    other.await.expect("no panic here").expect("gate");
}

async fn a_panic_fails_its_call_and_no_other(fixture: Fixture) {
    let pair = fixture.pair().await;
    let client = pair.client.clone();
    assert_others_live(pair, |request| {
        let call = client.panic(request);
        async { call.await.expect_err("panics") }
    })
    .await;
}

async fn a_panic_in_an_inline_handler_fails_its_call_and_no_other(fixture: Fixture) {
    let pair = fixture.pair().await;
    let client = pair.client.clone();
    assert_others_live(pair, |request| {
        let call = client.panic_inline(request);
        async { call.await.expect_err("panics") }
    })
    .await;
}

async fn panics_give_their_slots_back(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(2)).await;
    for _ in 0..20 {
        let status = pair.client.panic(fall(Moment::AfterAwait)).await;
        assert_panicked(&status.expect_err("panics"), "Panic");
    }
    pair.client.echo(Blob::default()).await.expect("echo");
}
