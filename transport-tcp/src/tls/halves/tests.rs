use std::future::poll_fn;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::Instant;
use verbwire_core::Target;

use super::*;
use crate::tls::shaking::shake;
use crate::tls::{ClientTls, ServerTls};

/// Two streams whose handshake is done.
async fn pair() -> (TlsStream, TlsStream) {
    let issued = rcgen::generate_simple_self_signed(["near.test".to_owned()]).expect("rcgen");
    let pem = issued.cert.pem();
    let server = ServerTls::from_pem(&pem, issued.signing_key.serialize_pem()).expect("PEM");
    let client = ClientTls::from_authority(&pem).expect("PEM").server_name("near.test");
    let target = Target::new("tls", "127.0.0.1:1");
    let (config, name) = client.expect("a name").config_for(&target).expect("a name");
    assert_eq!(name, ServerName::try_from("near.test").expect("a name"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("free port");
    let address = listener.local_addr().expect("bound");
    let deadline = Instant::now() + Duration::from_secs(20);
    let near = async {
        let socket = TcpStream::connect(address).await.expect("listening");
        let session = ClientConnection::new(config, name).expect("a session").into();
        shake(socket, session, Side::Connecting, "far", deadline).await.expect("trusted")
    };
    let far = async {
        let (socket, _) = listener.accept().await.expect("accept");
        let session = ServerConnection::new(server.config()).expect("a session").into();
        shake(socket, session, Side::Accepting, "near", deadline).await.expect("a client")
    };
    tokio::join!(near, far)
}

/// Writes all of `bytes`, as often as the socket takes some.
async fn write(read: &TlsRead, write: &mut TlsWrite, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match write.try_write_vectored(&[IoSlice::new(bytes)]) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| read.poll_write_ready(cx)).await.expect("connected");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn read(read: &mut TlsRead, len: usize) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < len {
        let mut space = [0; 5000];
        let space_len = space.len().min(len - all.len());
        let mut buffer = ReadBuf::new(&mut space[..space_len]);
        poll_fn(|cx| read.poll_read(cx, &mut buffer)).await?;
        if buffer.filled().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        all.extend_from_slice(buffer.filled());
    }
    Ok(all)
}

fn refresh(half: &TlsWrite) {
    let mut session = lock(&half.session);
    session.refresh_traffic_keys().expect("TLS 1.3, shaken");
}

#[tokio::test]
async fn keys_are_changed_in_the_middle_of_a_stream_and_the_answer_goes_out_with_data() {
    let (near, far) = pair().await;
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
        (near.into_split(), far.into_split());
    for round in 0..5_u8 {
        let bytes = vec![round; 40_000];
        write(&near_read, &mut near_write, &bytes).await;
        refresh(&near_write);
        write(&near_read, &mut near_write, b"behind").await;
        assert_eq!(read(&mut far_read, 40_000).await.expect("the first"), bytes);
        assert_eq!(read(&mut far_read, 6).await.expect("the second"), b"behind");
        write(&far_read, &mut far_write, b"back").await;
        assert_eq!(read(&mut near_read, 4).await.expect("back"), b"back");
    }
}

#[tokio::test]
async fn a_peer_that_changes_keys_without_end_is_at_fault() {
    let (near, far) = pair().await;
    let ((near_read, mut near_write), (mut far_read, _far_write)) =
        (near.into_split(), far.into_split());
    for _ in 0..200 {
        refresh(&near_write);
    }
    write(&near_read, &mut near_write, b"x").await;
    let error = read(&mut far_read, 1).await.expect_err("too many");
    let error = crate::error::lost("receiving", error);
    assert!(error.is_peer_fault(), "{error}");
}

#[tokio::test]
async fn what_the_socket_did_not_take_is_owed_and_goes_first() {
    let (near, far) = pair().await;
    let ((near_read, mut near_write), (mut far_read, _far_write)) =
        (near.into_split(), far.into_split());
    let bytes: Vec<u8> =
        (0..10_000_000_u32).map(|at| u8::try_from(at % 251).expect("small")).collect();
    let mut told = 0;
    let blocked = loop {
        match near_write.try_write_vectored(&[IoSlice::new(&bytes[told..])]) {
            Ok(count) => told += count,
            Err(error) => break error,
        }
    };
    assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
    assert!(near_write.owed > 0 && told + near_write.owed < bytes.len());
    let rest = &bytes[told..];
    let (all, ()) =
        tokio::join!(read(&mut far_read, bytes.len()), write(&near_read, &mut near_write, rest));
    assert!(all.expect("connected") == bytes);
    assert_eq!(near_write.owed, 0);
}

#[tokio::test]
async fn an_end_that_was_said_is_none_that_was_cut() {
    let (near, far) = pair().await;
    let ((near_read, near_write), (mut far_read, _far_write)) =
        (near.into_split(), far.into_split());
    drop(near_write);
    let error = read(&mut far_read, 1).await.expect_err("nothing comes");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    drop(near_read);

    let (near, mut far) = pair().await;
    die(near.into_split());
    let error = far.read_u8().await.expect_err("nothing comes");
    assert!(error.to_string().contains("the connection was cut"), "{error}");
}

/// Lets a socket go as a process that dies does: without a word of its session.
fn die((read, write): (TlsRead, TlsWrite)) {
    drop(read);
    let mut session = lock(&write.session);
    session.send_close_notify();
    while session.wants_write() {
        session.write_tls(&mut io::sink()).expect("a sink");
    }
}
