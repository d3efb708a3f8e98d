//! Calls with slots: repeated, they run once.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use verbwire::interceptor::{Interceptor, Next, Outcome, Payload};
use verbwire::open::{StreamInput, StreamOutput};
use verbwire::{
    Code, Executed, LoadLimits, Request, Server, SessionLimits, Sessions, Slot, SlotUse, Status,
};
use verbwire_core::codec::{Codec, Prost};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{
    Fixture, LONG, Late, Pair, Serving, begin, in_time, offering, short,
};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_server::ConformanceServer;
use verbwire_tests::proto::conformance::{Blob, FailRequest, ProduceRequest, ScanRequest, Ticket};
use verbwire_tests::service::Desk;

use crate::interceptors::Notes;

pub(crate) const CASES: &[Case] = &[
    case!(a_repeat_after_a_lost_connection_waits_and_runs_once).over_a_connection(),
    case!(a_repeat_after_the_answer_has_the_same_answer).over_a_connection(),
    case!(a_repeat_while_the_call_runs_waits_for_it).over_a_connection(),
    case!(a_repeat_of_a_call_by_path_runs_once).over_a_connection(),
    case!(a_repeat_by_an_interceptor_runs_once).over_a_connection(),
    case!(a_stale_sequence_is_refused).over_a_connection(),
    case!(a_call_that_expired_before_it_ran_may_run_again).over_a_connection(),
    case!(a_call_that_expired_in_an_interceptor_behind_the_sessions_may_run_again)
        .over_a_connection(),
    case!(a_call_that_is_cancelled_before_its_turn_has_perhaps_been_executed)
        .over_a_connection()
        .in_real_time(),
    case!(a_call_with_a_slot_ends_at_its_deadline_without_its_connection).over_a_connection(),
    case!(the_next_call_in_a_slot_stops_what_nobody_waits_for).over_a_connection(),
    case!(a_call_that_nobody_waits_for_counts_as_running).over_a_connection(),
    case!(a_repeat_at_a_full_server_waits_or_has_the_answer).over_a_connection(),
    case!(a_session_of_an_earlier_epoch_is_over).over_a_connection(),
    case!(a_server_that_was_started_anew_knows_no_session).over_a_connection(),
    case!(an_answer_that_was_not_kept_is_told_and_not_made_again).over_a_connection(),
    case!(a_failed_call_fails_the_same_way_again).over_a_connection(),
    case!(a_long_request_is_repeated_too).over_a_connection(),
    case!(a_server_without_sessions_runs_no_call_with_a_slot).over_a_connection(),
    case!(slots_are_given_to_one_call_at_a_time).over_a_connection(),
    case!(where_slots_have_no_meaning_they_are_refused),
];

/// A client of a server with sessions.
async fn pair(fixture: &Fixture) -> (Pair, Serving, Sessions) {
    let sessions = Sessions::default();
    let (pair, serving) = fixture.pair_with(|builder| builder.sessions(&sessions)).await;
    (pair, serving, sessions)
}

async fn slot(pair: &Pair) -> Slot {
    let session = pair.client.channel().open_session().await.expect("the server has sessions");
    session.slot().await
}

fn with<T>(slot: SlotUse, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LONG);
    request.set_slot(slot);
    request
}

fn ticket(slot: SlotUse) -> Request<Ticket> {
    with(slot, Ticket { number: 1 })
}

async fn a_repeat_after_a_lost_connection_waits_and_runs_once(fixture: Fixture) {
    let (Pair { client, witness }, serving, _) = pair(&fixture).await;
    let slot = slot(&Pair { client: client.clone(), witness: witness.clone() }).await;
    let first = begin(client.gate(ticket(slot.id()))).await;
    witness.until(|log| log.running == 1).await;
    first.abort();
    drop((first.await, client));
    let second = begin(serving.client().await.gate(ticket(slot.id()))).await;
    // A call of its own goes past it.
    serving.client().await.echo(Blob::default()).await.expect("echo");
    witness.open(1);
    let reply = second.await.expect("no panic").expect("the answer of the first attempt");
    assert_eq!(reply.get_ref().number, 1);
    let log = witness.log();
    assert_eq!((log.entries, log.dropped.len()), (1, 0), "{log:?}");
}

