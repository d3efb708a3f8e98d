//! TLS over real sockets: what arrives, who is let in, and what is said to who is not.

mod hostile;
mod pki;
mod reload;
mod transfer;
mod trust;

use std::future::poll_fn;

use tokio::time::{Duration, Instant};
use verbwire_core::transport::{Established, Listener, LocalSide, Transport};
use verbwire_core::{Error, Target};
use verbwire_tcp::{ClientTls, ServerTls, TcpConfig, TlsTransport};

use crate::pair::{End, Everything, side};

/// A server that listens.
struct Site {
    listener: Box<dyn Listener>,
    tls: ServerTls,
}

impl Site {
    async fn new(tls: &ServerTls) -> Self {
        let transport = TlsTransport::default().listening(tls.clone());
        let target = Target::new("tls", "127.0.0.1:0");
        let listener = transport.listen(&target).await.expect("free port");
        Self { listener, tls: tls.clone() }
    }

    fn address(&self) -> String {
        self.listener.local_target().address().to_owned()
    }

    async fn accept(&mut self) -> Result<Established, Error> {
        self.accept_within(Duration::from_secs(20)).await
    }

    async fn accept_within(&mut self, timeout: Duration) -> Result<Established, Error> {
        let accepting = poll_fn(|cx| self.listener.poll_accept(cx)).await.expect("accept");
        let deadline = Instant::now() + timeout;
        accepting.handshake(LocalSide { deadline, ..side(Everything) }).await
    }

    /// Both ends of an attempt to connect to it.
    async fn meet(
        &mut self,
        tls: &ClientTls,
    ) -> (Result<Established, Error>, Result<Established, Error>) {
        let address = self.address();
        tokio::join!(connect(tls, &address), self.accept())
    }
}

async fn connect(tls: &ClientTls, address: &str) -> Result<Established, Error> {
    let transport = TlsTransport::new(TcpConfig::default()).connecting(tls.clone());
    transport.connect(&Target::new("tls", address), side(Everything)).await
}

/// The ends of a connection that came about.
fn both(met: (Result<Established, Error>, Result<Established, Error>)) -> (End, End) {
    (met.0.expect("connect").connection, met.1.expect("handshake").connection)
}

/// The error of an attempt that failed.
fn failed(attempt: Result<Established, Error>) -> Error {
    attempt.err().expect("it fails")
}
