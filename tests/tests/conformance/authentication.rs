//! Who calls, as a server can know it.

use std::sync::{Arc, Mutex};

use verbwire::interceptor::from_fn;
use verbwire::{Request, Status};
use verbwire_tests::backends::Place;
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::Fixture;
use verbwire_tests::proto::conformance::Blob;

pub(crate) const CASES: &[Case] =
    &[case!(handlers_see_the_certificate_of_their_client).over_a_connection()];

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
    let is_tls = fixture.backend().place == Place::Tls;
    assert_eq!(seen.is_some_and(|len| len > 100), is_tls, "{seen:?}");
}
