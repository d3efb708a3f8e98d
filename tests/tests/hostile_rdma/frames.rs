//! Frames that a peer may not send, and what becomes of them.

use verbwire_core::ErrorKind;
use verbwire_core::message::{CallId, GoAway, Head, Message};
use verbwire_core::transport::{Flush, SendHints};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Kind};

use crate::end::{call, drive, receive, receive_one, send, send_with};
use crate::over_nics;
use crate::site::{Over, Site};

over_nics!(
    every_violation_ends_the_connection_in_words,
    messages_in_front_of_a_violation_are_received,
    a_message_longer_than_a_receive_ends_the_connection,
    goaway_is_cut_to_a_frame_at_a_character,
    a_late_generation_is_another_call,
    credits_may_neither_be_claimed_nor_go_back,
);

fn header(kind: Kind) -> Header {
    Header::new(kind, call(1))
}

fn frame(header: Header, behind: &[u8]) -> Vec<u8> {
    [&header.encode()[..], behind].concat()
}

fn cases() -> Vec<(Vec<u8>, &'static str)> {
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
            "body_len is 1, CREDIT, LEND and BORROW have none",
        ),
        (
            frame(Header { body_len: 1, flags: Flags::LAST, ..header(Kind::Data) }, b"x"),
            "DATA frame for call 1.1, which has no body to come",
        ),
        (
            frame(Header { metadata_len: 7096, ..request }, &[0; 7096]),
            "metadata of 7096 bytes exceeds max_metadata_size of 7095 bytes",
        ),
        (
            frame(Header { flags: Flags::BODY_FOLLOWS, body_len: (64 << 20) + 1, ..request }, b""),
            "body of 67108865 bytes exceeds max_message_size of 67108864 bytes",
        ),
    ]
}

async fn every_violation_ends_the_connection_in_words(over: Over) {
    let mut site = Site::new(over).await;
    for (bytes, words) in cases() {
        let (end, mut raw) = site.raw_client().await;
        raw.send(&bytes);
        let error = receive(&end).await.expect_err(words);
        assert_eq!(error.to_string(), format!("the peer broke the protocol: {words}"));
        let again = receive(&end).await.expect_err("still");
        assert_eq!(again.to_string(), error.to_string());
        // The core tells the peer before it closes.
        let goaway = Head::GoAway { reason: GoAway::ProtocolViolation };
        let goaway = Message::with_body(goaway, bytes::Bytes::from(words).into());
        send_with(&end, goaway, SendHints::flush(Flush::Batch)).await.expect("open");
        assert_eq!(site.violation(end).await, words);
        // On a device the news of the end may come first.
        let told = raw.told().await;
        let may_be_late = !matches!(over, Over::Fabric(_));
        assert!(told.as_deref() == Some(words) || told.is_none() && may_be_late, "{told:?}");
    }
    site.close_clean().await;
}

async fn messages_in_front_of_a_violation_are_received(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    raw.send_frame(header(Kind::Cancel), b"");
    raw.send(&[0xff; 40]);
    raw.send_frame(header(Kind::Cancel), b"");
    receive_one(&end).await;
    assert_eq!(site.violation(end).await, "unknown frame type 0xff");
    site.close_clean().await;
}

async fn a_message_longer_than_a_receive_ends_the_connection(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    raw.send(&[0; 8193]);
    let error = receive(&end).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    site.retired(end).await;
    site.close_clean().await;
}

async fn goaway_is_cut_to_a_frame_at_a_character(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    let words = "\u{20ac}".repeat(4000);
    let head = Head::GoAway { reason: GoAway::Draining };
    let goaway = Message::with_body(head, bytes::Bytes::from(words.clone()).into());
    send(&end, goaway).await.expect("open");
    let told = raw.receive().await.expect("GOAWAY");
    let said = std::str::from_utf8(&told[40..]).expect("whole characters");
    assert!(words.starts_with(said));
    assert_eq!(said.len(), (8192 - 40) / 3 * 3);
    site.retired(end).await;
    site.close_clean().await;
}

async fn a_late_generation_is_another_call(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    let follows = Header { flags: Flags::BODY_FOLLOWS, body_len: 9, ..header(Kind::Request) };
    raw.send_frame(follows, b"");
    let other = CallId { slot: 1, generation: 2 };
    let piece = Header { body_len: 9, flags: Flags::LAST, ..Header::new(Kind::Data, other) };
    raw.send_frame(piece, b"123456789");
    let words = site.violation(end).await;
    assert!(words.contains("call 1.2, which has no body"), "{words}");
    site.close_clean().await;
}

async fn credits_may_neither_be_claimed_nor_go_back(over: Over) {
    let mut site = Site::new(over).await;
    let claim = |credits| Header { credits, ..header(Kind::Credit) };
    for (counts, words) in [
        (&[2][..], "the peer claims 2 more receives than the 0 frames in flight to it"),
        (&[u32::MAX], "the peer claims 4294967295 more receives than the 0 frames in flight to it"),
        // One frame is in flight to it: the first count is true, and the second takes it back.
        (&[1, 0], "the peer claims 4294967295 more receives than the 0 frames in flight to it"),
        (&[2], "the peer claims 2 more receives than the 1 frames in flight to it"),
    ] {
        let (end, mut raw) = site.raw_client().await;
        if words.contains("the 1 frames") || counts.len() > 1 {
            send(&end, Message::bare(Head::Cancel { call: call(1) })).await.expect("open");
            raw.receive().await.expect("CANCEL");
        }
        counts.iter().for_each(|count| raw.send_frame(claim(*count), b""));
        assert_eq!(site.violation(end).await, words);
    }
    site.close_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_violation_is_not_driven_away_by_more_polls() {
    let mut site = Site::new(Over::Fabric(verbwire_rdma::fabric::Profile::Rxe)).await;
    let (end, mut raw) = site.raw_client().await;
    raw.send(&[0xff; 40]);
    let first = drive(&end).await;
    assert_eq!(drive(&end).await.to_string(), first.to_string());
    assert_eq!(site.violation(end).await, "unknown frame type 0xff");
    site.close_clean().await;
}
