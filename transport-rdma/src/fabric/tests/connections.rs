//! The connection manager: refusing, giving up, addresses.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use verbwire_core::ErrorKind;

use super::rig::{A_WHILE, ALL, DEPTHS, Side, config, pair};
use crate::fabric::{Death, Fabric, Profile};
use crate::nic::{CmListener, ConnectRequest, MAX_PRIVATE_DATA};

async fn listener(side: &Side) -> (Box<dyn CmListener>, String) {
    let listener = side.host.cm().listen("b:0").await.expect("free");
    let address = listener.local_address().to_owned();
    (listener, address)
}

async fn request(listener: &mut Box<dyn CmListener>) -> Box<dyn ConnectRequest> {
    poll_fn(|cx| listener.poll_request(cx)).await.expect("alive")
}

fn sides(profile: Profile) -> (Fabric, Side, Side) {
    let fabric = Fabric::new(config(profile));
    let (a, b) = (Side::new(&fabric, "a", DEPTHS, 8), Side::new(&fabric, "b", DEPTHS, 8));
    (fabric, a, b)
}

#[tokio::test(start_paused = true)]
async fn a_refusal_tells_the_peer_why() {
    for profile in ALL {
        let (_fabric, a, b) = sides(profile);
        let (mut listener, address) = listener(&b).await;
        let resolved = a.host.cm().resolve(&address).await.expect("known");
        let connecting = tokio::spawn(resolved.connect(Arc::clone(&a.qp), Vec::new()));
        request(&mut listener).await.reject(b"too many connections".to_vec());
        let error = connecting.await.expect("no panic").map(drop).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("too many connections"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_and_a_listener_that_is_dropped_refuse() {
    for case in ["request", "listener", "nobody"] {
        let (_fabric, a, b) = sides(Profile::Rxe);
        let (mut listener, address) = listener(&b).await;
        let resolved = a.host.cm().resolve(&address).await.expect("known");
        let connecting = tokio::spawn(resolved.connect(Arc::clone(&a.qp), Vec::new()));
        match case {
            "request" => drop(request(&mut listener).await),
            "listener" => {
                tokio::time::sleep(A_WHILE).await;
                drop(listener);
            }
            _ => drop(listener),
        }
        let error = connecting.await.expect("no panic").map(drop).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_gives_up_ends_the_accept() {
    let (_fabric, a, b) = sides(Profile::Siw);
    let (mut listener, address) = listener(&b).await;
    let resolved = a.host.cm().resolve(&address).await.expect("known");
    let connecting = tokio::spawn(resolved.connect(Arc::clone(&a.qp), Vec::new()));
    let request = request(&mut listener).await;
    connecting.abort();
    assert!(connecting.await.is_err());
    let error = request.accept(Arc::clone(&b.qp), Vec::new()).await.map(drop).expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn connecting_to_a_dead_host_times_out() {
    let (_fabric, a, b) = sides(Profile::Rxe);
    let (_listener, address) = listener(&b).await;
    let resolved = a.host.cm().resolve(&address).await.expect("known");
    b.host.kill(Death::Host);
    let begin = tokio::time::Instant::now();
    let error = resolved.connect(Arc::clone(&a.qp), Vec::new()).await.map(drop).expect_err("dead");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(begin.elapsed() >= Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_dies_with_a_request_in_hand_lets_the_client_wait_for_its_timeout() {
    let (_fabric, a, b) = sides(Profile::Rxe);
    let (mut listener, address) = listener(&b).await;
    let resolved = a.host.cm().resolve(&address).await.expect("known");
    let connecting = tokio::spawn(resolved.connect(Arc::clone(&a.qp), Vec::new()));
    let _request = request(&mut listener).await;
    b.host.kill(Death::Host);
    let error = connecting.await.expect("no panic").map(drop).expect_err("dead");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(poll_fn(|cx| listener.poll_request(cx)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn private_data_is_limited() {
    let (_fabric, a, b) = sides(Profile::Rxe);
    let (_listener, address) = listener(&b).await;
    let resolved = a.host.cm().resolve(&address).await.expect("known");
    let data = vec![0; MAX_PRIVATE_DATA + 1];
    let error = resolved.connect(Arc::clone(&a.qp), data).await.map(drop).expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn addresses_that_lead_nowhere_are_refused_in_words() {
    let (_fabric, a, b) = sides(Profile::Rxe);
    let cm = a.host.cm();
    for (address, kind) in [("b", ErrorKind::InvalidInput), ("c:1", ErrorKind::Unreachable)] {
        let error = cm.resolve(address).await.map(drop).expect_err("nowhere");
        assert_eq!(error.kind(), kind, "{error}");
    }
    assert!(cm.listen("b:0").await.is_err(), "the address of another host");
    let (_listener, address) = listener(&b).await;
    let error = b.host.cm().listen(&address).await.map(drop).expect_err("in use");
    assert_eq!(error.kind(), ErrorKind::LocalResource);
}

#[tokio::test(start_paused = true)]
async fn a_queue_pair_is_connected_once() {
    let (_fabric, a, b) = pair(Profile::Rxe, 0).await;
    let (_listener, address) = listener(&b).await;
    let resolved = a.host.cm().resolve(&address).await.expect("known");
    let error =
        resolved.connect(Arc::clone(&a.qp), Vec::new()).await.map(drop).expect_err("connected");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn the_accepting_side_that_sends_first_ends_the_connection_on_siw() {
    for profile in ALL {
        let (_fabric, mut a, mut b) = pair(profile, 0).await;
        a.recv(1);
        b.send(2, b"too early");
        let outcome = a.wait().await.result;
        assert_eq!(outcome.is_err(), profile == Profile::Siw, "{profile:?}");
        assert_eq!(a.is_disconnected().await, profile == Profile::Siw);
    }
}
