//! Free buffers, who waits for them, and when a slab is made or given up. Pure: it knows no memory, no device, no
//! clock and no task.
//!
//! Buffers come in slabs, each cut into buffers of one class and registered as a whole. The rules:
//!
//! * **First in, first out.** Within a class nobody overtakes who waits. Slabs are made for the one who has waited
//!   longest over all classes, and for nobody else before: short buffers cannot starve a long one.
//! * **Packed.** Buffers are taken from the oldest slab that has one, so that others become idle.
//! * **Grown by need.** A slab is made when somebody waits, while the bytes of all slabs stay below the limit. Where
//!   there is no room, idle slabs of other classes are given up for it, and only for it.
//! * **Refused.** A slab that the device refuses is halved, down to one buffer. If that is refused too, what all
//!   slabs would have had then is known to be too much: the limit goes below it. Whoever could then never be served
//!   is told; the others wait for what comes back.
//! * **Pinned.** What received messages hold is counted; from the budget on nothing is handed out.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use super::classes::{Class, Classes};

/// A slab among those of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlabNumber(u64);

/// A place in the order of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// Where a buffer belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) class: Class,
    pub(super) slab: SlabNumber,
}

/// A slab that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) place: Place,
    pub(super) chunk_len: usize,
    pub(super) chunks: usize,
}

/// What follows from a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused<W> {
    /// A smaller slab is to be tried.
    Again(Order),
    /// Not even one buffer: these can never be served while the limit is what it is now.
    Final(Vec<W>),
}

/// What is to be done for the one who has waited longest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan<B> {
    /// Nobody waits, or only for what must come back to this stock.
    Nothing,
    /// A slab is being made.
    Making,
    /// The stock may grow, and has no room for that.
    NoRoom,
    /// A slab is to be made, when these buffers of idle ones are given up.
    Make(Order, Vec<B>),
}

/// What must hold over all classes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Most bytes of all slabs.
    pub(super) cap: usize,
    /// About how long a slab is, if its buffers are shorter.
    pub(super) slab_len: usize,
    /// From how many pinned bytes on nothing is handed out.
    pub(super) pinned: usize,
}

/// Buffers `B` of all classes, and those who wait for them, `W`.
pub(super) struct Stock<B, W> {
    classes: Classes,
    shelves: Vec<Shelf<B, W>>,
    limits: Limits,
    /// The cap, or what the device has shown to give.
    limit: usize,
    /// Bytes of all slabs, and of the one being made.
    bytes: usize,
    /// At most one slab is made at a time.
    order: Option<Order>,
    pinned: usize,
    slabs: u64,
    tickets: u64,
    waiting: usize,
}

/// A class.
struct Shelf<B, W> {
    slabs: BTreeMap<SlabNumber, Slab<B>>,
    waiting: VecDeque<(Ticket, W)>,
}

struct Slab<B> {
    chunks: usize,
    free: Vec<B>,
}

impl<B, W> Stock<B, W> {
    /// An empty stock. A cap that is lower than one buffer of the longest class is raised to it.
    pub(super) fn new(classes: Classes, limits: Limits) -> Self {
        let shelf = |_: &usize| Shelf { slabs: BTreeMap::new(), waiting: VecDeque::new() };
        let shelves = classes.lens().iter().map(shelf).collect();
        let cap = limits.cap.max(classes.longest());
        let limits = Limits { cap, ..limits };
        Self {
            classes,
            shelves,
            limits,
            limit: cap,
            bytes: 0,
            order: None,
            pinned: 0,
            slabs: 0,
            tickets: 0,
            waiting: 0,
        }
    }

    pub(super) fn classes(&self) -> &Classes {
        &self.classes
    }

    /// A free buffer, if nobody has waited for one before; rather one that is `wanted`.
    pub(super) fn take(&mut self, class: Class, wanted: impl Fn(&B) -> bool) -> Option<(Place, B)> {
        let is_held_up = self.is_held_up();
        let shelf = &mut self.shelves[class.0];
        if is_held_up || !shelf.waiting.is_empty() {
            return None;
        }
        shelf.take(class, wanted)
    }

    /// Puts a buffer back.
    pub(super) fn put(&mut self, place: Place, chunk: B) {
        let slab = self.shelves[place.class.0].slabs.get_mut(&place.slab);
        slab.expect("a slab is given up only when all its buffers are free").free.push(chunk);
    }

