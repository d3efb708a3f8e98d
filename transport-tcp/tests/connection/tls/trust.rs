//! Who trusts whom, and the words to who is not trusted.

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use verbwire_core::transport::{Connection, Flush, PeerCertificates, Transport};
use verbwire_core::{ErrorKind, Target};
use verbwire_tcp::{ClientTls, ServerTls, TcpTransport, TlsTransport};

use super::pki::{Authority, Issued, Valid};
use super::{Site, both, connect, failed};
use crate::pair::{Everything, drive, receive, request, send, side};

fn certificates(end: &dyn Connection) -> Option<&PeerCertificates> {
    end.capability(std::any::TypeId::of::<PeerCertificates>())?.downcast_ref()
}

#[tokio::test]
async fn a_message_crosses_and_the_path_says_that_it_is_encrypted() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let (near, far) = both(site.meet(&authority.client()).await);
    assert_eq!((near.path().transport, far.path().transport), ("tls", "tls"));
    assert_eq!(near.path().local, far.path().peer);
    send(&near, request(1, Bytes::from_static(b"hello")), Flush::Now).await.expect("open");
    let received = receive(&far).await.expect("it comes");
    assert_eq!(received[0].body.clone().into_bytes(), "hello");
    assert!(certificates(&*far).is_none(), "nobody was asked for one");
    assert_eq!(site.tls.handshakes().completed, 1);
}

#[tokio::test]
async fn a_server_sees_the_certificate_of_its_client() {
    let authority = Authority::new();
    let client = authority.issue(&["client"], Valid::Now);
    let server = authority.server().require_client_certificates(authority.pem()).expect("PEM");
    let mut site = Site::new(&server).await;
    let (_near, far) = both(site.meet(&client.client_of(&authority)).await);
    let shown = certificates(&*far).expect("it has shown one");
    assert_eq!(shown.chain().len(), 1);
    assert!(client.chain.contains(&base64_line(shown.own())), "it is the client's");
}

/// The first line of the PEM of a certificate.
fn base64_line(der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |value: u32| char::from(DIGITS[(value & 63) as usize]);
    let of_three = |three: &[u8]| {
        let value = three.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| digit(value >> shift))
    };
    der[..48].chunks(3).flat_map(of_three).collect()
}

#[tokio::test]
async fn a_server_that_only_asks_lets_clients_in_without() {
    let authority = Authority::new();
    let server = authority.server().ask_for_client_certificates(authority.pem()).expect("PEM");
    let mut site = Site::new(&server).await;
    let (_near, far) = both(site.meet(&authority.client()).await);
    assert!(certificates(&*far).is_none());
    let stranger = Authority::new().issue(&["client"], Valid::Now);
    let (_, far) = site.meet(&stranger.client_of(&authority)).await;
    assert!(failed(far).to_string().contains("comes from no authority"));
}

/// Connects where the server is not to be trusted; `at_client` and `at_server` is what each is told.
async fn refused_by_client(
    server: &ServerTls,
    client: &ClientTls,
    at_client: &str,
    at_server: &str,
) {
    refused(server, client, at_client, at_server).await;
    assert_eq!(server.handshakes().untrusted, 1);
}

/// One of the two does not trust the other, and both say so; the server counts it.
async fn refused(server: &ServerTls, client: &ClientTls, at_client: &str, at_server: &str) {
    let before = server.handshakes().untrusted;
    let mut site = Site::new(server).await;
    let (near, far) = site.meet(client).await;
    let (near, far) = (failed(near), failed(far));
    assert_eq!(
        (near.kind(), far.kind()),
        (ErrorKind::Untrusted, ErrorKind::Untrusted),
        "{near} {far}"
    );
    assert!(near.to_string().contains(at_client), "{near}");
    assert!(far.to_string().contains(at_server), "{far}");
    assert_eq!(site.tls.handshakes().untrusted, before + 1);
}

#[tokio::test]
async fn a_client_says_what_is_wrong_with_the_certificate_of_a_server() {
    let authority = Authority::new();
    let issued = |names: &[&str], valid| authority.issue(names, valid).server();
    let here = ["127.0.0.1"];
    let client = authority.client();
    let refuses = "refuses this server's certificate";
    refused_by_client(&issued(&here, Valid::Once), &client, " days ago: renew it there", refuses)
        .await;
    refused_by_client(
        &issued(&here, Valid::Later),
        &client,
        "is not valid yet, it will be in",
        refuses,
    )
    .await;
    let other = issued(&["db-1.internal", "10.0.0.1"], Valid::Now);
    let words = "is not for \"127.0.0.1\" but for DnsName(\"db-1.internal\")";
    refused_by_client(&other, &client, words, refuses).await;
    let stranger = Authority::new().server();
    let unknown = "does not know the authority of this server's certificate";
    refused_by_client(
        &stranger,
        &client,
        "give that authority's certificate to ClientTls",
        unknown,
    )
    .await;
}

