//! Who calls, as a server can know it.

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::timeout;
use verbwire::interceptor::from_fn;
use verbwire::{Builder, Code, ConnectivityState, Endpoint, ErrorKind, Executed, Request, Status};
use verbwire_tests::backends::Place;
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, Late, Serving, connect, in_time};
use verbwire_tests::proto::conformance::Blob;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::service::Desk;

pub(crate) const CASES: &[Case] = &[
    case!(handlers_see_the_certificate_of_their_client).over_a_connection(),
    case!(a_client_that_is_known_is_let_in_and_handlers_know_who_it_is).over_a_connection(),
    case!(a_client_that_is_refused_is_told_why_for_each_call).over_a_connection(),
    case!(a_client_without_credentials_is_asked_about_too).over_a_connection(),
    case!(an_authentication_that_hangs_lets_nobody_in).over_a_connection(),
    case!(an_authentication_that_panics_lets_nobody_in_and_harms_no_other).over_a_connection(),
    case!(credentials_are_fetched_anew_for_each_connection).over_a_connection(),
    case!(credentials_are_not_shown_where_others_can_read_them).over_a_connection(),
];

async fn handlers_see_the_certificate_of_their_client(fixture: Fixture) {
    let seen = Arc::new(Mutex::new(None));
    let noting = Arc::clone(&seen);
    let note = from_fn(move |request: Request<()>| {
        let shown = request.peer_certificates().map(|shown| shown.own().len());
        *noting.lock().expect("no panic") = Some(shown);
        Ok::<_, Status>(request)
    });
    let (pair, _serving) = fixture.pair_with(|builder| builder.intercept(note)).await;
    pair.client.echo(Blob::default()).await.expect("echo");
    let seen = seen.lock().expect("no panic").expect("the interceptor ran");
    let is_tls = matches!(fixture.backend().place, Place::Tls | Place::AutoTls);
    assert_eq!(seen.is_some_and(|len| len > 100), is_tls, "{seen:?}");
}

/// Who a client is, by its token.
struct Name(String);

/// Names seen by an interceptor.
type Seen = Arc<Mutex<Vec<String>>>;

/// A server that lets in whose token is a name in upper case, and notes who calls.
fn knowing(builder: Builder, seen: &Seen) -> Builder {
    let noting = Arc::clone(seen);
    let note = from_fn(move |request: Request<()>| {
        let name = request.identity::<Name>().map_or("nobody", |name| &name.0);
        assert!(request.identity::<String>().is_none(), "it is of another type");
        noting.lock().expect("no panic").push(name.to_owned());
        Ok::<_, Status>(request)
    });
    let builder = builder.authenticate(|newcomer| async move {
        // Whatever it waits for, nothing is admitted meanwhile.
        tokio::task::yield_now().await;
        match newcomer.credentials() {
            None => Err(Status::unauthenticated("show a token")),
            Some(token) if token.iter().all(u8::is_ascii_uppercase) => {
                Ok(Name(String::from_utf8_lossy(token).to_lowercase()))
            }
            Some(_) => Err(Status::permission_denied("that token is not known")),
        }
    });
    builder.intercept(note)
}

/// With credentials, wherever they go.
fn with_token(endpoint: Endpoint, token: &'static str) -> Endpoint {
    let provider = move || async move { Ok::<_, Infallible>(token) };
    endpoint.credentials(provider).allow_plaintext_credentials(true)
}

async fn client_with(serving: &Serving, token: &'static str) -> ConformanceClient {
    ConformanceClient::new(connect(&with_token(serving.endpoint(), token)).await)
}

async fn a_client_that_is_known_is_let_in_and_handlers_know_who_it_is(fixture: Fixture) {
    let seen = Seen::default();
    let serving = fixture.serve(knowing(fixture.offering(&Desk::default()), &seen)).await;
    let (alice, bob) = tokio::join!(client_with(&serving, "ALICE"), client_with(&serving, "BOB"));
    alice.echo(Blob::default()).await.expect("echo");
    bob.echo(Blob::default()).await.expect("echo");
    alice.echo(Blob::default()).await.expect("echo");
    assert_eq!(*seen.lock().expect("no panic"), ["alice", "bob", "alice"]);
}

fn assert_refused(refused: Result<impl std::fmt::Debug, Status>, code: Code, words: &str) {
    let status = refused.expect_err("it is not let in");
    assert_eq!((status.code(), status.executed()), (code, Executed::No), "{status}");
    assert!(status.message().contains(words), "{status}");
}

async fn a_client_that_is_refused_is_told_why_for_each_call(fixture: Fixture) {
    let (seen, desk) = (Seen::default(), Desk::default());
    let builder = knowing(fixture.offering(&desk), &seen).handshake_timeout(LONG);
    let serving = fixture.serve(builder).await;
    let stranger = client_with(&serving, "stranger").await;
    let known = client_with(&serving, "ALICE").await;
    for len in [0, 100_000] {
        let refused = stranger.echo(Blob { payload: vec![0; len].into() }).await;
        assert_refused(refused, Code::PermissionDenied, "that token is not known");
        known.echo(Blob::default()).await.expect("others are not concerned");
    }
    assert_eq!(*seen.lock().expect("no panic"), ["alice", "alice"]);
}

