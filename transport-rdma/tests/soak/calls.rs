//! Both sides of a call: the handler and the caller, as the plan says.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use verbwire_core::client::{Call, Client};
use verbwire_core::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary, unknown_method,
};
use verbwire_core::{Body, Buffer, Channel, Request, Response, Status};

use crate::parcel::{Direction, Parcel, fault_of, fill};
use crate::plan::{Answer, CallPlan, Ending, Memory, MessagePlan, Weather};
use crate::world::{Outcome, World};

pub(crate) static SOAK: ServiceDescriptor =
    ServiceDescriptor::new("test.Soak", &[MethodDescriptor::new("Swap", "/test.Soak/Swap")]);

/// How much later than its deadline a call may end: timers tick in milliseconds.
const SLACK: Duration = Duration::from_millis(3);

/// The service of all servers.
pub(crate) struct Swap {
    pub(crate) world: Arc<World>,
    pub(crate) server: usize,
}

impl Service for Swap {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &SOAK
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        let (world, server) = (Arc::clone(&self.world), self.server);
        match method {
            0 => unary(request, move |request| handle(world, server, request)),
            other => unknown_method(&SOAK, other),
        }
    }
}

async fn handle(
    world: Arc<World>,
    server: usize,
    request: Request<Parcel>,
) -> Result<Response<Parcel>, Status> {
    let number = request.get_ref().call;
    let Some(plan) = world.call(number).filter(|plan| plan.server == server) else {
        world.fail(format_args!("server {server} got call {number}, which nobody made there"));
        return Err(Status::internal("no such call"));
    };
    world.ran(number);
    tracing::debug!(number, "a handler was entered");
    check(&world, request.get_ref(), plan, Direction::Request);
    sleep(plan.handler).await;
    check(&world, request.get_ref(), plan, Direction::Request);
    keep(request.get_ref().clone(), &plan.request, plan, &world, Direction::Request);
    if plan.answer == Answer::Fail {
        return Err(Status::failed_precondition("as planned"));
    }
    let memory = match longest(&plan.reply) {
        Some(len) => Some(request.alloc(len).await?),
        None => None,
    };
    Ok(Response::new(parcel(&plan.reply, memory, (number, Direction::Reply))))
}

/// The length to allocate for a message, if anything.
fn longest(message: &MessagePlan) -> Option<usize> {
    let len = message.shape.0.first().copied()?;
    (message.memory == Memory::Pool && len > 0).then_some(len)
}

fn parcel(
    message: &MessagePlan,
    memory: Option<Buffer>,
    (number, direction): (u32, Direction),
) -> Parcel {
    let mut parts = Vec::new();
    let mut memory = memory;
    for (part, len) in message.shape.0.iter().enumerate() {
        let place = (number, direction, part);
        parts.push(match memory.take() {
            Some(mut buffer) => {
                fill(&mut buffer, place);
                buffer.freeze()
            }
            None => {
                let mut bytes = vec![0; *len];
                fill(&mut bytes, place);
                Bytes::from(bytes)
            }
        });
    }
    Parcel { call: number, parts }
}

fn check(world: &World, parcel: &Parcel, plan: &CallPlan, direction: Direction) {
    let message = match direction {
        Direction::Request => &plan.request,
        Direction::Reply => &plan.reply,
    };
    if let Some(fault) = fault_of(parcel, plan.number, direction, &message.shape) {
        world.fail(format_args!("the {direction:?} of call {}: {fault}", plan.number));
    }
}

/// Keeps what was received, and looks at it again before it is dropped.
fn keep(
    parcel: Parcel,
    message: &MessagePlan,
    plan: &CallPlan,
    world: &Arc<World>,
    direction: Direction,
) {
    if message.kept.is_zero() {
        return;
    }
    let (world, kept, number) = (Arc::clone(world), message.kept, plan.number);
    tokio::spawn(async move {
        sleep(kept).await;
        if let Some(plan) = world.call(number) {
            check(&world, &parcel, plan, direction);
        }
    });
}

/// Makes a call and notes how it ended.
pub(crate) async fn make(world: Arc<World>, number: u32, channel: Option<Channel>) {
    let Some(plan) = world.call(number) else { return };
    let Some(channel) = channel else { return world.ended(number, Outcome::NotBegun) };
    sleep(plan.start).await;
    let memory = match longest(&plan.request) {
        Some(len) if len <= world.plan.max_message => match channel.alloc(len).await {
            Ok(buffer) => Some(buffer),
            Err(status) if world.plan.weather != Weather::Fair => {
                tracing::debug!(number, %status, "no memory for a request");
                None
            }
            Err(status) => {
                world.fail(format_args!("no memory for the request of call {number}: {status}"));
                None
            }
        },
        _ => None,
    };
    let parcel = parcel(&plan.request, memory, (number, Direction::Request));
    let mut request = Request::new(parcel);
    request.set_timeout(plan.timeout);
    plan.hint.inspect(|hint| request.expect_reply(*hint));
    let deadline = Instant::now() + plan.timeout;
    let call = Client::new(channel, &SOAK).unary(0, request);
    let ended = end(call, plan.ending).await;
    let late = Instant::now().saturating_duration_since(deadline);
    if late > SLACK {
        world.fail(format_args!("call {number} ended {late:?} behind its deadline"));
    }
    let outcome = match ended {
        None => Outcome::Dropped,
        Some(Err(status)) => {
            tracing::debug!(number, %status, "a call was refused or failed");
            Outcome::Status(status.code(), status.executed())
        }
        Some(Ok(reply)) => {
            check(&world, reply.get_ref(), plan, Direction::Reply);
            keep(reply.into_inner(), &plan.reply, plan, &world, Direction::Reply);
            Outcome::Reply
        }
    };
    world.ended(number, outcome);
}

/// The outcome of a call; `None` if it was dropped.
async fn end(mut call: Call<Parcel>, ending: Ending) -> Option<Result<Response<Parcel>, Status>> {
    let (steps, cancel) = match ending {
        Ending::Await => return Some(call.await),
        Ending::Drop(steps) => (steps, None),
        Ending::Cancel(steps) => (steps, Some(call.cancel_handle())),
    };
    for number in 0..steps {
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await;
        if let Poll::Ready(outcome) = polled {
            return Some(outcome);
        }
        step(number).await;
    }
    cancel?.cancel();
    Some(call.await)
}

/// Lets everything else go on a little: some steps at the same time, then some time.
async fn step(number: usize) {
    if number % 4 == 3 {
        sleep(Duration::from_millis(1)).await;
    } else {
        tokio::task::yield_now().await;
    }
}
