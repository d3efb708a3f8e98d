//! The one timer of a driver.
//!
//! A driver waits for the earliest deadline of its calls, which changes as calls come and go. This keeps
//! one timer and moves it only when the moment differs.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::transport::news::News;

/// A timer that is set anew on each poll.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    news: News,
}

impl Alarm {
    /// Ready once `at` has come; never, without a moment to wait for.
    pub(crate) fn poll(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> Poll<Instant> {
        let Some(at) = at else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
            self.news.renew();
        }
        self.news.poll(cx, |cx| sleep.as_mut().poll(cx)).map(|()| Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn the_alarm_follows_the_moment_it_is_asked_for() {
        let begin = Instant::now();
        let mut alarm = Alarm::default();
        let at = |ms| Some(begin + Duration::from_millis(ms));
        poll_fn(|cx| {
            assert!(alarm.poll(None, cx).is_pending());
            assert!(alarm.poll(at(90), cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let rang = poll_fn(|cx| alarm.poll(at(30), cx)).await;
        assert_eq!(rang - begin, Duration::from_millis(30));
        let rang = poll_fn(|cx| alarm.poll(at(40), cx)).await;
        assert_eq!(rang - begin, Duration::from_millis(40));
    }
}
