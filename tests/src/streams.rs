//! Streams for cases and handlers: from a list, from a channel, from steps that wait.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use verbwire::codegen::Stream;

/// The items of an iterator, as a stream that is always ready.
#[derive(Debug)]
pub struct Items<I>(I);

/// A stream of `items`.
pub fn items<I: IntoIterator>(items: I) -> Items<I::IntoIter> {
    Items(items.into_iter())
}

impl<I: Iterator + Unpin> Stream for Items<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

/// What a case sends while a call runs. `Sender::closed` says when the stream is dropped.
#[derive(Debug)]
pub struct Fed<T>(mpsc::Receiver<T>);

/// A stream and what feeds it, with room for one item.
pub fn fed<T>() -> (mpsc::Sender<T>, Fed<T>) {
    let (sender, receiver) = mpsc::channel(1);
    (sender, Fed(receiver))
}

impl<T> Stream for Fed<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}

type Step<S, T> = Pin<Box<dyn Future<Output = Option<(T, S)>> + Send>>;

/// A stream of what steps give, each from the state that the one before left.
pub struct Steps<S, T, F> {
    take: F,
    running: Option<Step<S, T>>,
}

/// A stream whose items `take` makes, until it makes none.
pub fn steps<S, T, F, Fut>(state: S, take: F) -> Steps<S, T, impl FnMut(S) -> Step<S, T>>
where
    F: Fn(S) -> Fut,
    Fut: Future<Output = Option<(T, S)>> + Send + 'static,
{
    let take = move |state| Box::pin(take(state)) as Step<S, T>;
    let running = Some(take(state));
    Steps { take, running }
}

impl<S, T, F: FnMut(S) -> Step<S, T> + Unpin> Stream for Steps<S, T, F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(running) = &mut self.running else { return Poll::Ready(None) };
        let made = std::task::ready!(running.as_mut().poll(cx));
        Poll::Ready(match made {
            Some((item, state)) => {
                self.running = Some((self.take)(state));
                Some(item)
            }
            None => {
                self.running = None;
                None
            }
        })
    }
}
