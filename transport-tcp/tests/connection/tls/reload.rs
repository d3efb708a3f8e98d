//! Certificates and authorities that are replaced while connections come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use verbwire_core::transport::Flush;

use super::pki::{Authority, Valid};
use super::{Site, both, connect, failed};
use crate::pair::{receive, request, send};

#[tokio::test]
async fn new_connections_see_what_was_reloaded_and_old_ones_stay() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = old.server();
    let mut site = Site::new(&server).await;
    let (near, far) = both(site.meet(&old.client()).await);
    server.reload(&new.server());
    let (refused, _) = site.meet(&old.client()).await;
    assert!(failed(refused).to_string().contains("comes from no authority"));
    both(site.meet(&new.client()).await);
    send(&near, request(1, Bytes::from_static(b"still")), Flush::Now).await.expect("open");
    assert_eq!(receive(&far).await.expect("it comes")[0].body.clone().into_bytes(), "still");
}

#[tokio::test]
async fn a_client_shows_what_was_reloaded_and_keeps_the_name_it_wants() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let shown = servers.issue(&["db-1"], Valid::Now);
    let server = shown.server().require_client_certificates(clients.pem()).expect("PEM");
    let mut site = Site::new(&server).await;
    let client = servers.client().server_name("db-1").expect("a name");
    let (refused, _) = site.meet(&client).await;
    assert!(failed(refused).to_string().contains("none was shown"));
    client.reload(&clients.issue(&["client"], Valid::Now).client_of(&servers));
    both(site.meet(&client).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_fails_no_handshake() {
    const CLIENTS: usize = 4;
    let authority = Authority::new();
    let server = authority.server();
    let mut site = Site::new(&server).await;
    let address = site.address();
    let (done, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (client, address) = (authority.client(), address.clone());
            let (done, made) = (Arc::clone(&done), Arc::clone(&made));
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    connect(&client, &address).await.expect("one certificate or the other");
                    made.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let reloading = async {
        for _ in 0..20 {
            server.reload(&authority.server());
            let before = made.load(Ordering::Relaxed);
            while made.load(Ordering::Relaxed) < before + 2 {
                tokio::task::yield_now().await;
            }
        }
        done.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.expect("no handshake failed");
        }
    };
    let accepting = async {
        loop {
            site.accept().await.expect("a client of the authority");
        }
    };
    tokio::select! { () = reloading => {}, () = accepting => {} }
    assert!(made.load(Ordering::Relaxed) >= 40);
}
