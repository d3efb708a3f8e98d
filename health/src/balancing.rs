//! What the servers of a balanced channel say of a service decides which of them get calls.
//!
//! Owns a watch for each endpoint. Does not own the channel, and ends with it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use verbwire::{Channel, EndpointChanges, Endpoints, Error, Status, Target};

use crate::watcher::{State, Watcher};

/// Follows the health of `service`, as `shop.Orders`, at every endpoint of a balanced channel, those that come later included: one that
/// says that it does not serve gets no calls until it says that it does. `""` is the whole server. It never ends before the channel, and
/// does nothing unless it is polled: spawn it.
///
/// `connect` makes the channels over which is asked, each for one endpoint: one of its own, since the balanced channel chooses by itself.
/// An endpoint of which nothing is known gets calls; so does one without a health service, and one that was lost keeps what
/// it said last.
///
/// ```no_run
/// # async fn connect() -> Result<(), verbwire::Error> {
/// use verbwire::{Endpoint, Target};
///
/// let channel = Endpoint::balanced(["tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000"])?.connect().await?;
/// let endpoints = channel.endpoints().expect("it is balanced");
/// let connect = |target: Target| async move { Endpoint::new(&target.to_string())?.connect_once().await };
/// tokio::spawn(verbwire_health::follow(&endpoints, "shop.Orders", connect));
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// Dropping the future ends the watches; what was said last stays.
pub fn follow<C, F>(
    endpoints: &Endpoints,
    service: &str,
    connect: C,
) -> impl Future<Output = ()> + Send + use<C, F>
where
    C: Fn(Target) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Channel, Error>> + Send + 'static,
{
    let (changes, service) = (endpoints.changes(), service.to_owned());
    let watch = move |target: &Target| {
        let (connect, target) = (connect.clone(), target.clone());
        Watcher::new(service.clone(), move || connect(target.clone()))
    };
    run(changes, watch)
}

/// An endpoint and the watch of it, until there is nothing more to learn.
struct Followed {
    target: Target,
    watcher: Option<Watcher>,
}

async fn run(mut changes: EndpointChanges, watch: impl Fn(&Target) -> Watcher) {
    let mut followed: Vec<Followed> = Vec::new();
    while let Some(endpoints) = changes.endpoints() {
        let targets = endpoints.targets();
        followed.retain(|one| targets.contains(&one.target));
        for target in targets {
            if followed.iter().all(|one| one.target != target) {
                followed.push(Followed { watcher: Some(watch(&target)), target });
            }
        }
        // Not kept while this waits.
        drop(endpoints);
        let Some((index, news)) = next(&mut changes, &mut followed).await else { continue };
        let one = &mut followed[index];
        let Some(endpoints) = changes.endpoints() else { return };
        match news {
            // Its own connection tells the channel whether it is there.
            Ok(State::Lost(_)) => {}
            Ok(state) => endpoints.set_serving(&one.target, state.is_serving()),
            Err(_no_health_service) => {
                one.watcher = None;
                endpoints.set_serving(&one.target, true);
            }
        }
    }
}

/// What one of them says; `None` when the endpoints are others.
async fn next(
    changes: &mut EndpointChanges,
    followed: &mut [Followed],
) -> Option<(usize, Result<State, Status>)> {
    let mut changed = pin!(changes.next());
    poll_fn(|cx| {
        for (index, one) in followed.iter_mut().enumerate() {
            if let Some(watcher) = &mut one.watcher
                && let Poll::Ready(news) = watcher.poll_state(cx)
            {
                return Poll::Ready(Some((index, news)));
            }
        }
        changed.as_mut().poll(cx).map(|_gone_or_not| None)
    })
    .await
}
