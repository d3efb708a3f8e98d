//! Bytes that no honest client sends, before and within the handshake: bounded in time, typed, counted.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{AlertDescription, ClientConfig, ClientConnection, HandshakeKind, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{pause, resume, sleep};
use verbwire_core::{Error, ErrorKind};

use super::pki::Authority;
use super::{Site, both, failed};

/// Time for peers who use it up.
const SHORT: Duration = Duration::from_millis(400);

/// Time for all others.
const LONG: Duration = Duration::from_secs(20);

/// What a server that gives it this time says to itself about a peer that says `bytes`, then nothing; and what the peer hears.
async fn answer_to(site: &mut Site, bytes: &[u8], time: Duration) -> (Error, Vec<u8>) {
    let mut raw = TcpStream::connect(site.address()).await.expect("listening");
    raw.write_all(bytes).await.expect("room");
    let error = failed(site.accept_within(time).await);
    let mut heard = Vec::new();
    // What was not read resets the connection.
    let _ended = raw.read_to_end(&mut heard).await;
    (error, heard)
}

/// The first bytes of a client of TLS.
fn client_hello(authority: &Authority) -> Vec<u8> {
    let (mut client, mut said) = (raw_client(authority, b"verbwire/1"), Vec::new());
    client.write_tls(&mut said).expect("memory");
    said
}

fn config(authority: &Authority, protocol: &[u8]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("its own PEM");
    roots.add(root).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().expect("TLS 1.3");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = if protocol.is_empty() { vec![] } else { vec![protocol.to_vec()] };
    config
}

fn raw_client(authority: &Authority, protocol: &[u8]) -> ClientConnection {
    let name = ServerName::try_from("localhost").expect("a name");
    ClientConnection::new(Arc::new(config(authority, protocol)), name).expect("a client")
}

/// Speaks TLS over a socket until the handshake is done or the server ends it.
async fn shake(mut client: ClientConnection, address: String) -> (ClientConnection, TcpStream) {
    let mut raw = TcpStream::connect(address).await.expect("listening");
    loop {
        let mut said = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut said).expect("memory");
        }
        raw.write_all(&said).await.expect("room");
        if !client.is_handshaking() {
            return (client, raw);
        }
        let mut bytes = [0; 4096];
        let count = raw.read(&mut bytes).await.unwrap_or(0);
        let mut heard = &bytes[..count];
        if count == 0 {
            return (client, raw);
        }
        while !heard.is_empty() {
            client.read_tls(&mut heard).expect("memory");
            if client.process_new_packets().is_err() {
                return (client, raw);
            }
        }
    }
}

