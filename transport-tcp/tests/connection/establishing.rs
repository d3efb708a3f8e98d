//! Connecting and listening: what works, and what the errors advise.

use std::future::poll_fn;
use std::os::unix::net::UnixListener;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use verbwire_core::transport::{Listener, Transport};
use verbwire_core::{Error, ErrorKind, Target};
use verbwire_tcp::{TcpConfig, TcpTransport, UnixTransport};

use crate::pair::{Everything, pair, side, socket_path, transports, unix_target};

async fn connect_error(transport: &dyn Transport, target: &Target) -> Error {
    let connected = transport.connect(target, side(Everything)).await;
    connected.err().expect("nobody answers there")
}

async fn listen_error(transport: &dyn Transport, target: &Target) -> Error {
    let listening = transport.listen(target).await;
    listening.err().expect("nobody can listen there")
}

#[tokio::test]
async fn a_listener_knows_the_port_that_the_system_chose() {
    let transport = TcpTransport::default();
    let target = Target::new("tcp", "localhost:0");
    let listener = transport.listen(&target).await.expect("free port");
    let address = listener.local_target().address();
    assert!(!address.ends_with(":0"), "{address}");
}

#[tokio::test]
async fn where_nobody_listens_the_error_says_what_to_do() {
    // Nobody else is given a port of this address meanwhile.
    let free = TcpListener::bind("127.0.0.2:0").await.expect("free port");
    let address = free.local_addr().expect("bound").to_string();
    drop(free);
    let target = Target::new("tcp", address.clone());
    let error = connect_error(&TcpTransport::default(), &target).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(
        error.to_string(),
        format!(
            "nothing listens at {address} (connection refused): start the server there or check \
             the port"
        )
    );
    let path = socket_path();
    let error = connect_error(&UnixTransport::default(), &unix_target(&path)).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let text = format!("there is no {}: start the server", path.display());
    assert!(error.to_string().starts_with(&text), "{error}");
}

#[tokio::test]
async fn an_address_in_use_is_refused_and_the_listener_lives_on() {
    for (transport, target) in transports(&TcpConfig::default()) {
        let listener = transport.listen(&target).await.expect("free");
        let error = listen_error(&*transport, listener.local_target()).await;
        assert_eq!(error.kind(), ErrorKind::LocalResource);
        assert!(error.to_string().contains("it is in use"), "{error}");
        let mut listener = listener;
        let at = listener.local_target().clone();
        let accepted = async {
            loop {
                let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
                // Over Unix sockets the first is the refused server's question whether anybody lives here.
                if accepting.handshake(side(Everything)).await.is_ok() {
                    return;
                }
            }
        };
        let (connected, ()) = tokio::join!(transport.connect(&at, side(Everything)), accepted);
        assert!(connected.is_ok());
    }
}

#[tokio::test]
async fn the_socket_file_of_a_dead_server_is_replaced_and_ones_own_is_removed() {
    let path = socket_path();
    drop(UnixListener::bind(&path).expect("free path"));
    assert!(path.exists(), "std leaves the file");
    let transport = UnixTransport::default();
    let target = unix_target(&path);
    drop(pair(&transport, &target, Everything).await);
    assert!(!path.exists(), "the listener has removed its file");
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone() {
    let path = socket_path();
    std::fs::write(&path, "precious").expect("writable");
    let error = listen_error(&UnixTransport::default(), &unix_target(&path)).await;
    assert_eq!(error.kind(), ErrorKind::LocalResource);
    assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    std::fs::remove_file(&path).expect("ours");
}

#[tokio::test]
async fn a_dropped_listener_leaves_a_file_that_took_its_files_place() {
    let path = socket_path();
    let transport = UnixTransport::default();
    let listener: Box<dyn Listener> = transport.listen(&unix_target(&path)).await.expect("free");
    std::fs::remove_file(&path).expect("there");
    let other = UnixListener::bind(&path).expect("free path");
    drop(listener);
    assert!(path.exists());
    drop(other);
    std::fs::remove_file(&path).expect("ours");
}

#[tokio::test]
async fn targets_in_another_form_are_refused_with_an_example() {
    let relative = Target::new("unix", "run/x.sock");
    let error = connect_error(&UnixTransport::default(), &relative).await;
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().ends_with("write for example unix:///run/x.sock"), "{error}");
    let portless = Target::new("tcp", "10.0.0.1");
    let error = listen_error(&TcpTransport::default(), &portless).await;
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().ends_with("write for example tcp://10.0.0.1:7000"), "{error}");
}

#[tokio::test]
async fn another_protocol_at_the_servers_port_is_named() {
    let transport = TcpTransport::default();
    let target = Target::new("tcp", "127.0.0.1:0");
    let mut listener = transport.listen(&target).await.expect("free port");
    let mut raw = TcpStream::connect(listener.local_target().address()).await.expect("listening");
    raw.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("room");
    let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
    let own = raw.local_addr().expect("connected").to_string();
    assert_eq!(accepting.peer(), own);
    let error = accepting.handshake(side(Everything)).await.err().expect("no HELLO");
    assert!(error.is_peer_fault());
    assert_eq!(
        error.to_string(),
        format!(
            "{own} said no proper HELLO: expected the magic bytes \"VERBWIRE\", got \"GET / HT\"; is \
             the peer a verbwire endpoint?"
        )
    );
}
