//! What a peer may not do with grants, said by one that speaks the NIC seam itself.

use bytes::{BufMut, BytesMut};
use verbwire_core::ErrorKind;
use verbwire_core::transport::Flush;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Kind};
use verbwire_rdma::memory::Rkey;
use verbwire_rdma::proto::rendezvous::wire::{
    Crc, Fin, Frame, Grant, GrantId, HeadExtras, Name, Names, Place, RtsNumber,
};

use crate::pair::{End, Net, PROFILES, call, pattern, receive, receive_all, request, send};
use crate::raw::Raw;
use crate::violations::end_and_raw;

const LEN: u32 = 100_000;

fn frame(frame: Frame) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    bytes.put_slice(&frame.header().encode());
    frame.encode_tlvs(&mut bytes);
    bytes.to_vec()
}

/// A REQUEST whose body of `len` bytes travels apart.
fn head(slot: u32, len: u32, extras: HeadExtras) -> Vec<u8> {
    let header = Header {
        flags: Flags::BODY_FOLLOWS,
        method: 1,
        time_us: 60_000_000,
        tlv_len: u16::try_from(extras.encoded_len()).expect("short"),
        body_len: len,
        ..Header::new(Kind::Request, call(slot))
    };
    let mut bytes = BytesMut::new();
    bytes.put_slice(&header.encode());
    extras.encode(&mut bytes);
    bytes.to_vec()
}

fn rts(number: u32) -> Vec<u8> {
    let extras = HeadExtras { rts: Some(RtsNumber(number)), ..HeadExtras::default() };
    head(number, LEN, extras)
}

fn grant_id(index: u32) -> GrantId {
    GrantId { index, generation: 0 }
}

fn grant(index: u32, len: u64) -> Grant {
    Grant { id: grant_id(index), place: Place { address: 1 << 20, rkey: Rkey(7) }, len }
}

fn fin(grant: GrantId, offset: u32, len: u32) -> Vec<u8> {
    frame(Frame::Fin(Fin { grant, offset, len, crc: None }))
}

fn names(name: Name) -> Names {
    Names::first_of([name]).expect("one")
}

/// Drives the end until the peer's frames have led to its end; what it says.
async fn violation(net: &Net, end: &End) -> String {
    let error = loop {
        if let Err(error) = receive(end).await {
            break error;
        }
    };
    assert!(error.is_peer_fault(), "{error}");
    end.retire().await;
    net.assert_clean();
    let words = error.to_string();
    words.strip_prefix("the peer broke the protocol: ").unwrap_or(&words).to_owned()
}

/// The grant that the end gives for the RTS that the raw peer has sent.
async fn granted(end: &End, raw: &mut Raw) -> Grant {
    let frame = tokio::select! {
        biased;
        frame = raw.receive() => frame,
        _whole = receive(end) => None,
    };
    let frame = frame.expect("nothing is whole yet");
    let (header, tlvs) = frame.split_first_chunk().expect("a header");
    let frame = Frame::decode(&Header::decode(header).expect("honest"), tlvs);
    let grant = match frame {
        Ok(Frame::Cts { grant, .. }) => Some(grant),
        _ => None,
    };
    grant.expect("a CTS")
}

