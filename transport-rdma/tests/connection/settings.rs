//! Every setting at both ends of its type: connections stand, calls are answered, and all comes back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use verbwire_core::client::Client;
use verbwire_core::config::ClientConfig;
use verbwire_core::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary, unknown_method,
};
use verbwire_core::transport::Transport;
use verbwire_core::{Body, Channel, Request, Response, Server, Status, Target};
use verbwire_rdma::fabric::{Fabric, FabricConfig, Profile};
use verbwire_rdma::{Peers, Polling, RdmaConfig, RdmaTransport};

static ECHO: ServiceDescriptor =
    ServiceDescriptor::new("test.Echo", &[MethodDescriptor::new("Echo", "/test.Echo/Echo")]);

const MAX_MESSAGE: usize = 600 << 10;

/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(120);

#[derive(Clone, PartialEq, Message)]
struct Parcel {
    #[prost(bytes = "bytes", tag = "1")]
    payload: Bytes,
}

struct Echo;

impl Service for Echo {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &ECHO
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        match method {
            0 => unary(request, |request: Request<Parcel>| async {
                Ok(Response::new(request.into_inner()))
            }),
            other => unknown_method(&ECHO, other),
        }
    }
}

/// What a setting is set to.
#[derive(Debug, Clone, Copy)]
enum At {
    Zero,
    One,
    Most,
}

impl At {
    fn usize(self) -> usize {
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::Most => usize::MAX,
        }
    }

    fn u32(self) -> u32 {
        u32::try_from(self.usize()).unwrap_or(u32::MAX)
    }

    fn time(self) -> Duration {
        match self {
            Self::Zero => Duration::ZERO,
            Self::One => Duration::from_nanos(1),
            Self::Most => Duration::MAX,
        }
    }
}

/// What may become of calls where a setting is at an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    Succeed,
    /// Long ones are refused, or the connection gives up at once: the setting says so.
    MayFail,
}

