//! Client and server in two guests of the device lab, on a wire that loses packets: `lab pair`.
//!
//! Guest 1 serves, guest 2 calls, and both drop one in a hundred of what they send. Every byte that comes back
//! is looked at, every call has to end well, and each guest's drop counter has to have moved.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, spawn_blocking};
use verbwire::Request;
use verbwire_tests::fixture::{Serving, connect, endpoint, offering};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, ProduceRequest};
use verbwire_tests::service::Desk;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Callers at a time, and the calls of each.
const CALLERS: usize = 16;
const CALLS: usize = 20;

/// Bodies in several frames and in one, up to thousands of packets.
const LONG: [usize; 5] = [1 << 20, 300_000, 8193, 4096, 2 << 20];

/// Bodies that are written into granted memory, in one Write and in many. The last Write of the longest is of 6 bytes
/// across a page, which soft-iWARP's kernel sends wrong unless it is inline.
const WRITTEN: [usize; 3] = [40_000, 1 << 20, (3 << 20) + 1];

/// How long a guest waits for the other: lost packets of the connection manager cost seconds each.
const PATIENCE: &str = "200";

fn main() -> Outcome {
    let netdev = lab("LAB_NETDEV")?;
    run("tc", &["qdisc", "add", "dev", &netdev, "root", "netem", "loss", "1%"])?;
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = match lab("LAB_HOST")?.as_str() {
        "1" => runtime.block_on(serve()),
        _ => runtime.block_on(call()),
    };
    drop(runtime);
    let dropped = dropped(&netdev)?;
    run("tc", &["qdisc", "del", "dev", &netdev, "root"])?;
    println!("netem dropped {dropped} packets");
    outcome?;
    if dropped == 0 { Err("no packet was lost, so this proves nothing".into()) } else { Ok(()) }
}

/// Serves until the other guest has done.
async fn serve() -> Outcome {
    let target = format!("rdma://{}:0", lab("LAB_ADDRESS")?);
    let serving = Serving::start(offering(&Desk::default()), &target).await;
    let place = meeting_point()?;
    fs::write(place.with_extension("partial"), serving.target())?;
    fs::rename(place.with_extension("partial"), place)?;
    barrier("bound").await?;
    barrier("done").await?;
    Ok(serving.shut_down().await??)
}

async fn call() -> Outcome {
    barrier("bound").await?;
    let target = fs::read_to_string(meeting_point()?)?;
    let called = call_everything(&target).await;
    // The server must not wait for a client that has failed.
    barrier("done").await?;
    called
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

fn lab(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set: run this with tests/lab/lab pair"))
}

/// The file in which the server says where it listens; on the host, so that no loss reaches it.
fn meeting_point() -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
    let folder = PathBuf::from(lab("LAB_BARRIER")?);
    fs::create_dir_all(&folder)?;
    Ok(folder.join("target"))
}

async fn barrier(name: &'static str) -> Outcome {
    spawn_blocking(move || run("lab-barrier", &[name, PATIENCE]).map(drop)).await?
}

fn run(program: &str, words: &[&str]) -> Result<String, Box<dyn Error + Send + Sync>> {
    let ran = Command::new(program).args(words).output()?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        return Err(format!("'{program} {}' failed: {said}", words.join(" ")).into());
    }
    Ok(String::from_utf8(ran.stdout)?)
}

/// What netem has dropped so far: "Sent 1 bytes 1 pkt (dropped 3, overlimits ...".
fn dropped(netdev: &str) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let said = run("tc", &["-s", "qdisc", "show", "dev", netdev])?;
    let (_, rest) = said.split_once("(dropped ").ok_or("tc shows no drop counter")?;
    let number = rest.split(',').next().unwrap_or_default();
    Ok(number.parse()?)
}
