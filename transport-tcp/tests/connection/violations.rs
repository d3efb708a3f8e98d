//! What a peer may not send: each ends the connection with an error that names it.

use tokio::io::AsyncWriteExt;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Kind};
use verbwire_tcp::TcpConfig;

use crate::pair::{Everything, call, follows, piece, raw_pair, receive};

/// What an end says whose peer sends these frames, each with as many bytes behind it.
async fn error_of(frames: &[(Header, usize)]) -> String {
    let (end, mut raw) = raw_pair(TcpConfig::default(), Everything).await;
    for (header, behind) in frames {
        raw.write_all(&header.encode()).await.expect("room");
        raw.write_all(&vec![0; *behind]).await.expect("room");
    }
    loop {
        match receive(&end).await {
            Ok(_) => {}
            Err(error) => {
                assert!(error.is_peer_fault(), "{error}");
                return error.to_string();
            }
        }
    }
}

#[tokio::test]
async fn every_violation_is_named() {
    let none = Flags::default();
    let request = Header::new(Kind::Request, call(1));
    let cases: [(&[(Header, usize)], &str); 9] = [
        (&[(piece(1, 0, 4, Flags::LAST), 4)], "DATA frame for call 1.1, which has no body to come"),
        (
            &[(follows(1, 9), 0), (follows(1, 9), 0)],
            "second body for call 1.1 before the first one ended",
        ),
        (
            &[(follows(1, 9), 0), (piece(1, 4, 5, Flags::LAST), 5)],
            "DATA frame for call 1.1 at offset 4, expected offset 0",
        ),
        (
            &[(follows(1, 9), 0), (piece(1, 0, 4, none), 4), (piece(1, 4, 6, Flags::LAST), 6)],
            "DATA frame for call 1.1 ends at byte 10 of a body of 9",
        ),
        (
            &[(follows(1, 9), 0), (piece(1, 0, 4, Flags::LAST), 4)],
            "DATA frame for call 1.1 ends at byte 4 of a body of 9 with LAST",
        ),
        (
            &[(follows(1, 9), 0), (piece(1, 0, 9, none), 9)],
            "DATA frame for call 1.1 ends at byte 9 of a body of 9 without LAST",
        ),
        (
            &[(Header { body_len: (256 << 10) + 1, ..request }, 0)],
            "body in one frame of 262145 bytes exceeds max_frame_body of 262144 bytes",
        ),
        (
            &[(follows(1, (64 << 20) + 1), 0)],
            "body of 67108865 bytes exceeds max_message_size of 67108864 bytes",
        ),
        (
            &[(Header { metadata_len: 16_385, ..request }, 0)],
            "metadata of 16385 bytes exceeds max_metadata_size of 16384 bytes",
        ),
    ];
    for (frames, expected) in cases {
        let error = error_of(frames).await;
        assert_eq!(error, format!("the peer broke the protocol: {expected}"));
    }
}