async fn a_repeat_after_the_answer_has_the_same_answer(fixture: Fixture) {
    let (pair, serving, sessions) = pair(&fixture).await;
    let slot = slot(&pair).await;
    pair.witness.open(1);
    let first = pair.client.gate(ticket(slot.id())).await.expect("gate");
    drop(pair.client);
    for _ in 0..2 {
        let client = serving.client().await;
        let again = client.gate(ticket(slot.id())).await.expect("the same");
        assert_eq!(again.get_ref(), first.get_ref());
    }
    assert_eq!(pair.witness.log().entries, 1);
    assert!(sessions.kept_bytes() > 0);
}

async fn a_repeat_of_a_call_by_path_runs_once(fixture: Fixture) {
    let (pair, _serving, _) = pair(&fixture).await;
    let slot = slot(&pair).await;
    pair.witness.open(1);
    for _ in 0..2 {
        let message = StreamInput::Whole(Prost.encode(&Ticket { number: 1 }));
        let request = with(slot.id(), message);
        let call = pair.client.channel().call("/conformance.Conformance/Gate", request);
        let StreamOutput::Whole(body) = call.await.expect("gate").into_inner() else {
            unreachable!("a ticket is one message");
        };
        let ticket: Ticket = Prost.decode(body).expect("it decodes");
        assert_eq!(ticket.number, 1);
    }
    assert_eq!(pair.witness.log().entries, 1);
}

async fn a_repeat_while_the_call_runs_waits_for_it(fixture: Fixture) {
    let (pair, _serving, _) = pair(&fixture).await;
    let slot = slot(&pair).await;
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(begin(pair.client.gate(ticket(slot.id()))).await);
    }
    pair.witness.until(|log| log.running == 1).await;
    pair.client.echo(Blob::default()).await.expect("echo");
    // It is completed although the first one is cancelled.
    calls.remove(0).abort();
    pair.witness.open(1);
    for call in calls {
        assert_eq!(call.await.expect("no panic").expect("gate").get_ref().number, 1);
    }
    assert_eq!(pair.witness.log().entries, 1);
}

/// Makes each call twice.
struct Twice;

impl Interceptor for Twice {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let again = request.copy().expect("not a stream");
        next.clone().run(again).await?;
        next.run(request).await
    }
}

async fn a_repeat_by_an_interceptor_runs_once(fixture: Fixture) {
    let (pair, _serving, _) = pair(&fixture).await;
    let slot = slot(&pair).await;
    let channel = pair.client.channel().intercepted(Twice);
    let client =
        verbwire_tests::proto::conformance::conformance_client::ConformanceClient::new(channel);
    pair.witness.open(1);
    client.gate(ticket(slot.id())).await.expect("gate");
    assert_eq!(pair.witness.log().entries, 1);
}

async fn a_stale_sequence_is_refused(fixture: Fixture) {
    let (pair, _serving, _) = pair(&fixture).await;
    let session = pair.client.channel().open_session().await.expect("sessions");
    let first = session.slot().await;
    let stale = first.id();
    pair.witness.open(1);
    pair.client.gate(ticket(stale)).await.expect("gate");
    drop(first);
    let second = session.slot().await;
    assert_eq!((second.id().slot, second.id().sequence), (stale.slot, stale.sequence + 1));
    pair.client.echo(with(second.id(), Blob::default())).await.expect("echo");
    let status = pair.client.gate(ticket(stale)).await.expect_err("stale");
    assert_eq!((status.code(), status.executed()), (Code::Aborted, Executed::Maybe), "{status}");
    assert!(status.message().contains("comes too late"), "{status}");
    assert_eq!(pair.witness.log().entries, 1);
}

