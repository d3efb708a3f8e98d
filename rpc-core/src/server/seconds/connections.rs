//! The connections that a server serves, each with its paths.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::Upgrade;
use super::newcomers::{Arrival, NewcomerCounts, Newcomers};
use crate::error::{Error, ErrorKind};
use crate::paths::{Line, Paths};
use crate::proto::tickets::{Refused, TicketCounts, Tickets, TooMany};
use crate::request::Who;
use crate::transport::{Connection, Path, Ticket};

/// How long a ticket admits. 30 s: connecting over RDMA takes up to 20 where a message of the connection manager is lost.
const LIFETIME: Duration = Duration::from_secs(30);

/// Tickets that are out at a time. 16,384: that many clients may come back at one moment; the others ask again.
const MOST_TICKETS: usize = 1 << 14;

/// The connections of a server, to look at and to end. Cheap to clone; it shows those that are served now, and none before and
/// after that.
#[derive(Clone)]
pub struct Connections(Arc<Table>);

struct Table {
    /// In the order of their numbers, which are random.
    entries: Mutex<BTreeMap<u64, Arc<Entry>>>,
    tickets: Mutex<Tickets>,
    newcomers: Arc<Newcomers>,
}

/// A connection that is served.
pub(in crate::server) struct Entry {
    number: u64,
    incarnation: u64,
    upgrade: Upgrade,
    who: Who,
    first: Line,
    second: Mutex<Seconds>,
    switches: AtomicU64,
    /// Taken from before the handshake of a second path until nothing can come over it any more.
    pub(in crate::server) seat: Semaphore,
    /// Set when the first path has ended, or is to.
    gone: watch::Sender<bool>,
}

struct Seconds {
    line: Option<Line>,
    why_not: String,
}

impl Connections {
    pub(in crate::server) fn new() -> Self {
        let tickets = Mutex::new(Tickets::new(LIFETIME, MOST_TICKETS));
        let newcomers = Arc::default();
        Self(Arc::new(Table { entries: Mutex::default(), tickets, newcomers }))
    }

    /// Those that are served now, each with all its paths.
    pub fn list(&self) -> Vec<ServedConnection> {
        let entries: Vec<_> = lock(&self.0.entries).values().cloned().collect();
        let of = |entry| ServedConnection { entry, connections: self.clone() };
        entries.into_iter().map(of).collect()
    }

    /// What became of those who came for a second path.
    pub fn tickets(&self) -> TicketCounts {
        lock(&self.0.tickets).counts()
    }

    /// What became of all who came, over first and second paths.
    pub fn newcomers(&self) -> NewcomerCounts {
        self.0.newcomers.counts()
    }

    /// Somebody has come, who has a place among those that shake hands.
    pub(in crate::server) fn arrival(&self, place: OwnedSemaphorePermit) -> Arrival {
        Arrival::new(Arc::clone(&self.0.newcomers), place)
    }

    pub(super) fn find(&self, number: u64) -> Option<Arc<Entry>> {
        lock(&self.0.entries).get(&number).cloned()
    }

    /// Lists a connection until what is returned is dropped.
    pub(in crate::server) fn insert(&self, entry: Entry) -> Listed {
        let entry = Arc::new(entry);
        lock(&self.0.entries).insert(entry.number, Arc::clone(&entry));
        Listed { entry, connections: self.clone() }
    }

    /// Gives out a ticket; returns how long it admits.
    pub(super) fn issue(&self, now: Instant, ticket: Ticket) -> Result<Duration, TooMany> {
        let mut tickets = lock(&self.0.tickets);
        tickets.issue(now, ticket)?;
        Ok(tickets.lifetime())
    }

