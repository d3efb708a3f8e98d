//! What comes instead of a connect request or HELLO.

use std::time::Duration;

use tokio::time::Instant;
use verbwire_core::ErrorKind;
use verbwire_core::transport::LocalSide;
use verbwire_tests::raw_rdma::RawRdma;

use crate::end::plain;
use crate::over_nics;
use crate::site::{Over, Site};

over_nics!(
    a_peer_that_says_no_hello_times_out,
    a_request_of_another_protocol_is_refused_unseen,
    a_hello_of_another_request_is_the_peers_fault,
);

async fn a_peer_that_says_no_hello_times_out(over: Over) {
    let mut site = Site::new(over).await;
    let (address, raw) = (site.address().to_owned(), site.raw.clone());
    // On a device connecting itself takes its time.
    let soon = LocalSide { deadline: Instant::now() + Duration::from_secs(2), ..plain() };
    let (raw, error) = tokio::join!(raw.connect(&address), site.accept(soon));
    let error = error.err().expect("silence");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("said nothing in time"), "{error}");
    drop(raw);
    site.assert_others_served().await;
    // The end of what was begun.
    tokio::time::sleep(Duration::from_secs(6)).await;
    site.close_clean().await;
}

async fn a_request_of_another_protocol_is_refused_unseen(over: Over) {
    let mut site = Site::new(over).await;
    let (address, raw) = (site.address().to_owned(), site.raw.clone());
    let refused = tokio::select! {
        biased;
        refused = raw.connect_with(&address, b"nvme".to_vec()) => refused.err().expect("refused"),
        _ = site.accept(plain()) => panic!("it was accepted"),
    };
    assert!(refused.to_string().contains("expected private data"), "{refused}");
    site.assert_others_served().await;
    site.close_clean().await;
}

async fn a_hello_of_another_request_is_the_peers_fault(over: Over) {
    let mut site = Site::new(over).await;
    let (address, raw) = (site.address().to_owned(), site.raw.clone());
    let say = async {
        let mut raw = raw.connect(&address).await.expect("accepted");
        let mut other = RawRdma::hello();
        other.connection += 1;
        raw.send(&other.encode_framed());
        raw
    };
    let (_raw, error) = tokio::join!(say, site.accept(plain()));
    let error = error.err().expect("refused");
    assert!(error.is_peer_fault());
    assert!(error.to_string().contains("not from the peer that asked"), "{error}");
    site.assert_others_served().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    site.close_clean().await;
}