/// Holds calls up until their deadlines, if they bring metadata.
struct HoldsUp;

impl Interceptor for HoldsUp {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        if !request.metadata().is_empty() {
            let deadline = request.deadline().expect("received");
            tokio::time::sleep_until(deadline).await;
        }
        next.run(request).await
    }
}

async fn a_call_that_expired_before_it_ran_may_run_again(fixture: Fixture) {
    let sessions = Sessions::default();
    let configure = |builder: verbwire::Builder| builder.sessions(&sessions).intercept(HoldsUp);
    let (pair, _serving) = fixture.pair_with(configure).await;
    let slot = slot(&pair).await;
    let mut held_up = ticket(slot.id());
    held_up.set_timeout(Duration::from_millis(100));
    held_up.metadata_mut().insert("k", "v".parse().expect("printable")).expect("a name");
    let status = pair.client.gate(held_up).await.expect_err("held up");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    sleep(Duration::from_millis(100)).await;
    assert_runs_now_and_not_before(&pair, slot.id()).await;
}

async fn assert_runs_now_and_not_before(pair: &Pair, slot: SlotUse) {
    assert_eq!(pair.witness.log().entries, 0);
    pair.witness.open(1);
    let begun = Instant::now();
    while let Err(status) = pair.client.gate(ticket(slot)).await {
        // Who comes before the first attempt has ended at the server has its answer.
        let found = (status.code(), status.executed());
        assert_eq!(found, (Code::DeadlineExceeded, Executed::No), "{status}");
        assert!(begun.elapsed() < LONG, "it never ran, and is not run: {status}");
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(pair.witness.log().entries, 1);
}

/// Waits before it hands calls on.
struct Waits;

impl Interceptor for Waits {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        sleep(Duration::from_millis(300)).await;
        next.run(request).await
    }
}

/// A client of a server with sessions, whose service has an interceptor of its own, behind them.
async fn behind(fixture: &Fixture, interceptor: impl Interceptor) -> (Pair, Serving) {
    let desk = Desk::default();
    let service = ConformanceServer::new(desk.clone());
    let service = verbwire::interceptor::Intercepted::new(service, interceptor);
    let builder = Server::builder().add_service(service).sessions(&Sessions::default());
    let serving = Serving::start(builder, &fixture.target()).await;
    let pair = Pair { client: serving.client().await, witness: desk.witness().clone() };
    (pair, serving)
}

async fn a_call_that_expired_in_an_interceptor_behind_the_sessions_may_run_again(fixture: Fixture) {
    let (pair, _serving) = behind(&fixture, Waits).await;
    let slot = slot(&pair).await;
    let mut short = ticket(slot.id());
    short.set_timeout(Duration::from_millis(100));
    let status = pair.client.gate(short).await.expect_err("too short");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_ne!(status.executed(), Executed::Yes, "{status}");
    sleep(Duration::from_millis(500)).await;
    assert_runs_now_and_not_before(&pair, slot.id()).await;
}

/// Blocks its thread where the first use of a slot passes, notes that, and goes on when it is told to.
struct Blocks(Notes, Mutex<mpsc::Receiver<()>>);

impl Interceptor for Blocks {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        if request.slot().is_some_and(|slot| slot.sequence == 1) {
            self.0.add("blocks");
            let wait = || self.1.lock().expect("no panic").recv();
            tokio::task::block_in_place(wait).expect("the case goes on");
            // Here the word that it is to stop is heard.
            tokio::task::yield_now().await;
        }
        next.run(request).await
    }
}

