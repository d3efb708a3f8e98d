use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::buf::Body;
use crate::client::{Channel, Client};
use crate::config::ClientConfig;
use crate::request::{Request, Response};
use crate::server::Server;
use crate::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary, unknown_method,
};
use crate::transport::Target;
use crate::transport::mem::MemTransport;

static DESCRIPTOR: ServiceDescriptor = ServiceDescriptor::new(
    "test.Tasks",
    &[
        MethodDescriptor::new("Which", "/test.Tasks/Which"),
        MethodDescriptor::new("Never", "/test.Tasks/Never"),
    ],
);

/// Answers with the task that it runs in, after the milliseconds that it is told.
struct Tasks;

impl Service for Tasks {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &DESCRIPTOR
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        match method {
            0 => unary(request, |request: Request<Bytes>| async move {
                if let [ms] = request.into_inner()[..] {
                    sleep(Duration::from_millis(ms.into())).await;
                }
                Ok(Response::new(Bytes::from(tokio::task::id().to_string())))
            }),
            1 => unary(request, |_: Request<Bytes>| {
                std::future::pending::<Result<Response<Bytes>, _>>()
            }),
            other => unknown_method(&DESCRIPTOR, other),
        }
    }
}

async fn served(name: &str) -> (Client, JoinHandle<()>) {
    let builder = Server::builder().add_service(Tasks);
    let at = Target::new("mem", name);
    let bound = builder.bind([(Arc::new(MemTransport) as _, at)]).await.expect("a free name");
    let server = tokio::spawn(async move { drop(bound.serve().await) });
    (connected(name).await, server)
}

async fn connected(name: &str) -> Client {
    let (at, config) = (Target::new("mem", name), ClientConfig::default());
    let channel = Channel::connect_once(Arc::new(MemTransport), &at, &config).await;
    Client::new(channel.expect("it listens"), &DESCRIPTOR)
}

/// The task that ran a call which takes so many milliseconds, or none.
async fn which(client: &Client, ms: &'static [u8]) -> Bytes {
    let reply = client.unary::<Bytes, Bytes>(0, Request::new(Bytes::from_static(ms))).await;
    reply.expect("answered").into_inner()
}

#[tokio::test(start_paused = true)]
async fn calls_one_after_the_other_share_a_task_and_calls_at_once_do_not() {
    let (client, _server) = served("workers-share").await;
    let first = which(&client, &[]).await;
    assert_eq!(which(&client, &[3]).await, first);
    let (one, other) = tokio::join!(which(&client, &[5]), which(&client, &[9]));
    assert_ne!(one, other);
    assert!([one, other].contains(&which(&client, &[]).await));
}

#[tokio::test(start_paused = true)]
async fn the_task_of_a_call_that_is_given_up_runs_no_other_call() {
    let (client, _server) = served("workers-stop").await;
    let first = which(&client, &[]).await;
    let mut never = client.unary::<Bytes, Bytes>(1, Request::new(Bytes::new()));
    assert!(timeout(Duration::from_millis(5), &mut never).await.is_err());
    drop(never);
    let second = which(&client, &[]).await;
    assert_ne!(second, first);
    assert_eq!(which(&client, &[3]).await, second);
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_end_with_their_connection() {
    let (client, server) = served("workers-end").await;
    let other = connected("workers-end").await;
    sleep(Duration::from_millis(5)).await;
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    tokio::join!(which(&client, &[1]), which(&client, &[2]), which(&other, &[1]));
    assert_eq!(alive(), before + 3, "three tasks wait for calls");
    drop(client);
    sleep(Duration::from_millis(5)).await;
    // Its driver and that of its connection's other side end as well.
    assert_eq!(alive(), before - 2 + 1);
    drop(other);
    server.abort();
    sleep(Duration::from_millis(5)).await;
    assert_eq!(alive(), 0);
}
