//! Ids that are not destroyed yet although nobody uses them any more. Pure: time is a parameter.
//!
//! The kernel repeats a disconnect that was lost only as long as its id is there. So an id lingers until the
//! event that it waits for has come, at most for its state's limit, and at most [`MOST`] of a device at a
//! time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::event::CmEventKind;
use super::state::{State, Step};
use crate::verbs::fate::PortNumber;

/// Ids of a device that may linger. 64: each costs a descriptor, and a peer that is there answers within
/// milliseconds.
const MOST: usize = 64;

/// How long an id that was held back is silent once its port is up, or as far as anybody knows: a device says late that
/// a port is down, and routes and neighbours come back later than the port.
const SETTLE: Duration = Duration::from_secs(1);

/// The ids of a device that linger, the oldest first.
pub(in crate::verbs) struct Partings<I> {
    list: VecDeque<Seat<I>>,
}

/// An id with the reason why it lingers.
pub(in crate::verbs) struct Parting<I> {
    pub(in crate::verbs) id: I,
    pub(in crate::verbs) port: PortNumber,
    pub(in crate::verbs) state: State,
}

/// What a device has last said of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::verbs) enum PortState {
    Up,
    Down,
}

struct Seat<I> {
    parting: Parting<I>,
    until: Instant,
    /// When an id that was held back may disconnect.
    speaks: Option<Instant>,
}

impl<I> Partings<I> {
    pub(in crate::verbs) fn new() -> Self {
        Self { list: VecDeque::new() }
    }

    /// Keeps an id. Returns one that has to go: the oldest if there are too many, or this one if its state is
    /// none to linger in.
    pub(in crate::verbs) fn add(
        &mut self,
        parting: Parting<I>,
        port: PortState,
        now: Instant,
    ) -> Option<I> {
        let Some(limit) = parting.state.limit() else { return Some(parting.id) };
        let may_speak = parting.state == State::HeldBack && port == PortState::Up;
        let speaks = may_speak.then(|| now + SETTLE);
        self.list.push_back(Seat { parting, until: now + limit, speaks });
        if self.list.len() <= MOST {
            return None;
        }
        self.list.pop_front().map(|oldest| oldest.parting.id)
    }

    /// The ids, in the order that [`handle_event`](Self::handle_event) counts in.
    pub(in crate::verbs) fn ids(&self) -> impl Iterator<Item = &I> {
        self.list.iter().map(|seat| &seat.parting.id)
    }

    /// An event of the id at `index`. Returns the id if it need not linger any more.
    pub(in crate::verbs) fn handle_event(&mut self, index: usize, kind: CmEventKind) -> Option<I> {
        let seat = self.list.get(index)?;
        match seat.parting.state.react(kind) {
            Step::Ignored => None,
            _ => self.remove(index),
        }
    }

    /// Gives up the id at `index`.
    pub(in crate::verbs) fn remove(&mut self, index: usize) -> Option<I> {
        self.list.remove(index).map(|seat| seat.parting.id)
    }

    /// A port works again.
    pub(in crate::verbs) fn handle_port_up(&mut self, port: PortNumber, now: Instant) {
        for seat in self.held_back(port) {
            seat.speaks = Some(now + SETTLE);
        }
    }

    /// A port is down.
    pub(in crate::verbs) fn handle_port_down(&mut self, port: PortNumber) {
        for seat in self.held_back(port) {
            seat.speaks = None;
        }
    }

    fn held_back(&mut self, port: PortNumber) -> impl Iterator<Item = &mut Seat<I>> {
        let concerned = move |seat: &&mut Seat<I>| {
            seat.parting.state == State::HeldBack && seat.parting.port == port
        };
        self.list.iter_mut().filter(concerned)
    }

    /// When something is due next.
    pub(in crate::verbs) fn poll_timer(&self) -> Option<Instant> {
        self.list.iter().map(|seat| seat.speaks.map_or(seat.until, |at| at.min(seat.until))).min()
    }

