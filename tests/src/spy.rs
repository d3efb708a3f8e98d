//! Hears what connections say of their end: the events that verbwire hands to `tracing`.
//!
//! A bad peer sees no more than that its connection closed. Whether it closed for the right reason, only
//! the other side's log says.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::fixture::LONG;

static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Begins to listen, for the whole process.
pub fn listen() {
    static BEGIN: Once = Once::new();
    BEGIN.call_once(|| {
        let set = tracing::subscriber::set_global_default(Spy);
        set.expect("nobody else listens in a test binary");
    });
}

/// Events so far that contain all of `words`.
pub fn count(words: &[&str]) -> usize {
    let has_all = |event: &&String| words.iter().all(|word| event.contains(word));
    heard().iter().filter(has_all).count()
}

/// Waits until `least` events contain all of `words`.
///
/// # Panics
///
/// If they do not come.
pub async fn until(least: usize, words: &[&str]) {
    let deadline = Instant::now() + LONG;
    while count(words) < least {
        assert!(
            Instant::now() < deadline,
            "heard {} of {least} events with {words:?}, the last of all: {:#?}",
            count(words),
            heard().iter().rev().take(5).collect::<Vec<_>>()
        );
        sleep(Duration::from_millis(2)).await;
    }
}

fn heard() -> MutexGuard<'static, Vec<String>> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes every event of verbwire down.
struct Spy;

impl Subscriber for Spy {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("verbwire")
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().target().to_owned());
        event.record(&mut line);
        heard().push(line.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// An event's fields in one line.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").expect("a String takes all text");
    }
}
