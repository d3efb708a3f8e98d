//! What a peer may not send, and what becomes of it.

use std::future::poll_fn;

use verbwire_core::message::{CallId, GoAway, Head, Message};
use verbwire_core::transport::Flush;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Kind};

use crate::pair::{End, Everything, Net, PROFILES, call, receive, send, side};
use crate::raw::Raw;

pub(crate) async fn end_and_raw(net: &Net) -> (End, Raw) {
    let mut listener = net.listen().await;
    let address = listener.local_target().address().to_owned();
    let (end, raw) = tokio::join!(
        async {
            let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
            accepting.handshake(side(Everything)).await.expect("HELLO").connection
        },
        Raw::established(&net.hosts[0], &address)
    );
    (end, raw)
}

fn header(kind: Kind) -> Header {
    Header::new(kind, call(1))
}

fn cases() -> Vec<(Vec<u8>, &'static str)> {
    let frame = |header: Header, behind: &[u8]| [&header.encode()[..], behind].concat();
    let request = header(Kind::Request);
    let mandatory = [&0x9234_u16.to_le_bytes()[..], &[0, 0]].concat();
    vec![
        (vec![1; 39], "a frame of 39 bytes, a header alone has 40"),
        (vec![0xff; 40], "unknown frame type 0xff"),
        (
            frame(Header { body_len: 5, ..request }, b"four"),
            "a frame of 44 bytes whose header announces 45",
        ),
        (frame(request, b"more"), "a frame of 44 bytes whose header announces 40"),
        (
            frame(Header { tlv_len: 4, ..request }, &mandatory),
            "unknown mandatory TLV 0x9234; the peer needs a newer version of this side",
        ),
        (
            frame(Header { body_len: 1, ..header(Kind::Credit) }, b"x"),
            "body_len is 1, CREDIT has none",
        ),
        (
            frame(Header { credits: 2, ..header(Kind::Credit) }, b""),
            "the peer claims 2 more receives than the 0 frames in flight to it",
        ),
        (
            frame(Header { body_len: 1, flags: Flags::LAST, ..header(Kind::Data) }, b"x"),
            "DATA frame for call 1.1, which has no body to come",
        ),
        (
            frame(Header { metadata_len: 7125, ..request }, &[0; 7125]),
            "metadata of 7125 bytes exceeds max_metadata_size of 7124 bytes",
        ),
        (
            frame(Header { flags: Flags::BODY_FOLLOWS, body_len: (64 << 20) + 1, ..request }, b""),
            "body of 67108865 bytes exceeds max_message_size of 67108864 bytes",
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_violation_ends_the_connection_in_words() {
    for profile in PROFILES {
        for (bytes, words) in cases() {
            let net = Net::new(profile, 1);
            let (end, mut raw) = end_and_raw(&net).await;
            raw.send(&bytes);
            let error = receive(&end).await.expect_err(words);
            assert!(error.is_peer_fault(), "{error}");
            assert_eq!(error.to_string(), format!("the peer broke the protocol: {words}"));
            let again = receive(&end).await.expect_err("still");
            assert_eq!(again.to_string(), error.to_string());
            // The core tells the peer before it closes.
            let goaway = Head::GoAway { reason: GoAway::ProtocolViolation };
            let goaway = Message::with_body(goaway, bytes::Bytes::from(words).into());
            send(&end, goaway, Flush::Batch).await.expect("open");
            end.close(error);
            let told = raw.receive().await.expect("GOAWAY");
            assert_eq!((told[0], &told[40..]), (Kind::GoAway as u8, words.as_bytes()));
            assert_eq!(raw.receive().await, None);
            end.retire().await;
            net.assert_clean();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn messages_in_front_of_a_violation_are_received() {
    let net = Net::new(PROFILES[0], 1);
    let (end, mut raw) = end_and_raw(&net).await;
    raw.send_frame(header(Kind::Cancel), b"");
    raw.send(&[0xff; 40]);
    raw.send_frame(header(Kind::Cancel), b"");
    assert_eq!(receive(&end).await.expect("before it").len(), 1);
    receive(&end).await.expect_err("the violation");
    end.retire().await;
    net.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_message_longer_than_a_receive_ends_the_connection() {
    for profile in PROFILES {
        let net = Net::new(profile, 1);
        let (end, mut raw) = end_and_raw(&net).await;
        raw.send(&[0; 8193]);
        let error = receive(&end).await.expect_err("too long");
        assert!(error.to_string().starts_with("connection lost: "), "{error}");
        end.retire().await;
        net.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn goaway_is_cut_to_a_frame_at_a_character() {
    let net = Net::new(PROFILES[0], 1);
    let (end, mut raw) = end_and_raw(&net).await;
    let words = "\u{20ac}".repeat(4000);
    let head = Head::GoAway { reason: GoAway::Draining };
    let goaway = Message::with_body(head, bytes::Bytes::from(words.clone()).into());
    send(&end, goaway, Flush::Now).await.expect("open");
    let told = raw.receive().await.expect("GOAWAY");
    let said = std::str::from_utf8(&told[40..]).expect("whole characters");
    assert!(words.starts_with(said));
    assert_eq!(said.len(), (8192 - 40) / 3 * 3);
    end.retire().await;
    net.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_late_generation_is_another_call() {
    let net = Net::new(PROFILES[0], 1);
    let (end, mut raw) = end_and_raw(&net).await;
    let follows = Header { flags: Flags::BODY_FOLLOWS, body_len: 9, ..header(Kind::Request) };
    raw.send_frame(follows, b"");
    let other = CallId { slot: 1, generation: 2 };
    let piece = Header { body_len: 9, flags: Flags::LAST, ..Header::new(Kind::Data, other) };
    raw.send_frame(piece, b"123456789");
    let error = receive(&end).await.expect_err("no such body");
    assert!(error.to_string().contains("call 1.2, which has no body"), "{error}");
    end.retire().await;
}