    /// Waits in line.
    pub(super) fn wait(&mut self, class: Class, waiter: W) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.waiting += 1;
        self.shelves[class.0].waiting.push_back((ticket, waiter));
        ticket
    }

    /// Leaves the line, if still in it.
    pub(super) fn leave(&mut self, class: Class, ticket: Ticket) {
        let line = &mut self.shelves[class.0].waiting;
        if let Ok(at) = line.binary_search_by_key(&ticket, |(ticket, _)| *ticket) {
            self.waiting -= 1;
            line.remove(at);
        }
    }

    /// The next one who waits and can be served, the longest first. To be asked until there is none.
    pub(super) fn serve(&mut self) -> Option<(W, Place, B)> {
        if self.waiting == 0 || self.is_held_up() {
            return None;
        }
        let can_serve =
            |shelf: &Shelf<B, W>| shelf.slabs.values().any(|slab| !slab.free.is_empty());
        let class = self.longest_waiting(can_serve)?;
        let shelf = &mut self.shelves[class.0];
        let (place, chunk) = shelf.take(class, |_| true)?;
        let (_, waiter) = shelf.waiting.pop_front()?;
        self.waiting -= 1;
        Some((waiter, place, chunk))
    }

    /// What is to be made now, of at most `room` bytes.
    pub(super) fn plan(&mut self, room: usize) -> Plan<B> {
        if self.order.is_some() {
            return Plan::Making;
        }
        let Some(class) = self.longest_waiting(|_| true).filter(|_| !self.is_held_up()) else {
            return Plan::Nothing;
        };
        let chunk_len = self.classes.lens()[class.0];
        let idle: usize = self.idle_slabs().map(|(_, bytes)| bytes).sum();
        if self.bytes - idle + chunk_len > self.limit {
            return Plan::Nothing;
        }
        if chunk_len > room {
            return Plan::NoRoom;
        }
        let mut given_up = Vec::new();
        while self.bytes + chunk_len > self.limit {
            let Some((place, _)) = self.idle_slabs().next() else { return Plan::Nothing };
            given_up.extend(self.give_up(place));
        }
        let room = room.min(self.limit - self.bytes) / chunk_len;
        let chunks = (self.limits.slab_len / chunk_len).clamp(1, room);
        let place = Place { class, slab: SlabNumber(self.slabs) };
        self.slabs += 1;
        let order = Order { place, chunk_len, chunks };
        self.bytes += order.bytes();
        self.order = Some(order);
        Plan::Make(order, given_up)
    }

    /// The slab of `order` is made; these are its buffers.
    pub(super) fn grown(&mut self, order: Order, free: Vec<B>) {
        self.order = None;
        let slab = Slab { chunks: order.chunks, free };
        self.shelves[order.place.class.0].slabs.insert(order.place.slab, slab);
    }

    /// The device has refused the slab of `order`.
    pub(super) fn refused(&mut self, order: Order) -> Refused<W> {
        self.bytes -= order.bytes();
        if order.chunks > 1 {
            let order = Order { chunks: order.chunks / 2, ..order };
            self.bytes += order.bytes();
            self.order = Some(order);
            return Refused::Again(order);
        }
        self.order = None;
        self.limit = self.limit.min(self.bytes + order.chunk_len - 1);
        let hopeless = self.classes.lens().iter().position(|chunk_len| *chunk_len > self.limit);
        let shelves = self.shelves.iter_mut().skip(hopeless.unwrap_or(usize::MAX));
        let hopeless: Vec<_> = shelves.flat_map(|shelf| shelf.waiting.drain(..)).collect();
        self.waiting -= hopeless.len();
        Refused::Final(hopeless.into_iter().map(|(_, waiter)| waiter).collect())
    }

    /// Forgets what the device has refused: it may give more by now.
    pub(super) fn forget_refusals(&mut self) {
        self.limit = self.limits.cap;
    }

    /// Whether one buffer of this class fits below the limit, with nothing beside it.
    pub(super) fn is_possible(&self, class: Class) -> bool {
        self.classes.lens()[class.0] <= self.limit
    }

    /// A received message holds so many bytes more.
    pub(super) fn pin(&mut self, bytes: usize) {
        self.pinned += bytes;
    }

    /// A received message was dropped that held so many bytes.
    pub(super) fn unpin(&mut self, bytes: usize) {
        self.pinned -= bytes;
    }

    /// Whether there are slabs of which every buffer is free.
    pub(super) fn has_idle(&self) -> bool {
        self.idle_slabs().next().is_some()
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Gives up every idle slab; its buffers.
    pub(super) fn trim(&mut self) -> Vec<B> {
        let idle: Vec<_> = self.idle_slabs().map(|(place, _)| place).collect();
        idle.into_iter().flat_map(|place| self.give_up(place)).collect()
    }

    /// Gives up everything: free buffers, and those who wait.
    pub(super) fn clear(&mut self) -> (Vec<B>, Vec<W>) {
        self.waiting = 0;
        let (mut free, mut waiting) = (Vec::new(), Vec::new());
        for shelf in &mut self.shelves {
            free.extend(shelf.slabs.values_mut().flat_map(|slab| slab.free.drain(..)));
            waiting.extend(shelf.waiting.drain(..).map(|(_, waiter)| waiter));
        }
        (free, waiting)
    }

    /// How much there is of what.
    pub(super) fn amounts(&self) -> Amounts {
        let ordered = self.order.map_or(0, |order| order.bytes());
        let per_class = self.shelves.iter().zip(self.classes.lens());
        let free = per_class.map(|(shelf, chunk_len)| shelf.free() * chunk_len).sum();
        Amounts {
            limit: self.limit,
            slabs: self.bytes - ordered,
            free,
            pinned: self.pinned,
            waiting: self.waiting,
        }
    }

    /// Whether so much is pinned that nothing is handed out.
    pub(super) fn is_held_up(&self) -> bool {
        self.pinned >= self.limits.pinned
    }

    fn longest_waiting(&self, allowed: impl Fn(&Shelf<B, W>) -> bool) -> Option<Class> {
        let classes = self.shelves.iter().enumerate().filter(|(_, shelf)| allowed(shelf));
        let fronts = classes.filter_map(|(class, shelf)| {
            shelf.waiting.front().map(|(ticket, _)| (*ticket, Class(class)))
        });
        fronts.min().map(|(_, class)| class)
    }

    /// Slabs of which every buffer is free, and their bytes; the longest buffers first, which make most room.
    fn idle_slabs(&self) -> impl Iterator<Item = (Place, usize)> {
        let shelves = self.shelves.iter().enumerate().rev();
        shelves.flat_map(|(class, shelf)| {
            let chunk_len = self.classes.lens()[class];
            let idle = shelf.slabs.iter().filter(|(_, slab)| slab.free.len() == slab.chunks);
            idle.map(move |(number, slab)| {
                (Place { class: Class(class), slab: *number }, slab.chunks * chunk_len)
            })
        })
    }

    fn give_up(&mut self, place: Place) -> Vec<B> {
        let slab = self.shelves[place.class.0].slabs.remove(&place.slab);
        let free = slab.map(|slab| slab.free).unwrap_or_default();
        self.bytes -= free.len() * self.classes.lens()[place.class.0];
        free
    }
}

impl<B, W> Shelf<B, W> {
    /// From the oldest slab. Only the buffer that each slab would give is looked at for one that is wanted.
    fn take(&mut self, class: Class, wanted: impl Fn(&B) -> bool) -> Option<(Place, B)> {
        let with_free = || self.slabs.iter().filter(|(_, slab)| !slab.free.is_empty());
        let found = with_free().find(|(_, slab)| slab.free.last().is_some_and(&wanted));
        let slab = *found.or_else(|| with_free().next())?.0;
        let chunk = self.slabs.get_mut(&slab)?.free.pop()?;
        Some((Place { class, slab }, chunk))
    }

    fn free(&self) -> usize {
        self.slabs.values().map(|slab| slab.free.len()).sum()
    }
}

impl Order {
    fn bytes(&self) -> usize {
        self.chunk_len * self.chunks
    }
}

/// How much there is of what, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amounts {
    /// Most that slabs may have.
    pub(super) limit: usize,
    /// In slabs.
    pub(super) slabs: usize,
    /// Of these, in free buffers.
    pub(super) free: usize,
    /// Of these, held by received messages.
    pub(super) pinned: usize,
    /// How many wait; no bytes.
    pub(super) waiting: usize,
}