#[tokio::test(start_paused = true)]
async fn frames_about_what_never_was_end_the_connection() {
    let forged = grant_id(3);
    let cases = [
        (rts(1), "RTS 1, expected 0: a writer counts them"),
        (fin(forged, 0, LEN), "FIN for grant 3.0, which was never given"),
        (
            frame(Frame::AbortAck(names(Name::Grant(forged)))),
            "ABORT_ACK for grant 3.0, which was never given",
        ),
        (
            frame(Frame::AbortAck(names(Name::Rts(RtsNumber(0))))),
            "ABORT_ACK for RTS 0, which was never sent",
        ),
        (
            frame(Frame::Abort(names(Name::Rts(RtsNumber(0))))),
            "ABORT for RTS 0, which was never sent",
        ),
        (
            frame(Frame::Cts { rts: Some(RtsNumber(0)), grant: grant(0, 8192) }),
            "CTS for RTS 0, which was never sent",
        ),
        (
            frame(Frame::Cts { rts: None, grant: grant(0, 8192) }),
            "more than 0 standing grants at a time",
        ),
    ];
    for profile in PROFILES {
        for (bytes, words) in &cases {
            let net = Net::new(profile, 1);
            let (end, mut raw) = end_and_raw(&net).await;
            raw.send(bytes);
            assert_eq!(violation(&net, &end).await, *words);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fin_must_be_the_first_of_its_grant_and_say_what_the_head_said() {
    type Finish = fn(GrantId) -> Vec<Vec<u8>>;
    let cases: [(Finish, &str); 4] = [
        (
            |id| vec![fin(id, 0, LEN - 1)],
            "FIN for grant 0.0 with a body of 99999 bytes, expected 100000",
        ),
        (|id| vec![fin(id, 4097, LEN)], "FIN for grant 0.0 with bytes 4097 to 104097 of 104096"),
        (|id| vec![fin(id, 0, LEN), fin(id, 0, LEN)], "FIN for grant 0.0, which is closed"),
        (
            |grant| {
                let crc = Some(Crc(1));
                vec![frame(Frame::Fin(Fin { grant, offset: 0, len: LEN, crc }))]
            },
            "a body with CRC32C 0x",
        ),
    ];
    for profile in PROFILES {
        for (finish, words) in &cases {
            let net = Net::new(profile, 1);
            let (end, mut raw) = end_and_raw(&net).await;
            raw.send(&rts(0));
            let grant = granted(&end, &mut raw).await;
            finish(grant.id).iter().for_each(|fin| raw.send(fin));
            let told = violation(&net, &end).await;
            assert!(told.starts_with(words), "{told}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fin_without_writes_shows_zeroes() {
    for profile in PROFILES {
        let net = Net::new(profile, 1);
        let (end, mut raw) = end_and_raw(&net).await;
        raw.send(&rts(0));
        let grant = granted(&end, &mut raw).await;
        raw.send(&fin(grant.id, 96, LEN));
        let body = receive_all(&end, 1).await.remove(0).body.into_bytes();
        assert_eq!(body.len(), LEN as usize);
        assert!(body.iter().all(|byte| *byte == 0));
        drop(body);
        end.retire().await;
        net.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn a_cts_must_be_as_long_as_asked_and_come_once() {
    let right = u64::from(LEN) + 4096;
    let cts = |index, len| frame(Frame::Cts { rts: Some(RtsNumber(0)), grant: grant(index, len) });
    let cases = [
        (
            vec![cts(0, right + 1)],
            "grant 0.0 of 104097 bytes, expected 104096: the body and 4096 more",
        ),
        (vec![cts(0, 1)], "grant 0.0 of 1 bytes, expected 104096: the body and 4096 more"),
        (vec![cts(0, right), cts(1, right)], "second CTS for RTS 0, grant 1.0"),
    ];
    for profile in PROFILES {
        for (frames, words) in &cases {
            let net = Net::new(profile, 1);
            let (end, mut raw) = end_and_raw(&net).await;
            send(&end, request(1, pattern(1, LEN as usize)), Flush::Now).await.expect("open");
            frames.iter().for_each(|frame| raw.send(frame));
            assert_eq!(violation(&net, &end).await, *words);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_forged_key_in_a_cts_costs_the_connection_and_nothing_else() {
    for profile in PROFILES {
        let net = Net::new(profile, 1);
        let (end, mut raw) = end_and_raw(&net).await;
        send(&end, request(1, pattern(1, LEN as usize)), Flush::Now).await.expect("open");
        let grant = grant(0, u64::from(LEN) + 4096);
        raw.send(&frame(Frame::Cts { rts: Some(RtsNumber(0)), grant }));
        let error = receive(&end).await.expect_err("the device refuses it");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        end.retire().await;
        net.assert_pools_idle();
    }
}