    /// Calls `disconnect` on the ids that were held back and need not be any more; returns those whose time is
    /// up.
    pub(in crate::verbs) fn handle_timer(
        &mut self,
        now: Instant,
        disconnect: impl Fn(&I),
    ) -> Vec<I> {
        for seat in self.list.iter_mut().filter(|seat| seat.speaks.is_some_and(|at| at <= now)) {
            disconnect(&seat.parting.id);
            seat.speaks = None;
            seat.parting.state = State::Parting;
            seat.until = State::Parting.limit().map_or(now, |limit| now + limit);
        }
        let mut over = Vec::new();
        while let Some(index) = self.list.iter().position(|seat| seat.until <= now) {
            over.extend(self.remove(index));
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const ONE: PortNumber = PortNumber(1);

    fn parting(id: usize, state: State) -> Parting<usize> {
        Parting { id, port: ONE, state }
    }

    fn ids(partings: &Partings<usize>) -> Vec<usize> {
        partings.ids().copied().collect()
    }

    #[test]
    fn an_id_lingers_until_its_event_and_at_most_for_its_limit() {
        let now = Instant::now();
        let mut partings = Partings::new();
        for id in [1, 2, 3] {
            assert_eq!(partings.add(parting(id, State::Parting), PortState::Up, now), None);
        }
        assert_eq!(partings.handle_event(1, CmEventKind::ESTABLISHED), None);
        assert_eq!(partings.handle_event(1, CmEventKind::DISCONNECTED), Some(2));
        assert_eq!(partings.handle_event(1, CmEventKind::DEVICE_REMOVAL), Some(3));
        assert_eq!(partings.handle_event(7, CmEventKind::DISCONNECTED), None);
        let limit = State::Parting.limit().expect("has one");
        assert_eq!(partings.poll_timer(), Some(now + limit));
        let early = now + limit - Duration::from_millis(1);
        assert_eq!(partings.handle_timer(early, |_| panic!("it has spoken")), []);
        assert_eq!(partings.handle_timer(now + limit, |_| panic!("it has spoken")), [1]);
        assert_eq!(partings.poll_timer(), None);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let now = Instant::now();
        let mut partings = Partings::new();
        for id in 0..MOST {
            assert_eq!(partings.add(parting(id, State::Parting), PortState::Up, now), None);
        }
        assert_eq!(partings.add(parting(MOST, State::Parting), PortState::Up, now), Some(0));
        assert_eq!(ids(&partings).len(), MOST);
    }

    #[test]
    fn an_id_in_a_state_without_a_limit_does_not_linger() {
        let mut partings = Partings::new();
        assert_eq!(
            partings.add(parting(1, State::Established), PortState::Up, Instant::now()),
            Some(1)
        );
    }

    #[test]
    fn what_was_held_back_is_said_when_the_port_has_been_up_for_a_while() {
        let now = Instant::now();
        let mut partings = Partings::new();
        partings.add(parting(1, State::HeldBack), PortState::Up, now);
        let other = Parting { port: PortNumber(2), ..parting(2, State::HeldBack) };
        partings.add(other, PortState::Down, now);
        // The device says late that the port is down.
        partings.handle_port_down(ONE);
        assert_eq!(partings.handle_timer(now + SETTLE, |_| panic!("the port is down")), []);
        let up = now + SETTLE;
        partings.handle_port_up(ONE, up);
        let said = RefCell::new(Vec::new());
        let say = |id: &usize| said.borrow_mut().push(*id);
        assert_eq!(partings.handle_timer(up + SETTLE / 2, say), []);
        assert_eq!(partings.handle_timer(up + SETTLE, say), []);
        assert_eq!(*said.borrow(), [1]);
        let spoken = up + SETTLE;
        let limit = State::Parting.limit().expect("has one");
        assert_eq!(partings.handle_timer(spoken + limit, say), [1]);
        let limit = State::HeldBack.limit().expect("has one");
        assert_eq!(partings.handle_timer(now + limit, say), [2]);
        assert_eq!(*said.borrow(), [1], "nothing is said on a port that is down");
    }

    #[test]
    fn what_was_held_back_in_doubt_is_said_when_the_port_stays_up() {
        let now = Instant::now();
        let mut partings = Partings::new();
        partings.add(parting(1, State::HeldBack), PortState::Up, now);
        assert_eq!(partings.poll_timer(), Some(now + SETTLE));
        let said = RefCell::new(Vec::new());
        assert_eq!(partings.handle_timer(now + SETTLE, |id| said.borrow_mut().push(*id)), []);
        assert_eq!(*said.borrow(), [1]);
    }
}
