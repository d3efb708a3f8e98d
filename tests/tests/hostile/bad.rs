//! A server with small limits, and the checks that follow every attack on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use verbwire::Channel;
use verbwire_core::message::{GoAway, Head};
use verbwire_tests::backends::BACKENDS;
use verbwire_tests::fixture::{Fixture, LONG, Serving, offering};
use verbwire_tests::proto::conformance::Blob;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::raw::{Frame, RawPeer};
use verbwire_tests::service::{Desk, Witness};
use verbwire_tests::spy;

/// Longest message that the attacked server accepts.
pub(crate) const MAX_MESSAGE: u32 = 1 << 20;
/// Calls at a time that it accepts.
pub(crate) const MAX_CALLS: u32 = 4;
/// How long an impatient one waits for HELLO. Good clients may be too late for that, too.
pub(crate) const HANDSHAKE: Duration = Duration::from_millis(250);

pub(crate) const ECHO: &str = "/conformance.Conformance/Echo";
pub(crate) const HANG: &str = "/conformance.Conformance/Hang";
pub(crate) const PRODUCE: &str = "/conformance.Conformance/Produce";
/// Time that a call has.
pub(crate) const PLENTY: Duration = Duration::from_secs(60);

/// A fixture for the backend of this name.
pub(crate) fn fixture(name: &str) -> Fixture {
    spy::listen();
    let backend = BACKENDS.iter().find(|backend| backend.name == name);
    Fixture::new(backend.expect("a backend of the suite"))
}

/// A channel to an impatient server: machines are late at times, and not each time.
pub(crate) async fn connect_in_time(serving: &Serving) -> Channel {
    let begun = Instant::now();
    loop {
        match serving.endpoint().connect().await {
            Ok(channel) => return channel,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
    }
}

/// A server under attack.
pub(crate) struct Victim {
    pub(crate) serving: Serving,
    pub(crate) witness: Arc<Witness>,
}

impl Victim {
    pub(crate) async fn start(fixture: &Fixture) -> Self {
        Self::with_patience(fixture, LONG).await
    }

    /// One that waits for HELLO no longer than [`HANDSHAKE`].
    pub(crate) async fn impatient(fixture: &Fixture) -> Self {
        Self::with_patience(fixture, HANDSHAKE).await
    }

    async fn with_patience(fixture: &Fixture, handshake: Duration) -> Self {
        let desk = Desk::default();
        let builder = offering(&desk)
            .max_message_size(MAX_MESSAGE as usize)
            .max_concurrent_calls(MAX_CALLS)
            .handshake_timeout(handshake);
        let serving = Serving::start(builder, &fixture.target()).await;
        Self { serving, witness: Arc::clone(desk.witness()) }
    }

    /// A peer that has exchanged HELLOs and may go wrong from here.
    pub(crate) async fn raw_client(&self) -> RawPeer {
        RawPeer::client(self.serving.target()).await
    }

    /// A good client is still served, if it is in time.
    pub(crate) async fn assert_serves(&self) {
        let client = ConformanceClient::new(connect_in_time(&self.serving).await);
        let reply = client.echo(Blob { payload: "good".into() }).await;
        assert_eq!(reply.expect("the server lives").get_ref().payload, "good");
    }

    /// The attack `bytes`, behind HELLO, ends the connection, and the log says `words`.
    pub(crate) async fn assert_ends(&self, bytes: &[u8], words: &str) -> Vec<Frame> {
        let mut peer = self.raw_client().await;
        let before = spy::count(&[words, &peer.mark]);
        peer.send(bytes).await;
        let frames = peer.rest().await;
        spy::until(before + 1, &[words, &peer.mark]).await;
        self.assert_serves().await;
        frames
    }

    /// The same, and the peer is told so in a GOAWAY.
    pub(crate) async fn assert_goes_away(&self, bytes: &[u8], words: &str) {
        let frames = self.assert_ends(bytes, words).await;
        let last = frames.last().expect("a GOAWAY");
        assert_eq!(last.head(), Head::GoAway { reason: GoAway::ProtocolViolation });
        let said = String::from_utf8_lossy(&last.body);
        assert!(said.contains(words), "{said}");
    }
}
