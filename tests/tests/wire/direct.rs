//! Calls straight over the device, with 1 % loss in both directions: all end well, and every byte that comes back is looked at.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use verbwire::Request;
use verbwire_tests::fixture::{connect, endpoint};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, ProduceRequest};

use crate::site::{Host, Loss, Outcome, Place};

/// Callers at a time, and the calls of each.
const CALLERS: usize = 16;
const CALLS: usize = 20;

/// Bodies in several frames and in one, up to thousands of packets.
const LONG: [usize; 5] = [1 << 20, 300_000, 8193, 4096, 2 << 20];

/// Bodies that are written into granted memory, in one Write and in many. The last Write of the longest is of 6 bytes
/// across a page, which soft-iWARP's kernel sends wrong unless it is inline.
const WRITTEN: [usize; 3] = [40_000, 1 << 20, (3 << 20) + 1];

/// Serves, or calls.
pub(crate) async fn run(host: Host) -> Outcome {
    let loss = Loss::begin(1).await?;
    match host {
        Host::Serves => Place::serve("rdma", |builder| builder).await?.close("direct").await?,
        Host::Calls => {
            let place = Place::find("rdma").await?;
            let called = call_everything(place.target()).await;
            // The server must not wait for a client that has failed.
            place.close("direct").await?;
            called?;
        }
    }
    loss.end().await
}

async fn call_everything(target: &str) -> Outcome {
    let begun = Instant::now();
    let endpoint = endpoint(target).connect_timeout(Duration::from_secs(60));
    let client = ConformanceClient::new(connect(&endpoint.default_timeout(MINUTES)).await);
    println!("connected to {target} after {:?}", begun.elapsed());
    for len in LONG {
        echo(&client, len).await?;
    }
    for len in WRITTEN {
        request_of(&client, len).await?;
        reply_of(&client, len, Reply::Unannounced).await?;
        reply_of(&client, len, Reply::Expected).await?;
    }
    println!("long calls ended after {:?}", begun.elapsed());
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = client.clone();
        callers.spawn(async move {
            for call in 0..CALLS {
                echo(&client, caller * 61 + call * 7).await?;
            }
            Outcome::Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    println!("all calls ended after {:?}", begun.elapsed());
    Ok(())
}

/// Nothing but a lost connection may end a call here.
const MINUTES: Duration = Duration::from_secs(180);

async fn echo(client: &ConformanceClient, len: usize) -> Outcome {
    let payload = pattern::payload(len, len as u64);
    let reply = client.echo(Blob { payload: payload.clone() }).await?;
    if reply.into_inner().payload == payload {
        return Ok(());
    }
    Err(format!("{len} bytes came back changed").into())
}

/// A long request, looked at where it arrives.
async fn request_of(client: &ConformanceClient, len: usize) -> Outcome {
    let payload = pattern::payload(len, 1);
    let sent = (len as u64, pattern::checksum(&payload));
    let reply = client.digest(Blob { payload }).await?.into_inner();
    if (reply.len, reply.checksum) == sent {
        return Ok(());
    }
    Err(format!("a request of {len} bytes came changed").into())
}

/// Whether memory for a reply is offered with its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Unannounced,
    Expected,
}

/// A long reply.
async fn reply_of(client: &ConformanceClient, len: usize, reply: Reply) -> Outcome {
    let mut request = Request::new(ProduceRequest { len: len as u64, seed: 2 });
    if reply == Reply::Expected {
        request.expect_reply(len as u64 + 16);
    }
    let payload = client.produce(request).await?.into_inner().payload;
    let expected = pattern::payload(len, 2);
    match pattern::difference(&payload, &expected) {
        None => Ok(()),
        Some(how) => Err(format!("a reply of {len} bytes ({reply:?}): {how}").into()),
    }
}
