//! How the two guests meet, and how packets get lost between them.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use tokio::time::Instant;
use verbwire::Builder;
use verbwire_tests::fixture::{Serving, offering};
use verbwire_tests::lab;
use verbwire_tests::service::Desk;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Which of the guests this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Serves,
    Calls,
}

/// How long a guest waits for the other: lost packets of the connection manager cost seconds each.
const PATIENCE: &str = "200";

impl Host {
    pub(crate) fn here() -> Outcome<Self> {
        Ok(if lab::variable("LAB_HOST")? == "1" { Self::Serves } else { Self::Calls })
    }
}

/// Returns when both guests have come to the point of this name.
pub(crate) async fn meet(name: &str) -> Outcome {
    lab::run(&format!("lab-barrier {name} {PATIENCE}")).await?;
    Ok(())
}

/// Packets that this guest does not send, so many in a hundred.
pub(crate) struct Loss {
    percent: u32,
    since: Instant,
}

impl Loss {
    /// Both guests do this at the same time.
    pub(crate) async fn begin(percent: u32) -> Outcome<Self> {
        lab::run(&format!("tc qdisc add dev NETDEV root netem loss {percent}%")).await?;
        Ok(Self { percent, since: Instant::now() })
    }

    /// Sends all again. What is said is the time and the loss.
    pub(crate) async fn end(self) -> Outcome {
        let dropped = dropped(&lab::run("tc -s qdisc show dev NETDEV").await?)?;
        lab::run("tc qdisc del dev NETDEV root").await?;
        println!("{} %: {dropped} packets dropped in {:.1?}", self.percent, self.since.elapsed());
        match (self.percent, dropped) {
            (1.., 0) => Err("no packet was lost, so this proves nothing".into()),
            _ => Ok(()),
        }
    }
}

/// What netem has dropped so far: "Sent 1 bytes 1 pkt (dropped 3, overlimits ...".
fn dropped(said: &str) -> Outcome<u64> {
    let (_, rest) = said.split_once("(dropped ").ok_or("tc shows no drop counter")?;
    let number = rest.split(',').next().unwrap_or_default();
    Ok(number.parse()?)
}

/// Where the one guest serves and the other calls.
pub(crate) struct Place {
    target: String,
    serving: Option<Serving>,
}

impl Place {
    /// Serves at any port of the device's address, and tells the other guest by a file on the host, which no loss reaches.
    pub(crate) async fn serve(
        scheme: &str,
        configure: impl FnOnce(Builder) -> Builder,
    ) -> Outcome<Self> {
        let target = format!("{scheme}://{}:0", lab::variable("LAB_ADDRESS")?);
        let serving = Serving::start(configure(offering(&Desk::default())), &target).await;
        let (target, file) = (serving.target().to_owned(), meeting_point(scheme)?);
        fs::write(file.with_extension("partial"), &target)?;
        fs::rename(file.with_extension("partial"), file)?;
        meet(&format!("{scheme}-bound")).await?;
        Ok(Self { target, serving: Some(serving) })
    }

    /// The place that the other guest serves at.
    pub(crate) async fn find(scheme: &str) -> Outcome<Self> {
        meet(&format!("{scheme}-bound")).await?;
        Ok(Self { target: fs::read_to_string(meeting_point(scheme)?)?, serving: None })
    }

    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// Waits until the other guest has done, and shuts down.
    pub(crate) async fn close(self, name: &str) -> Outcome {
        meet(&format!("{name}-done")).await?;
        match self.serving {
            Some(serving) => Ok(serving.shut_down().await??),
            None => Ok(()),
        }
    }
}

fn meeting_point(scheme: &str) -> Outcome<PathBuf> {
    let folder = PathBuf::from(lab::variable("LAB_BARRIER")?);
    fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("target-{scheme}")))
}
