//! Implementations of methods that have streams, in each form of their trait.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use verbwire::codegen::Stream;
use verbwire::{BoxStream, Request, Response, Status, Streaming};

use super::{arc, boxed, boxed_arc, optional};

/// Says numbers.
#[derive(Debug, Clone, Copy)]
pub struct Counter;

/// Items with the numbers from 1 on, made from them.
#[derive(Debug)]
pub struct Count<T> {
    next: u32,
    last: u32,
    item: fn(u32) -> T,
}

impl<T> Stream for Count<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.next;
        self.next += 1;
        Poll::Ready((next <= self.last).then(|| Ok((self.item)(next))))
    }
}

/// The sum of what comes.
async fn sum<T>(
    mut items: impl Stream<Item = Result<T, Status>> + Unpin,
    number: fn(T) -> u32,
) -> Result<u32, Status> {
    let mut sum = 0;
    while let Some(item) = std::future::poll_fn(|cx| Pin::new(&mut items).poll_next(cx)).await {
        sum += number(item?);
    }
    Ok(sum)
}

/// An implementation whose replies have types of their own.
macro_rules! named {
    ($form:ident, ($($receiver:tt)*) $(, $attribute:meta)?) => {
        $(#[$attribute])?
        impl $form::streams::shapes_server::Shapes for Counter {
            async fn one(
                $($receiver)*,
                request: Request<$form::streams::Item>,
            ) -> Result<Response<$form::streams::Item>, Status> {
                Ok(Response::new(request.into_inner()))
            }

            async fn up(
                $($receiver)*,
                request: Request<Streaming<$form::streams::Item>>,
            ) -> Result<Response<$form::streams::Item>, Status> {
                let number = sum(request.into_inner(), |item| item.number).await?;
                Ok(Response::new($form::streams::Item { number }))
            }

            type DownAllStream = Count<$form::streams::Item>;

            async fn down_all(
                $($receiver)*,
                request: Request<$form::streams::Item>,
            ) -> Result<Response<Self::DownAllStream>, Status> {
                let item = |number| $form::streams::Item { number };
                let count = Count { next: 1, last: request.into_inner().number, item };
                Ok(Response::new(count))
            }

            type BothStream = Streaming<$form::streams::Item>;

            async fn both(
                $($receiver)*,
                request: Request<Streaming<$form::streams::Item>>,
            ) -> Result<Response<Self::BothStream>, Status> {
                Ok(Response::new(request.into_inner()))
            }
        }
    };
}

named!(boxed, (&self), async_trait::async_trait);
named!(arc, (self: Arc<Self>));

/// One that leaves methods out.
macro_rules! partial {
    ($form:ident, ($($receiver:tt)*) $(, $attribute:meta)?) => {
        $(#[$attribute])?
        impl $form::streams::shapes_server::Shapes for Counter {
            async fn down_all(
                $($receiver)*,
                request: Request<$form::streams::Item>,
            ) -> Result<Response<BoxStream<$form::streams::Item>>, Status> {
                let item = |number| $form::streams::Item { number };
                let count = Count { next: 1, last: request.into_inner().number, item };
                Ok(Response::new(Box::pin(count)))
            }
        }
    };
}

partial!(boxed_arc, (self: Arc<Self>), async_trait::async_trait);
partial!(optional, (&self));

#[cfg(test)]
mod tests {
    use verbwire::{Channel, Code};

    use super::super::tests::finish;
    use super::*;

    /// All shapes of the form, through a channel to a service of it.
    macro_rules! assert_works {
        ($form:ident, $channel:expr) => {{
            use $form::streams::{shapes_client::ShapesClient, Item};
            let client = ShapesClient::new($channel);
            let item = |number| Item { number };
            let one = finish(client.one(item(7))).expect("one");
            assert_eq!(one.into_inner().number, 7);
            let items = || Count { next: 1, last: 4, item: |number| Item { number } };
            let up = finish(client.up(Unwrapped(items()))).expect("up");
            assert_eq!(up.into_inner().number, 10);
            let down = finish(client.down_all(item(3))).expect("down").into_inner();
            assert_eq!(finish(sum(down, |item| item.number)).expect("no error"), 6);
            let both = finish(client.both(Unwrapped(items()))).expect("both").into_inner();
            assert_eq!(finish(sum(both, |item| item.number)).expect("no error"), 10);
        }};
    }

    /// Requests, which have no errors.
    struct Unwrapped<T>(Count<T>);

    impl<T> Stream for Unwrapped<T> {
        type Item = T;

        fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
            Pin::new(&mut self.0).poll_next(cx).map(|item| item?.ok())
        }
    }

    #[test]
    fn every_form_has_every_shape() {
        use arc::streams::shapes_server::ShapesServer as ArcServer;
        use boxed::streams::shapes_server::{Shapes, ShapesServer};
        use boxed::streams::Item;

        assert_works!(boxed, Channel::in_process(ShapesServer::new(Counter)));
        assert_works!(arc, Channel::in_process(ArcServer::new(Counter)));
        let object: Arc<dyn Shapes<DownAllStream = Count<Item>, BothStream = Streaming<Item>>> =
            Arc::new(Counter);
        assert_works!(boxed, Channel::in_process(ShapesServer::from_arc(object)));
    }

    /// A stream that is there, and methods of every shape that are not.
    macro_rules! assert_partial {
        ($form:ident) => {{
            use $form::streams::{shapes_client::ShapesClient, Item};
            let client = ShapesClient::in_process(Counter);
            let down = finish(client.down_all(Item { number: 3 })).expect("down").into_inner();
            assert_eq!(finish(sum(down, |item| item.number)).expect("no error"), 6);
            let items = || Unwrapped(Count { next: 1, last: 4, item: |number| Item { number } });
            let left_out = [
                finish(client.one(Item::default())).expect_err("left out"),
                finish(client.up(items())).expect_err("left out"),
                finish(client.both(items())).expect_err("left out"),
            ];
            for (status, name) in left_out.iter().zip(["One", "Up", "Both"]) {
                assert_eq!(status.code(), Code::Unimplemented);
                let words = format!("streams.Shapes.{name} is not implemented by this server");
                assert_eq!(status.message(), words);
            }
        }};
    }

    #[test]
    fn methods_with_streams_may_be_left_out() {
        assert_partial!(boxed_arc);
        assert_partial!(optional);
    }
}