async fn a_call_that_is_cancelled_before_its_turn_has_perhaps_been_executed(fixture: Fixture) {
    let (notes, (go_on, waiting)) = (Notes::default(), mpsc::channel());
    let (pair, _serving) = behind(&fixture, Blocks(notes.clone(), Mutex::new(waiting))).await;
    let slot = slot(&pair).await;
    let first = begin(pair.client.gate(ticket(slot.id()))).await;
    notes.until("blocks").await;
    let next = SlotUse { sequence: slot.id().sequence + 1, ..slot.id() };
    let mut call = pair.client.gate(ticket(next));
    let handle = call.cancel_handle();
    let call = begin(call).await;
    // It has come before this is answered, and waits some moments later.
    pair.client.echo(Blob::default()).await.expect("echo");
    sleep(short()).await;
    handle.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    go_on.send(()).expect("the first one blocks");
    // It goes on, and waits for the first.
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Maybe), "{status}");
    let status = first.await.expect("no panic").expect_err("the next use of its slot stopped it");
    assert_eq!((status.code(), status.executed()), (Code::Aborted, Executed::No), "{status}");
    pair.witness.open(1);
    pair.client.gate(ticket(next)).await.expect("the call that went on");
    assert_eq!(pair.witness.log().entries, 1);
}

async fn a_call_with_a_slot_ends_at_its_deadline_without_its_connection(fixture: Fixture) {
    in_time(async |time| {
        let (Pair { client, witness }, serving, _) = pair(&fixture).await;
        let slot = slot(&Pair { client: client.clone(), witness: witness.clone() }).await;
        let mut request = ticket(slot.id());
        request.set_timeout(2 * time);
        let call = tokio::spawn(client.hang(request));
        while witness.log().running == 0 {
            if call.is_finished() {
                return Err(Late("no handler was entered"));
            }
            sleep(Duration::from_millis(1)).await;
        }
        call.abort();
        drop((call.await, client));
        witness.until(|log| log.dropped.contains(&1)).await;
        let status = serving.client().await.hang(ticket(slot.id())).await.expect_err("it ran");
        let (code, executed) = (status.code(), status.executed());
        assert_eq!((code, executed), (Code::DeadlineExceeded, Executed::Yes), "{status}");
        assert_eq!(witness.log().entries, 1);
        Ok(())
    })
    .await;
}

async fn the_next_call_in_a_slot_stops_what_nobody_waits_for(fixture: Fixture) {
    let (pair, _serving, _) = pair(&fixture).await;
    let session = pair.client.channel().open_session().await.expect("sessions");
    let slot = session.slot().await;
    let call = begin(pair.client.hang(ticket(slot.id()))).await;
    pair.witness.until(|log| log.running == 1).await;
    call.abort();
    drop((call.await, slot));
    let slot = session.slot().await;
    pair.client.echo(with(slot.id(), Blob::default())).await.expect("echo");
    pair.witness.until(|log| log.dropped.contains(&1)).await;
}

