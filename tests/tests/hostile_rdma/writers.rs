//! Peers that write into memory that they were granted, or say that they did.

use verbwire_rdma::testing::{Crc, Fin, Frame, Grant, GrantId, HeadExtras, Name, Names, RtsNumber};
use verbwire_tests::raw_rdma::{RawRdma, encode, head, rts};

use crate::end::{End, call, receive_one, while_driven};
use crate::over_nics;
use crate::site::{LONG_BODY, Over, Site};

over_nics!(
    frames_about_what_never_was_end_the_connection,
    a_fin_must_be_the_first_of_its_grant_and_say_what_the_head_said,
    a_fin_without_writes_shows_zeroes,
);

pub(crate) const LEN: u32 = 100_000;
const _: () = assert!(LEN as usize == LONG_BODY);

pub(crate) fn grant_id(index: u32) -> GrantId {
    GrantId { index, generation: 0 }
}

pub(crate) fn fin(grant: GrantId, offset: u32, len: u32) -> Vec<u8> {
    encode(Frame::Fin(Fin { grant, offset, len, crc: None }))
}

fn names(name: Name) -> Names {
    Names::first_of([name]).expect("one")
}

/// The grant that the end gives for the RTS that the raw peer has sent.
pub(crate) async fn granted(end: &End, raw: &mut RawRdma) -> Grant {
    let heard = while_driven(end, raw.heard()).await;
    let grant = match heard {
        Frame::Cts { grant, .. } => Some(grant),
        _ => None,
    };
    assert!(grant.is_some(), "expected a CTS, heard {heard:?}");
    grant.expect("looked at above")
}

async fn frames_about_what_never_was_end_the_connection(over: Over) {
    let forged = grant_id(3);
    let cases = [
        (rts(call(1), 1, LEN), "RTS 1, expected 0: a writer counts them"),
        (fin(forged, 0, LEN), "FIN for grant 3.0, which was never given"),
        (
            encode(Frame::AbortAck(names(Name::Grant(forged)))),
            "ABORT_ACK for grant 3.0, which was never given",
        ),
        (
            encode(Frame::AbortAck(names(Name::Rts(RtsNumber(0))))),
            "ABORT_ACK for RTS 0, which was never sent",
        ),
        (
            encode(Frame::Abort(names(Name::Rts(RtsNumber(0))))),
            "ABORT for RTS 0, which was never sent",
        ),
    ];
    let mut site = Site::new(over).await;
    for (bytes, words) in &cases {
        let (end, mut raw) = site.raw_client().await;
        raw.send(bytes);
        assert_eq!(site.violation(end).await, *words);
    }
    site.close_clean().await;
}

async fn a_fin_must_be_the_first_of_its_grant_and_say_what_the_head_said(over: Over) {
    type Finish = fn(GrantId) -> Vec<Vec<u8>>;
    let cases: [(Finish, &str); 6] = [
        (
            |id| vec![fin(id, 0, LEN - 1)],
            "FIN for grant 0.0 with a body of 99999 bytes, expected 100000",
        ),
        (|id| vec![fin(id, 4097, LEN)], "FIN for grant 0.0 with bytes 4097 to 104097 of 104096"),
        (
            |id| vec![fin(id, u32::MAX, LEN)],
            "FIN for grant 0.0 with bytes 4294967295 to 4295067295 of 104096",
        ),
        (|id| vec![fin(id, 0, LEN), fin(id, 0, LEN)], "FIN for grant 0.0, which is closed"),
        (
            |grant| {
                let crc = Some(Crc(1));
                vec![encode(Frame::Fin(Fin { grant, offset: 0, len: LEN, crc }))]
            },
            "a body with CRC32C 0x",
        ),
        (
            // A REQUEST that says that its body is in memory which was granted for another one.
            |grant| {
                let fin = Some(Fin { grant, offset: 0, len: LEN, crc: None });
                vec![head(call(2), LEN, HeadExtras { fin, ..HeadExtras::default() })]
            },
            "FIN in a REQUEST for grant 0.0, which was given for something else",
        ),
    ];
    let mut site = Site::new(over).await;
    for (finish, words) in &cases {
        let (end, mut raw) = site.raw_client().await;
        raw.send(&rts(call(0), 0, LEN));
        let grant = granted(&end, &mut raw).await;
        finish(grant.id).iter().for_each(|fin| raw.send(fin));
        let told = site.violation(end).await;
        assert!(told.starts_with(words), "{told}");
    }
    site.close_clean().await;
}

async fn a_fin_without_writes_shows_zeroes(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    raw.send(&rts(call(0), 0, LEN));
    let grant = granted(&end, &mut raw).await;
    raw.send(&fin(grant.id, 96, LEN));
    let body = receive_one(&end).await.body.into_bytes();
    assert_eq!(body.len(), LONG_BODY);
    assert!(body.iter().all(|byte| *byte == 0));
    drop(body);
    site.retired(end).await;
    site.close_clean().await;
}
