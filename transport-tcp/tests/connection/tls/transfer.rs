//! Bodies of all lengths inside TLS, in both directions, whole and in order, however the network cuts them.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use verbwire_core::ErrorKind;
use verbwire_core::transport::Flush;

use super::pki::Authority;
use super::{Site, both, connect};
use crate::pair::{End, drive, receive, request, send, slot};

/// Bytes that show when one is missing or out of place.
fn pattern(len: usize) -> Bytes {
    let turn: Vec<u8> = (0..251).collect();
    let mut bytes = turn.repeat(len / turn.len() + 1);
    bytes.truncate(len);
    bytes.into()
}

/// Sends bodies of these lengths from one end to the other while nobody else sends, and checks them.
async fn cross(near: &End, far: &End, lens: &[usize]) {
    let sending = async {
        for (index, len) in lens.iter().enumerate() {
            let slot = u32::try_from(index).expect("few");
            send(near, request(slot, pattern(*len)), Flush::Batch).await.expect("open");
        }
    };
    let receiving = async {
        let mut left = lens.len();
        while left > 0 {
            for message in receive(far).await.expect("they come") {
                let len = lens[slot(&message) as usize];
                assert!(message.body.into_bytes() == pattern(len), "a body of {len}");
                left -= 1;
            }
        }
    };
    let driver = tokio::spawn(drive(near.clone()));
    tokio::join!(sending, receiving);
    driver.abort();
}

const LENS: &[usize] = &[
    0,
    1,
    100,
    4095,
    4096,
    16_383,
    16_384,
    16_385,
    65_536,
    262_144,
    262_145,
    3 << 20,
    5,
    20 << 20,
];

#[tokio::test]
async fn bodies_of_every_length_arrive_as_they_were() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let (near, far) = both(site.meet(&authority.client()).await);
    cross(&near, &far, LENS).await;
    cross(&far, &near, LENS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_directions_at_once_do_not_wait_for_each_other() {
    const COUNT: u32 = 20;
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let (near, far) = both(site.meet(&authority.client()).await);
    let all_came = Arc::new(Barrier::new(3));
    let ends = [(near.clone(), far.clone()), (far.clone(), near.clone())];
    let tasks = ends.map(|(from, to)| {
        let all_came = Arc::clone(&all_came);
        let sending = tokio::spawn(async move {
            for slot in 0..COUNT {
                send(&from, request(slot, pattern(1 << 20)), Flush::Batch).await.expect("open");
            }
        });
        tokio::spawn(async move {
            let mut left = COUNT;
            while left > 0 {
                for message in receive(&to).await.expect("they come") {
                    assert!(message.body.into_bytes() == pattern(1 << 20));
                    left -= 1;
                }
            }
            sending.await.expect("sent");
            // The other direction may not be done, and needs this end's driver.
            let driver = tokio::spawn(drive(to));
            all_came.wait().await;
            driver.abort();
        })
    });
    all_came.wait().await;
    for task in tasks {
        task.await.expect("all came");
    }
}

/// Hands on what `from` says in pieces of `piece` bytes, up to `count` bytes in all.
async fn trickle(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    piece: usize,
    mut count: usize,
) {
    let mut bytes = vec![0; piece];
    while count > 0 {
        let cap = piece.min(count);
        match from.read(&mut bytes[..cap]).await {
            Ok(0) | Err(_) => break,
            Ok(read) => {
                if to.write_all(&bytes[..read]).await.is_err() {
                    break;
                }
                count -= read;
            }
        }
    }
}

/// A connection through somebody who hands on in pieces, and `count` bytes of what the client says.
async fn through(site: &mut Site, authority: &Authority, piece: usize, count: usize) -> (End, End) {
    let between = TcpListener::bind("127.0.0.1:0").await.expect("free port");
    let address = between.local_addr().expect("bound").to_string();
    let server = site.address();
    tokio::spawn(async move {
        let (client, _) = between.accept().await.expect("accept");
        let server = TcpStream::connect(server).await.expect("listening");
        client.set_nodelay(true).expect("a socket");
        server.set_nodelay(true).expect("a socket");
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::join!(
            trickle(from_client, to_server, piece, count),
            trickle(from_server, to_client, piece, usize::MAX)
        );
    });
    let client = authority.client();
    both(tokio::join!(connect(&client, &address), site.accept()))
}

#[tokio::test]
async fn records_may_come_in_whatever_pieces() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    for piece in [1, 7, 1000] {
        let (near, far) = through(&mut site, &authority, piece, usize::MAX).await;
        cross(&near, &far, &[0, 100, 5000, 40_000]).await;
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_is_lost_and_not_ended() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let (near, far) = through(&mut site, &authority, 1000, 20_000).await;
    for index in 0..10 {
        send(&near, request(index, pattern(4000)), Flush::Now).await.expect("open");
    }
    let mut whole = 0;
    let error = loop {
        match receive(&far).await {
            Ok(messages) => whole += messages.len(),
            Err(error) => break error,
        }
    };
    assert!((1..10).contains(&whole), "{whole} came before the cut");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("the connection was cut"), "{error}");
}