async fn a_call_that_nobody_waits_for_counts_as_running(fixture: Fixture) {
    let desk = Desk::default();
    let builder = offering(&desk)
        .sessions(&Sessions::default())
        .load_limits(&LoadLimits::new().max_running_calls(1));
    let serving = Serving::start(builder, &fixture.target()).await;
    let pair = Pair { client: serving.client().await, witness: desk.witness().clone() };
    let slot = slot(&pair).await;
    let call = begin(pair.client.gate(ticket(slot.id()))).await;
    pair.witness.until(|log| log.running == 1).await;
    call.abort();
    drop((call.await, pair.client));
    let client = serving.client().await;
    // The server learns of the cancel in its own time, and the call runs on.
    sleep(Duration::from_millis(100)).await;
    let status = client.echo(Blob::default()).await.expect_err("one runs");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    pair.witness.open(1);
    let begun = Instant::now();
    while let Err(status) = client.echo(Blob::default()).await {
        assert!(begun.elapsed() < LONG, "the place never became free: {status}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn a_repeat_at_a_full_server_waits_or_has_the_answer(fixture: Fixture) {
    let desk = Desk::default();
    let builder = offering(&desk)
        .sessions(&Sessions::default())
        .load_limits(&LoadLimits::new().max_running_calls(1));
    let serving = Serving::start(builder, &fixture.target()).await;
    let pair = Pair { client: serving.client().await, witness: desk.witness().clone() };
    let session = pair.client.channel().open_session().await.expect("sessions");
    let (slot, other) = (session.slot().await, session.slot().await);
    let first = begin(pair.client.gate(ticket(slot.id()))).await;
    pair.witness.until(|log| log.running == 1).await;
    let client = serving.client().await;
    let repeat = begin(client.gate(ticket(slot.id()))).await;
    let status = client.gate(ticket(other.id())).await.expect_err("another call");
    let found = (status.code(), status.executed());
    assert_eq!(found, (Code::ResourceExhausted, Executed::Maybe), "{status}");
    pair.witness.open(1);
    for call in [first, repeat] {
        assert_eq!(call.await.expect("no panic").expect("gate").get_ref().number, 1);
    }
    // Full again.
    let begun = Instant::now();
    let full = loop {
        let full = begin(client.gate(Ticket { number: 2 })).await;
        // It is in, or was turned away.
        while pair.witness.log().running == 0 && !full.is_finished() {
            sleep(Duration::from_millis(10)).await;
        }
        if pair.witness.log().running == 1 {
            break full;
        }
        assert!(begun.elapsed() < LONG, "the place never became free");
    };
    let again = client.gate(ticket(slot.id())).await.expect("the answer is kept");
    assert_eq!(again.get_ref().number, 1);
    pair.witness.open(2);
    full.await.expect("no panic").expect("gate");
    assert_eq!(pair.witness.log().entries, 2);
}

async fn a_session_of_an_earlier_epoch_is_over(fixture: Fixture) {
    let (pair, _serving, sessions) = pair(&fixture).await;
    let slot = slot(&pair).await;
    sessions.set_epoch(3);
    let status = pair.client.gate(ticket(slot.id())).await.expect_err("over");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("in epoch 0, and it is epoch 3 now"), "{status}");
    let session = pair.client.channel().open_session().await.expect("another");
    assert_eq!(session.epoch(), 3);
    pair.witness.open(1);
    pair.client.gate(ticket(session.slot().await.id())).await.expect("gate");
    assert_eq!(pair.witness.log().entries, 1);
}

async fn a_server_that_was_started_anew_knows_no_session(fixture: Fixture) {
    let (pair, serving, _) = pair(&fixture).await;
    let slot = slot(&pair).await;
    let call = begin(pair.client.hang(ticket(slot.id()))).await;
    pair.witness.until(|log| log.running == 1).await;
    serving.drop_serving().await;
    call.await.expect("no panic").expect_err("the server is gone");
    // What runs for nobody ends with its server.
    pair.witness.until(|log| log.dropped.contains(&1)).await;
    let (anew, _serving, _) = self::pair(&fixture).await;
    let status = anew.client.hang(ticket(slot.id())).await.expect_err("unknown");
    let (code, executed) = (status.code(), status.executed());
    assert_eq!((code, executed), (Code::FailedPrecondition, Executed::Maybe), "{status}");
    assert_eq!(anew.witness.log().entries, 0);
}

async fn an_answer_that_was_not_kept_is_told_and_not_made_again(fixture: Fixture) {
    let mut limits = SessionLimits::default();
    limits.max_kept_answer = 1000;
    let sessions = Sessions::new(limits);
    let (pair, _serving) = fixture.pair_with(|builder| builder.sessions(&sessions)).await;
    let slot = slot(&pair).await;
    let request = || with(slot.id(), ProduceRequest { len: 100_000, seed: 1 });
    let reply = pair.client.produce(request()).await.expect("produce");
    assert_eq!(reply.get_ref().payload, pattern::payload(100_000, 1));
    let produced = pair.witness.log().produced;
    let status = pair.client.produce(request()).await.expect_err("not kept");
    assert_eq!((status.code(), status.executed()), (Code::DataLoss, Executed::Yes), "{status}");
    assert!(status.message().contains("max_kept_answer is 1000"), "{status}");
    assert_eq!((pair.witness.log().produced, sessions.kept_bytes()), (produced, 0));
}

async fn a_failed_call_fails_the_same_way_again(fixture: Fixture) {
    let (pair, _serving, _) = pair(&fixture).await;
    let slot = slot(&pair).await;
    let told =
        FailRequest { code: 5, message: "no block".to_owned(), details: b"details"[..].into() };
    let first = pair.client.fail(with(slot.id(), told.clone())).await.expect_err("as told");
    let second = pair.client.fail(with(slot.id(), told.clone())).await.expect_err("as the first");
    let said = |status: &Status| {
        let words = status.message().to_owned();
        (status.code(), words, status.details().clone(), status.executed())
    };
    assert_eq!(said(&first), said(&second));
    assert_eq!((first.code(), first.executed()), (Code::NotFound, Executed::Yes));
    let other = FailRequest { code: 7, ..told };
    let refused = pair.client.fail(with(slot.id(), other)).await.expect_err("another request");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert_eq!(pair.witness.log().failures, 1);
}

async fn a_long_request_is_repeated_too(fixture: Fixture) {
    let (pair, serving, _) = pair(&fixture).await;
    let slot = slot(&pair).await;
    let payload = pattern::payload(1 << 20, 1);
    let first = pair.client.digest(with(slot.id(), Blob { payload: payload.clone() })).await;
    let first = first.expect("digest").into_inner();
    assert_eq!((first.len, first.checksum), (1 << 20, pattern::checksum(&payload)));
    // Another one in a byte that is not compared, so that whoever ran it would answer something else.
    let mut other = payload.to_vec();
    other[1 << 19] ^= 1;
    let other = with(slot.id(), Blob { payload: other.into() });
    let again = serving.client().await.digest(other).await.expect("the kept answer");
    assert_eq!(again.into_inner(), first);
}

fn forged() -> SlotUse {
    SlotUse { session: verbwire::SessionId(7), slot: 0, sequence: 1 }
}

async fn a_server_without_sessions_runs_no_call_with_a_slot(fixture: Fixture) {
    let pair = fixture.pair().await;
    let status = pair.client.channel().open_session().await.expect_err("none");
    assert_eq!((status.code(), status.executed()), (Code::Unimplemented, Executed::No));
    let status = pair.client.gate(ticket(forged())).await.expect_err("no sessions");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("Builder::sessions"), "{status}");
    assert_eq!(pair.witness.log().entries, 0);
}