#[tokio::test]
async fn an_authority_of_the_same_name_is_another_one() {
    let (one, other) = (Authority::named("same"), Authority::named("same"));
    let refuses = "refuses this server's certificate";
    refused_by_client(&one.server(), &other.client(), "but is not signed by it", refuses).await;
}

#[tokio::test]
async fn the_name_that_is_wanted_can_be_another_than_the_targets() {
    let authority = Authority::new();
    let server = authority.issue(&["db-1.internal"], Valid::Now).server();
    let mut site = Site::new(&server).await;
    let client = authority.client().server_name("db-1.internal").expect("a name");
    both(site.meet(&client).await);
    let error = authority.client().server_name("no name").expect_err("a blank");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// Connects as a client that is not let in. Its handshake is done before the server has seen its certificate, so it is
/// told where HELLO should come.
async fn refused_by_server(
    client: &ClientTls,
    server: &ServerTls,
    at_client: &str,
    at_server: &str,
) {
    refused(server, client, at_client, at_server).await;
}

#[tokio::test]
async fn a_server_says_what_is_wrong_with_the_certificate_of_a_client() {
    let authority = Authority::new();
    let server = authority.server().require_client_certificates(authority.pem()).expect("PEM");
    let none = authority.client();
    let demands = "demands a certificate of its clients, and none was shown";
    refused_by_server(&none, &server, demands, "has shown no certificate").await;
    let show = |issued: Issued| issued.client_of(&authority);
    let expired = show(authority.issue(&["client"], Valid::Once));
    refused_by_server(&expired, &server, "refuses this client's certificate as expired", "expired")
        .await;
    let stranger = show(Authority::new().issue(&["client"], Valid::Now));
    let unknown = "does not know the authority of this client's certificate";
    refused_by_server(&stranger, &server, unknown, "comes from no authority").await;
}

#[tokio::test]
async fn two_sides_that_both_trust_somebody_else_are_told_so() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = ours.server().require_client_certificates(ours.pem()).expect("PEM");
    let client = theirs.issue(&["client"], Valid::Now).client_of(&theirs);
    // The client looks first.
    refused_by_client(
        &server,
        &client,
        "comes from no authority that this side trusts",
        "does not know",
    )
    .await;
}

#[tokio::test]
async fn a_client_without_tls_is_told_to_speak_it() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let target = Target::new("tcp", site.address());
    let transport = TcpTransport::default();
    let (near, far) = tokio::join!(transport.connect(&target, side(Everything)), site.accept());
    let (near, far) = (failed(near), failed(far));
    assert!(near.to_string().contains("this looks like TLS"), "{near}");
    assert!(far.to_string().contains("have it connect to tls://"), "{far}");
    assert_eq!(site.tls.handshakes().not_understood, 1);
}

#[tokio::test]
async fn a_client_with_tls_at_a_port_without_is_told_what_it_may_be() {
    let mut listener =
        TcpTransport::default().listen(&Target::new("tcp", "127.0.0.1:0")).await.expect("port");
    let address = listener.local_target().address().to_owned();
    let accepted = async {
        let accepting = std::future::poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
        accepting.handshake(side(Everything)).await
    };
    let client = Authority::new().client();
    let (near, far) = tokio::join!(connect(&client, &address), accepted);
    let (near, far) = (failed(near), failed(far));
    assert_eq!(near.kind(), ErrorKind::Lost);
    assert!(near.to_string().contains("listen there for tls://, and not for tcp://"), "{near}");
    assert!(far.to_string().contains("this looks like TLS"), "{far}");
}

#[tokio::test]
async fn a_server_that_goes_away_during_the_handshake_is_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("free port");
    let address = listener.local_addr().expect("bound").to_string();
    let client = Authority::new().client();
    let (near, ()) = tokio::join!(connect(&client, &address), async {
        let (mut stream, _) = listener.accept().await.expect("accept");
        stream.read_u8().await.expect("it speaks first");
    });
    assert_eq!(failed(near).kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn without_settings_the_error_names_the_setter() {
    let transport = TlsTransport::default();
    let target = Target::new("tls", "127.0.0.1:0");
    let error = failed(transport.connect(&target, side(Everything)).await);
    assert!(error.to_string().contains("set ClientTls"), "{error}");
    let error = transport.listen(&target).await.err().expect("no certificate");
    assert!(error.to_string().contains("set ServerTls"), "{error}");
}

#[tokio::test]
async fn an_end_that_the_peer_says_is_told_from_one_that_it_does_not() {
    let authority = Authority::new();
    let mut site = Site::new(&authority.server()).await;
    let (near, far) = both(site.meet(&authority.client()).await);
    near.close(verbwire_core::Error::new(ErrorKind::Closed, "done"));
    let error = drive(far).await;
    assert_eq!(error.to_string(), "the peer closed the connection");
}
