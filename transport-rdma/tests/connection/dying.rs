//! Hosts that die at a work request: at each in turn, whatever is under way.

use std::sync::Arc;

use verbwire_core::message::Message;
use verbwire_core::transport::Flush;
use verbwire_rdma::fabric::{Death, Profile};

use crate::pair::{Net, PROFILES, drive, receive, send};

/// On every kind of device, each host dies in each way at each of these work requests of it, amid `traffic`, which retires
/// both ends of its connection.
pub(crate) async fn at_each_of(
    nths: impl Iterator<Item = u64> + Clone,
    net: impl Fn(Profile, u64) -> Net,
    traffic: impl AsyncFn(&Net),
) {
    for profile in PROFILES {
        for death in [Death::Host, Death::Process] {
            for host in 0..2 {
                for nth in nths.clone() {
                    let net = net(profile, nth);
                    net.hosts[host].kill_at(nth, death);
                    traffic(&net).await;
                    assert_eq!(net.fabric.pending_fates(), 0, "nobody died");
                    net.assert_clean();
                }
            }
        }
    }
}

/// One side sends what `next` makes and the other answers each message, until one of them dies; then both ends are retired.
pub(crate) async fn send_and_answer(
    net: &Net,
    next: impl AsyncFn(u32) -> Message,
    answer: fn(Message) -> Message,
) {
    let (near, far) = net.pair().await;
    let answering = {
        let far = Arc::clone(&far);
        tokio::spawn(async move {
            while let Ok(messages) = receive(&far).await {
                for message in messages {
                    // A dead connection takes no answer.
                    let _sent = send(&far, answer(message), Flush::Now).await;
                }
            }
        })
    };
    let driving = tokio::spawn(drive(Arc::clone(&near)));
    for number in 0.. {
        if send(&near, next(number).await, Flush::Now).await.is_err() {
            break;
        }
    }
    driving.await.expect("no panic");
    near.retire().await;
    far.retire().await;
    answering.await.expect("no panic");
}