async fn slots_are_given_to_one_call_at_a_time(fixture: Fixture) {
    let mut limits = SessionLimits::default();
    limits.slots = 2;
    let sessions = Sessions::new(limits);
    let (pair, _serving) = fixture.pair_with(|builder| builder.sessions(&sessions)).await;
    let session = pair.client.channel().open_session().await.expect("sessions");
    assert_eq!(session.slots(), 2);
    let (first, second) = (session.slot().await, session.slot().await);
    assert_ne!(first.id().slot, second.id().slot);
    let waiting = {
        let session = session.clone();
        tokio::spawn(async move { session.slot().await.id() })
    };
    pair.client.echo(with(second.id(), Blob::default())).await.expect("echo");
    assert!(!waiting.is_finished());
    let freed = second.id();
    drop(second);
    let third = waiting.await.expect("no panic");
    assert_eq!((third.slot, third.sequence), (freed.slot, freed.sequence + 1));
    drop(first);
}

async fn where_slots_have_no_meaning_they_are_refused(fixture: Fixture) {
    let pair = fixture.pair().await;
    let scan = pair.client.scan(with(forged(), ScanRequest::default())).await;
    let status = scan.expect_err("a stream");
    let (code, executed) = (status.code(), status.executed());
    assert_eq!((code, executed), (Code::InvalidArgument, Executed::No), "{status}");
    if pair.client.channel().path().is_none() {
        let status = pair.client.gate(ticket(forged())).await.expect_err("in process");
        assert_eq!((status.code(), status.executed()), (Code::InvalidArgument, Executed::No));
        assert_eq!(pair.witness.log().entries, 0);
    }
}