async fn a_client_without_credentials_is_asked_about_too(fixture: Fixture) {
    let seen = Seen::default();
    in_time(async |time| {
        let builder = knowing(fixture.offering(&Desk::default()), &seen).handshake_timeout(time);
        let serving = fixture.serve(builder).await;
        let client = client_before(&serving).await?;
        let refused = client.echo(Blob::default()).await;
        if refused.as_ref().is_err_and(|status| status.code() == Code::Unavailable) {
            return Err(Late("the server's answer did not come before it closed"));
        }
        assert_refused(refused, Code::Unauthenticated, "show a token");
        // It is closed soon.
        let channel = client.channel();
        let closed = async {
            use ConnectivityState::Ready;
            while channel.state_changed(Ready).await == Ready {}
        };
        timeout(LONG, closed).await.expect("it is closed");
        Ok(())
    })
    .await;
    assert!(seen.lock().expect("no panic").is_empty());
}

/// A client of a server with a short `handshake_timeout`.
async fn client_before(serving: &Serving) -> Result<ConformanceClient, Late> {
    let connected = serving.endpoint().connect().await;
    connected.map(ConformanceClient::new).map_err(|_closed| Late("no HELLO was exchanged"))
}

async fn an_authentication_that_hangs_lets_nobody_in(fixture: Fixture) {
    in_time(async |time| {
        let builder = fixture.offering(&Desk::default()).handshake_timeout(time);
        let builder = builder.authenticate(|_| pending::<Result<(), Status>>());
        let serving = fixture.serve(builder).await;
        let client = client_before(&serving).await?;
        let refused = client.echo(Blob::default()).await;
        let words = "within its handshake_timeout";
        if refused.as_ref().is_err_and(|status| !status.message().contains(words)) {
            return Err(Late("the call did not come before the server gave up, as it says"));
        }
        assert_refused(refused, Code::Unavailable, words);
        Ok(())
    })
    .await;
}

async fn an_authentication_that_panics_lets_nobody_in_and_harms_no_other(fixture: Fixture) {
    let builder = fixture.offering(&Desk::default()).handshake_timeout(LONG);
    let builder = builder.authenticate(|newcomer| async move {
        assert!(newcomer.credentials() == Some(b"GOOD"), "as the case wants it");
        Ok::<_, Status>(())
    });
    let serving = fixture.serve(builder).await;
    let good = client_with(&serving, "GOOD").await;
    let bad = client_with(&serving, "BAD").await;
    assert_refused(bad.echo(Blob::default()).await, Code::Internal, "authentication panicked");
    good.echo(Blob::default()).await.expect("echo");
}

async fn credentials_are_fetched_anew_for_each_connection(fixture: Fixture) {
    let seen = Seen::default();
    let serving = fixture.serve(knowing(fixture.offering(&Desk::default()), &seen)).await;
    let target = serving.target().to_owned();
    let asked = Arc::new(AtomicU32::new(0));
    let asking = Arc::clone(&asked);
    let endpoint = serving.endpoint().allow_plaintext_credentials(true).credentials(move || {
        let number = asking.fetch_add(1, Ordering::Relaxed);
        async move { Ok::<_, Infallible>("X".repeat(number as usize + 1)) }
    });
    let client = ConformanceClient::new(connect(&endpoint).await);
    client.echo(Blob::default()).await.expect("echo");
    serving.drop_serving().await;
    let builder = || knowing(fixture.offering(&Desk::default()), &seen);
    let _serving = Serving::restart(builder, &target).await;
    let mut request = Request::new(Blob::default());
    request.set_timeout(LONG);
    request.set_wait_for_ready(true);
    client.echo(request).await.expect("echo");
    let seen = seen.lock().expect("no panic");
    assert_eq!(seen[0], "x");
    assert!(seen.len() == 2 && seen[1].len() > 1, "a token of another connection: {seen:?}");
}

async fn credentials_are_not_shown_where_others_can_read_them(fixture: Fixture) {
    let seen = Seen::default();
    let serving = fixture.serve(knowing(fixture.offering(&Desk::default()), &seen)).await;
    let asked = Arc::new(AtomicU32::new(0));
    let asking = Arc::clone(&asked);
    let endpoint = serving.endpoint().credentials(move || {
        asking.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>("ALICE") }
    });
    let connected = endpoint.connect().await;
    match fixture.backend().place {
        Place::Tls | Place::Unix | Place::Mem | Place::AutoFabric | Place::AutoTls => {
            let client = ConformanceClient::new(connected.expect("nobody else reads that"));
            client.echo(Blob::default()).await.expect("echo");
        }
        _ => {
            let error = connected.expect_err("it is for everybody to read");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains("connect to tls://"), "{error}");
            assert_eq!(asked.load(Ordering::Relaxed), 0, "there is nobody to show it to");
        }
    }
}
