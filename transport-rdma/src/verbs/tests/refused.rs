//! Work that a device refuses: receives that come late or are too short, keys that are wrong, queues that are
//! full. Each shows what the device says of it, and that the connection is over.

use std::fs;

use super::*;

/// A counter of the device's port, where it has one.
fn counter(name: &str) -> Option<u64> {
    let device = lab("LAB_DEVICE");
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{name}");
    fs::read_to_string(path).ok().map(|text| text.trim().parse().expect("a number"))
}

/// Waits until the connection manager or the device says that the connection is over.
async fn is_over(connected: &mut Connected) {
    let over = poll_fn(|cx| connected.events.poll_disconnected(cx));
    timeout(Duration::from_secs(20), over).await.expect("the connection ends");
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_write_without_rights_ends_the_connection() {
    let ((mut client, mut one), (server, mut two)) = pair().await;
    let write = SendOp::Write { address: 4096, rkey: Rkey(0xdead_0000) };
    client.send(1, write, &[7; 64], Inline::No);
    // InfiniBand fails the work request; iWARP reports success and then ends the stream.
    let wc = client.complete().await;
    if is_siw() {
        let over = timeout(Duration::from_secs(20), poll_fn(|cx| one.events.poll_disconnected(cx)));
        over.await.expect("the stream ends");
    } else {
        assert_eq!(wc.result, Err(WcStatus::REMOTE_ACCESS));
        one.events.disconnect();
    }
    let over = timeout(Duration::from_secs(20), poll_fn(|cx| two.events.poll_disconnected(cx)));
    over.await.expect("the peer hears of it");
    drop(server);
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_key_of_an_ended_registration_opens_nothing() {
    let ((mut client, mut one), (server, mut two)) = pair().await;
    let pool = Pool::new(Slab::new(CHUNK, 1), Poison::Off);
    let nic = device();
    let region = nic.register(pool.slab(), Access::RemoteWrite).expect("registers");
    let (address, rkey) = (pool.slab().address(), region.rkey());
    drop(region);
    client.send(1, SendOp::Write { address, rkey }, &[7; 64], Inline::No);
    let wc = client.complete().await;
    if !is_siw() {
        assert_eq!(wc.result, Err(WcStatus::REMOTE_ACCESS));
        one.events.disconnect();
    }
    is_over(&mut two).await;
    let memory = pool.take().expect("free");
    assert!(memory.iter().all(|byte| *byte == 0), "nothing was written");
    drop(server);
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn memory_of_this_side_without_its_key_is_not_sent() {
    let ((mut client, mut one), (server, mut two)) = pair().await;
    let buf = client.take().into_nic(NicAccess::Read);
    let foreign = Sge { lkey: Lkey(0xdead_0000), ..sge(&buf, 64) };
    client.posted.push(buf);
    let sges = Sges::one(foreign);
    let (op, signal, inline) = (SendOp::Send, Signal::Yes, Inline::No);
    // Refused when it is posted, or when it is carried out.
    match client.qp.post_send(&[SendWr { id: WrId(1), op, sges, signal, inline }]) {
        Ok(()) => {
            let wc = client.complete().await;
            assert!(wc.result.is_err_and(|status| status != WcStatus::FLUSHED), "{wc:?}");
        }
        Err(error) => println!("{error}"),
    }
    one.events.disconnect();
    is_over(&mut two).await;
    assert_eq!(server.complete().await.result, Err(WcStatus::FLUSHED), "nothing came");
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_message_longer_than_its_receive_ends_the_connection_on_both_sides() {
    let short: Open = |nic| {
        let mut side = Side::open(nic);
        side.receive_up_to(0, 16);
        side
    };
    let ((mut client, mut one), (server, mut two)) = pair_over(cm(), [unready, short]).await;
    client.send(1, SendOp::Send, &[7; 64], Inline::No);
    let (received, sent) = (server.complete().await, client.complete().await);
    if is_siw() {
        assert_eq!((received.id, received.result), (WrId(0), Err(WcStatus::LOCAL_LENGTH)));
        // Its send was over when the stream had it.
        assert_eq!(sent.result, Ok(0));
    } else {
        assert_eq!((received.id, received.result), (WrId(0), Err(WcStatus::LOCAL_QP_OPERATION)));
        assert_eq!(sent.result, Err(WcStatus::REMOTE_OPERATION));
        one.events.disconnect();
    }
    is_over(&mut two).await;
}

/// A side without receives.
fn unready(nic: &Arc<dyn Nic>) -> Side {
    Side::open(nic)
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_receive_that_comes_late_is_waited_for_on_infiniband_and_fatal_on_iwarp() {
    let asked_again = counter("send_rnr_err");
    let ((mut client, _one), (mut server, mut two)) = pair_over(cm_with(7), [unready; 2]).await;
    client.send(1, SendOp::Send, b"late", Inline::No);
    if is_siw() {
        return is_over(&mut two).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.receive(0);
    assert_eq!(server.complete().await.result, Ok(4));
    assert_eq!(client.complete().await.result, Ok(0));
    assert!(counter("send_rnr_err") > asked_again, "the receive was there in time");
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_peer_without_a_receive_ends_the_connection_if_it_is_not_asked_again() {
    let ((mut client, mut one), (_server, mut two)) = pair_over(cm(), [unready; 2]).await;
    client.send(1, SendOp::Send, b"never", Inline::No);
    let sent = client.complete().await;
    if is_siw() {
        assert_eq!(sent.result, Ok(0), "the stream had it");
    } else {
        assert_eq!(sent.result, Err(WcStatus::RNR_RETRY_EXCEEDED));
        one.events.disconnect();
    }
    is_over(&mut two).await;
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_peer_that_does_not_answer_is_given_up() {
    let ((mut client, mut one), (server, _two)) = pair().await;
    // soft-RoCE drops what comes for a queue pair in the error state, as if its machine were gone.
    server.qp.fail();
    if is_siw() {
        return is_over(&mut one).await;
    }
    client.send(1, SendOp::Send, b"hello?", Inline::Yes);
    assert_eq!(client.complete().await.result, Err(WcStatus::RETRY_EXCEEDED));
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_completion_queue_that_overflows_is_lost_and_ends_the_connection() {
    let narrow: Open = |nic| {
        let mut side = Side::with_queue(nic, 1);
        (0..32).for_each(|id| side.receive(id));
        side
    };
    let ((mut client, _one), (server, mut two)) = pair_over(cm(), [unready, narrow]).await;
    let buf = client.take().into_nic(NicAccess::Read);
    let sges = Sges::one(sge(&buf, 4));
    client.posted.push(buf);
    let wr = |id| {
        let (op, signal, inline) = (SendOp::Send, Signal::Yes, Inline::Yes);
        SendWr { id: WrId(id), op, sges, signal, inline }
    };
    client.qp.post_send(&Vec::from_iter((0..16).map(wr))).expect("posts");
    is_over(&mut two).await;
    // The end of the stream may be heard of first.
    let lost = async {
        loop {
            match server.cq.arm() {
                Ok(()) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(error) => return error,
            }
        }
    };
    let error = timeout(Duration::from_secs(20), lost).await.expect("the queue is lost");
    assert!(error.to_string().contains("overflowed"), "{error}");
}