    /// Whose second path the bearer of a ticket is.
    pub(in crate::server) fn admit(&self, shown: Option<Ticket>) -> Result<Arc<Entry>, Refused> {
        let number = lock(&self.0.tickets).redeem(Instant::now(), shown)?;
        // Its connection may have ended since.
        self.find(number).ok_or(Refused::Expired)
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl Entry {
    pub(in crate::server) fn new(
        (number, incarnation): (u64, u64),
        first: Line,
        upgrade: Upgrade,
        who: Who,
    ) -> Self {
        let why_not = match &upgrade {
            Upgrade::Never(why) => why.to_string(),
            Upgrade::To(_) => "the client has not asked for one".to_owned(),
        };
        Self {
            number,
            incarnation,
            upgrade,
            who,
            first,
            second: Mutex::new(Seconds { line: None, why_not }),
            switches: AtomicU64::new(0),
            seat: Semaphore::new(1),
            gone: watch::Sender::new(false),
        }
    }

    /// As the server's HELLO says it.
    pub(in crate::server) fn number(&self) -> u64 {
        self.number
    }

    /// The client's.
    pub(in crate::server) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(in crate::server) fn who(&self) -> &Who {
        &self.who
    }

    pub(super) fn upgrade(&self) -> &Upgrade {
        &self.upgrade
    }

    pub(super) fn path(&self) -> Path {
        self.first.connection.path()
    }

    /// Resolves when the first path has ended, or is to.
    pub(in crate::server) async fn gone(&self) {
        // The sender lives as long as this.
        let mut gone = self.gone.subscribe();
        let _gone = gone.wait_for(|gone| *gone).await;
    }

    /// The second path can be used.
    pub(in crate::server) fn begin_second(&self, line: Line) {
        self.switches.fetch_add(1, Ordering::Relaxed);
        lock(&self.second).line = Some(line);
    }

    /// The second path has ended.
    pub(in crate::server) fn end_second(&self, why: &str) {
        let mut second = lock(&self.second);
        second.line = None;
        why.clone_into(&mut second.why_not);
    }

    pub(in crate::server) fn note_why_not(&self, why: &str) {
        why.clone_into(&mut lock(&self.second).why_not);
    }

    /// Closes the second path, if there is one: its client has given it up.
    pub(in crate::server) fn close_second(&self, why: &str) {
        let line = lock(&self.second).line.clone();
        if let Some(line) = line {
            line.connection.close(Error::new(ErrorKind::Closed, why));
        }
    }

    async fn retire(&self) {
        self.gone.send_replace(true);
        let second = lock(&self.second).line.clone();
        self.first.connection.retire().await;
        if let Some(second) = second {
            second.connection.retire().await;
        }
        // One whose handshake is under way.
        let _nobody = self.seat.acquire().await;
    }

    fn paths(&self) -> Paths {
        let second = lock(&self.second);
        Paths {
            first: self.first.info(),
            second: second.line.as_ref().map(Line::info),
            why_not: second.why_not.clone(),
            switches: self.switches.load(Ordering::Relaxed),
        }
    }
}

/// Keeps a connection listed. When it is dropped, its second path ends, and its ticket admits nobody any more.
pub(in crate::server) struct Listed {
    entry: Arc<Entry>,
    connections: Connections,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let number = self.entry.number;
        lock(&self.connections.0.entries).remove(&number);
        lock(&self.connections.0.tickets).forget(number);
        self.entry.gone.send_replace(true);
    }
}

/// A connection that a server serves, or has served.
#[derive(Clone)]
pub struct ServedConnection {
    pub(super) entry: Arc<Entry>,
    connections: Connections,
}

impl ServedConnection {
    /// Its number among all connections of this server: random, and the same in the client's HELLO exchange.
    pub fn number(&self) -> u64 {
        self.entry.number
    }

    /// Its paths, as they are now.
    pub fn paths(&self) -> Paths {
        self.entry.paths()
    }

    /// Ends it, on every path: its handlers are dropped, and its client's calls end with `Unavailable`. Returns when that
    /// client can write no more byte into this process over it, and nothing more of it is received. The client may connect again.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is ready, the connection ends all the same; what is lost is only the news when.
    pub async fn retire(&self) {
        lock(&self.connections.0.tickets).forget(self.entry.number);
        self.entry.retire().await;
    }
}

#[cfg(test)]
impl ServedConnection {
    /// Ends the second path alone, as its device would.
    pub(crate) fn close_second(&self, why: &str) {
        self.entry.close_second(why);
    }
}

impl fmt::Debug for ServedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServedConnection({:#x}, {})", self.entry.number, self.entry.paths())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