type Setting = (&'static str, fn(&mut RdmaConfig, At));

const SETTINGS: &[Setting] = &[
    ("data_window", |config, at| config.data_window = at.u32()),
    ("control_window", |config, at| config.control_window = at.u32()),
    ("shared_receives", |config, at| {
        (config.shared_receives, config.peers) = (at.u32(), Peers::Trusted);
    }),
    ("eager_len", |config, at| config.eager_len = at.usize()),
    ("staging_buffers", |config, at| config.staging_buffers = at.u32()),
    ("send_depth", |config, at| config.send_depth = at.u32()),
    ("completion_queue_depth", |config, at| config.completion_queue_depth = at.u32()),
    ("polling", |config, at| config.polling = Polling::Adaptive { most: at.u32() }),
    ("max_inline", |config, at| config.max_inline = at.usize()),
    ("send_queue_messages", |config, at| config.send_queue_messages = at.usize()),
    ("send_queue_bytes", |config, at| config.send_queue_bytes = at.usize()),
    ("stall_timeout", |config, at| config.stall_timeout = at.time()),
    ("close_timeout", |config, at| config.close_timeout = at.time()),
    ("drain_timeout", |config, at| config.drain_timeout = at.time()),
    ("rendezvous_threshold", |config, at| config.rendezvous_threshold = at.usize()),
    ("write_chunk", |config, at| config.write_chunk = at.u32()),
    ("write_window", |config, at| config.write_window = at.u32()),
    ("granted_bytes", |config, at| config.granted_bytes = at.usize() as u64),
    ("standing_grants", |config, at| {
        (config.standing_grants, config.peers) = (at.u32(), Peers::Trusted);
    }),
    ("standing_grant_len", |config, at| {
        (config.standing_grant_len, config.standing_grants) = (at.u32(), 2);
        config.peers = Peers::Trusted;
    }),
    ("revoke_timeout", |config, at| config.revoke_timeout = at.time()),
    ("landing.size.longest", |config, at| config.landing.size.longest = at.usize()),
    ("landing.size.cap", |config, at| config.landing.size.cap = at.usize()),
    ("landing.size.slab_len", |config, at| config.landing.size.slab_len = at.usize()),
    ("landing.pinned_budget", |config, at| config.landing.pinned_budget = at.usize()),
    ("landing.quarantine_cap", |config, at| config.landing.quarantine_cap = at.usize()),
    ("staging.longest", |config, at| config.staging.longest = at.usize()),
    ("staging.cap", |config, at| config.staging.cap = at.usize()),
    ("staging.slab_len", |config, at| config.staging.slab_len = at.usize()),
    ("attached_domains", |config, at| config.attached_domains = at.usize()),
    ("kept_landing_bytes", |config, at| config.kept_landing_bytes = at.usize()),
    ("kept_slabs", |config, at| config.kept_slabs = at.usize()),
];

fn calls_of(setting: &str, at: At) -> Calls {
    match (setting, at) {
        ("stall_timeout" | "landing.size.longest", At::Zero | At::One) => Calls::MayFail,
        _ => Calls::Succeed,
    }
}

async fn call(channel: &Channel, len: usize) -> Result<(), Status> {
    let payload = Bytes::from(vec![3; len]);
    let mut request = Request::new(Parcel { payload: payload.clone() });
    request.set_timeout(LONG);
    request.expect_reply(len as u64);
    let reply = Client::new(channel.clone(), &ECHO).unary::<_, Parcel>(0, request).await?;
    assert_eq!(reply.get_ref().payload, payload);
    Ok(())
}

/// Calls of all kinds, some of which are given up on the way.
async fn call_all(channel: &Channel) -> Result<(), Status> {
    let mut outcome = Ok(());
    for len in [0, 5000, 40_000, MAX_MESSAGE - 100] {
        outcome = outcome.and(call(channel, len).await);
    }
    for microseconds in [1, 50, 200, 500, 2000] {
        let _given_up =
            timeout(Duration::from_micros(microseconds), call(channel, 300 << 10)).await;
    }
    sleep(Duration::from_secs(10)).await;
    outcome.and(call(channel, 300 << 10).await)
}

async fn try_settings(profile: Profile, config: &RdmaConfig) -> Result<(), Status> {
    let fabric = Fabric::new(FabricConfig { profile, ..FabricConfig::new(5) });
    let places =
        ["near", "far"].map(|name| RdmaTransport::over_fabric(&fabric.host(name), config.clone()));
    let [near, far] = places.clone().map(|transport| Arc::new(transport) as Arc<dyn Transport>);
    let bound = Server::builder()
        .add_service(Echo)
        .max_message_size(MAX_MESSAGE)
        .bind([(far, Target::new("fabric", "far:0"))])
        .await
        .expect("a free port");
    let target = bound.local_targets()[0].clone();
    let serving = tokio::spawn(bound.serve());
    let mut client = ClientConfig::default();
    client.limits.max_message_size = MAX_MESSAGE;
    let channel = Channel::connect_once(near, &target, &client).await.expect("it connects");
    let outcome = call_all(&channel).await;
    drop(channel);
    sleep(LONG).await;
    serving.abort();
    sleep(LONG).await;
    for place in &places {
        let (buffers, pools) = (place.buffers(), place.pools());
        assert_eq!((buffers.free, buffers.leaked), (buffers.total, 0), "{buffers:?}");
        for pool in [pools.users, pools.staging, pools.landing] {
            let left = (pool.in_use_bytes, pool.quarantined_bytes, pool.leaked_bytes, pool.waiting);
            assert_eq!(left, (0, 0, 0, 0), "{pools:?}");
        }
    }
    outcome
}

#[test]
fn any_setting_may_be_at_its_ends() {
    for (name, set) in SETTINGS {
        for at in [At::Zero, At::One, At::Most] {
            let profiles: &[_] = match at {
                At::Zero => &[Profile::Rxe],
                At::One => &[Profile::Siw],
                At::Most => &[Profile::Rxe, Profile::Siw],
            };
            for profile in profiles.iter().copied() {
                println!("{name} at {at:?} on {profile:?}");
                let runtime =
                    Builder::new_current_thread().enable_time().start_paused(true).build();
                let runtime = runtime.expect("the system gives what a runtime needs");
                let mut config = RdmaConfig::default();
                set(&mut config, at);
                let outcome = runtime.block_on(try_settings(profile, &config));
                if calls_of(name, at) == Calls::Succeed {
                    outcome.expect("all calls succeed");
                }
            }
        }
    }
}