/// Listens until the server ends the connection; returns the last error that it told of.
async fn hear_out(client: &mut ClientConnection, raw: &mut TcpStream) -> Option<rustls::Error> {
    let mut bytes = [0; 4096];
    loop {
        let count = raw.read(&mut bytes).await.unwrap_or(0);
        let mut heard = &bytes[..count];
        if count == 0 {
            return None;
        }
        while !heard.is_empty() {
            client.read_tls(&mut heard).expect("memory");
            if let Err(error) = client.process_new_packets() {
                return Some(error);
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_is_refused_hears_why_although_it_goes_on_talking() {
    let authority = Authority::new();
    let server = authority.server().require_client_certificates(authority.pem()).expect("PEM");
    let mut site = Site::new(&server).await;
    let (client, address) = (raw_client(&authority, b"verbwire/1"), site.address());
    let (error, told) = tokio::join!(site.accept(), async {
        let (mut client, mut raw) = shake(client, address).await;
        let mut said = Vec::new();
        // More than the server reads at once: what it leaves unread resets the connection when it is closed.
        for _ in 0..5 {
            client.writer().write_all(&[7; 10_000]).expect("room");
            client.write_tls(&mut said).expect("memory");
        }
        raw.write_all(&said).await.expect("room");
        sleep(Duration::from_millis(100)).await;
        let told = hear_out(&mut client, &mut raw).await;
        let rest = raw.read(&mut [0; 16]).await;
        assert_eq!(rest.expect("it is closed, not reset"), 0);
        told
    });
    assert!(failed(error).to_string().contains("has shown no certificate"));
    let alert = AlertDescription::CertificateRequired;
    assert_eq!(told, Some(rustls::Error::AlertReceived(alert)));
}

#[tokio::test]
async fn who_speaks_no_tls_is_told_nothing() {
    let mut site = Site::new(&Authority::new().server()).await;
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"MPA ID Req Frame", &[0; 64], &[0xff; 5000]] {
        let (error, heard) = answer_to(&mut site, said, LONG).await;
        assert!(error.is_peer_fault(), "{error}");
        assert!(error.to_string().contains("speaks no TLS, it began with"), "{error}");
        assert_eq!(heard, b"");
    }
    assert_eq!(site.tls.handshakes().not_understood, 4);
}

#[tokio::test]
async fn garbage_inside_records_is_the_peers_fault() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let good = client_hello(&authority);
    let mut wrong_length = good.clone();
    wrong_length[3..5].copy_from_slice(&[0xff, 0xff]);
    let mut no_hello = good.clone();
    no_hello[5] = 2;
    let mut torn = good;
    torn[9..40].fill(0xaa);
    torn.truncate(60);
    torn[3..5].copy_from_slice(&[0, 55]);
    torn[6..9].copy_from_slice(&[0, 0, 51]);
    let alerts = b"\x15\x03\x03\0\x02\x02\x28".to_vec();
    for said in [wrong_length, no_hello, torn, alerts] {
        let (error, _) = answer_to(&mut site, &said, LONG).await;
        assert!(!error.is_timeout(), "{error}");
    }
}

#[tokio::test]
async fn any_change_of_one_byte_of_a_first_flight_ends_in_words() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let good = client_hello(&authority);
    for at in (0..good.len()).step_by(7) {
        let mut changed = good.clone();
        changed[at] ^= 0x55;
        let mut raw = TcpStream::connect(site.address()).await.expect("listening");
        raw.write_all(&changed).await.expect("room");
        // Who took it for good is answered, and finds that this peer says nothing more.
        raw.shutdown().await.expect("connected");
        let error = failed(site.accept_within(SHORT).await);
        assert!(!error.to_string().is_empty());
    }
}

#[tokio::test]
async fn half_a_record_or_byte_after_byte_ends_at_the_deadline() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let good = client_hello(&authority);
    for said in [&b""[..], &good[..1], &good[..5], &good[..good.len() - 1]] {
        let (error, _) = answer_to(&mut site, said, SHORT).await;
        assert!(error.is_timeout(), "{error}");
        let words = format!("said {} bytes of the TLS handshake", said.len());
        assert!(error.to_string().contains(&words), "{error}");
    }
    let mut raw = TcpStream::connect(site.address()).await.expect("listening");
    let slow = tokio::spawn(async move {
        for byte in good {
            if raw.write_all(&[byte]).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    let error = failed(site.accept_within(SHORT).await);
    assert!(error.is_timeout(), "{error}");
    slow.await.expect("it was cut off, or said all");
    assert_eq!(site.tls.handshakes().timed_out, 5);
}

#[tokio::test]
async fn a_peer_that_stays_silent_within_tls_ends_at_the_same_deadline() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let client = raw_client(&authority, b"verbwire/1");
    let address = site.address();
    let (error, _held) = tokio::join!(site.accept(), async {
        let held = shake(client, address).await;
        // The rest of the time passes at once.
        pause();
        held
    });
    let error = failed(error);
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("said nothing in time"), "{error}");
}

#[tokio::test]
async fn a_peer_with_another_protocol_inside_tls_is_named() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    for protocol in [&b""[..], b"h2"] {
        let (client, address) = (raw_client(&authority, protocol), site.address());
        let (error, _) = tokio::join!(site.accept(), shake(client, address));
        let error = failed(error);
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(error.to_string().contains("not verbwire inside it"), "{error}");
    }
}

#[tokio::test]
async fn nothing_is_resumed_and_no_early_data_is_taken() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let mut config = config(&authority, b"verbwire/1");
    config.enable_early_data = true;
    let config = Arc::new(config);
    for _ in 0..2 {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut client = ClientConnection::new(Arc::clone(&config), name).expect("a client");
        assert!(client.early_data().is_none(), "there is no ticket to say anything early with");
        let address = site.address();
        let (_, client) = tokio::join!(site.accept(), async {
            let (mut client, mut raw) = shake(client, address).await;
            // The rest of the time for its HELLO passes at once.
            pause();
            // A ticket would come behind the handshake.
            hear_out(&mut client, &mut raw).await;
            client
        });
        resume();
        assert!(!client.is_handshaking());
        assert_eq!(client.handshake_kind(), Some(HandshakeKind::Full));
    }
}

#[tokio::test]
async fn a_peer_that_breaks_the_records_of_a_connection_ends_that_one() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let client = raw_client(&authority, b"verbwire/1");
    let address = site.address();
    let (error, ()) = tokio::join!(site.accept(), async {
        let (_, mut raw) = shake(client, address).await;
        raw.write_all(b"\x17\x03\x03\0\x20this is no encrypted HELLO at all").await.expect("room");
        // Keeps the socket until the server has looked.
        let _ended = raw.read_to_end(&mut Vec::new()).await;
    });
    let error = failed(error);
    assert!(error.is_peer_fault(), "{error:?}");
    assert!(error.to_string().contains("broke the rules of TLS"), "{error}");
    both(site.meet(&authority.client()).await);
}
