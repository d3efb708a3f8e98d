use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::buf::Body;
use crate::config::{Limits, Random};
use crate::message::{CallId, Head, Message};
use crate::proto::hello::Identity;
use crate::transport::{
    Announced, Connection, Flush, Incoming, Outgoing, Placement, PlacementHook, SendError,
    SendHints,
};

struct Anywhere;

impl PlacementHook for Anywhere {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Pool
    }
}

fn side(limits: &Limits) -> LocalSide {
    LocalSide {
        hello: Identity::new(Random::from_seed(1)).hello(limits),
        placement: Arc::new(Anywhere),
        deadline: Instant::now() + Duration::from_secs(30),
        ticket: None,
    }
}

fn target(name: &str) -> Target {
    Target::new("mem", name)
}

async fn pair(name: &str, limits: &Limits) -> (Arc<dyn Connection>, Arc<dyn Connection>) {
    let target = target(name);
    let mut listener = MemTransport.listen(&target).await.expect("free name");
    let accept = async {
        let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("a client knocks");
        accepting.handshake(side(limits)).await.expect("the client waits").connection
    };
    let connect = MemTransport.connect(&target, side(limits));
    let (server, client) = tokio::join!(accept, connect);
    (client.expect("accepted").connection, server)
}

fn cancel(slot: u32) -> Outgoing {
    let head = Head::Cancel { call: CallId { slot, generation: 0 } };
    Outgoing { message: Message::bare(head), hints: SendHints::flush(Flush::Now) }
}

async fn receive(connection: &dyn Connection) -> Result<Vec<Incoming>, Error> {
    let mut received = Vec::new();
    poll_fn(|cx| connection.poll_recv(cx, &mut received)).await?;
    Ok(received)
}

#[tokio::test]
async fn messages_arrive_in_order_and_behind_them_the_end() {
    let (client, server) = pair("order", &Limits::default()).await;
    (0..3).for_each(|slot| client.try_send(cancel(slot)).expect("room"));
    client.close(Error::new(ErrorKind::Closed, "done"));
    let slots: Vec<_> = receive(&*server).await.expect("three messages").into_iter().collect();
    let slots: Vec<_> = slots.iter().filter_map(|one| one.message.head.call()).collect();
    assert_eq!(slots.iter().map(|call| call.slot).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(receive(&*server).await.expect_err("closed").kind(), ErrorKind::Lost);
    assert_eq!(receive(&*client).await.expect_err("closed").to_string(), "done");
}

#[tokio::test]
async fn an_end_that_is_dropped_without_being_closed_ends_the_other() {
    let (client, server) = pair("dropped", &Limits::default()).await;
    client.try_send(cancel(0)).expect("room");
    drop(client);
    assert_eq!(receive(&*server).await.expect("what was sent before").len(), 1);
    assert_eq!(receive(&*server).await.expect_err("dropped").kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_full_queue_gives_the_message_back_and_wakes_when_there_is_room() {
    let (client, server) = pair("full", &Limits::default()).await;
    let sent = (0..).take_while(|slot| client.try_send(cancel(*slot)).is_ok()).count();
    assert!(matches!(client.try_send(cancel(7)), Err(SendError::Full(_))));
    let mut ready = Box::pin(poll_fn(|cx| client.poll_ready(cx)));
    tokio::select! {
        biased;
        () = &mut ready => panic!("the queue is full"),
        received = receive(&*server) => assert_eq!(received.expect("messages").len(), sent),
    }
    ready.await;
    client.try_send(cancel(0)).expect("room again");
}

#[tokio::test]
async fn a_body_beyond_the_limit_ends_the_connection_with_both_numbers() {
    let limits = Limits { max_message_size: 5000, ..Limits::default() };
    let (client, server) = pair("limit", &limits).await;
    let mut long = cancel(0);
    long.message.body = Body::from(bytes::Bytes::from(vec![0; 5001]));
    client.try_send(long).expect("the sender's core checks, not the transport");
    assert!(receive(&*server).await.expect("nothing yet").is_empty());
    let cause = receive(&*server).await.expect_err("violation");
    assert_eq!(
        cause.to_string(),
        "message body of 5001 bytes exceeds max_message_size of 5000 bytes"
    );
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_does_not_accept_is_a_timeout() {
    let target = target("silent");
    let _listener = MemTransport.listen(&target).await.expect("free name");
    let error = MemTransport.connect(&target, side(&Limits::default())).await.err();
    assert!(error.expect("nobody accepts").is_timeout());
}

#[tokio::test]
async fn names_are_taken_while_their_listener_lives() {
    let target = target("name");
    let unreachable = MemTransport.connect(&target, side(&Limits::default())).await.err();
    assert_eq!(unreachable.expect("no listener").kind(), ErrorKind::Unreachable);
    let listener = MemTransport.listen(&target).await.expect("free name");
    assert!(MemTransport.listen(&target).await.is_err());
    drop(listener);
    assert!(MemTransport.listen(&target).await.is_ok());
}
