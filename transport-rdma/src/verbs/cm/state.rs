//! What an event means in each state of an id, and how long a state may last. Pure: no C, no clock, no tasks.
//!
//! ```text
//!   ResolvingAddress ─► ResolvingRoute ─► Connecting ─► Established ◄─ Accepting ◄─ Listening
//!                                                            │ disconnect
//!                                                            ├─► Parting ─► destroyed
//!                                                            └─► HeldBack ─► Parting
//!   Watching: the device's own id                                the port is down
//! ```
//!
//! Any event may come in any state: [`State::react`] is total. An id that is dropped in a state without an arrow
//! is destroyed there and then, and the library tells the peer as far as that can be told.

use std::time::Duration;

use super::event::CmEventKind as Kind;

/// What an id is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::verbs) enum State {
    /// Looks for the device that leads to an address.
    ResolvingAddress,
    /// Looks for the way there.
    ResolvingRoute,
    /// Has asked the peer, or is about to.
    Connecting,
    /// Has accepted the peer's request, and waits until it has heard.
    Accepting,
    /// The connection stands.
    Established,
    /// Has disconnected and waits for the peer's answer: until then the library says it again.
    Parting,
    /// Has something to say to the peer first, but its port is down.
    HeldBack,
    /// Takes connect requests.
    Listening,
    /// Is bound to a device, to hear when that is removed.
    Watching,
}

/// What an event means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::verbs) enum Step {
    /// What the state waits for.
    Next,
    /// The peer has answered: the queue pair is made ready, and the peer is told so.
    Answer,
    /// A peer asks to connect.
    Request,
    /// What the state is about has failed or ended.
    Over,
    /// The device is being removed, and the kernel waits until nothing of it is in use.
    Removed,
    /// Means nothing here, and is logged.
    Ignored,
}

impl State {
    /// What an event of this kind means in this state.
    pub(in crate::verbs) fn react(self, kind: Kind) -> Step {
        if kind == Kind::DEVICE_REMOVAL {
            return Step::Removed;
        }
        match self {
            Self::ResolvingAddress => Self::resolving(kind, Kind::ADDR_RESOLVED),
            Self::ResolvingRoute => Self::resolving(kind, Kind::ROUTE_RESOLVED),
            Self::Connecting if kind == Kind::CONNECT_RESPONSE => Step::Answer,
            Self::Connecting | Self::Accepting if kind == Kind::ESTABLISHED => Step::Next,
            Self::Connecting | Self::Accepting => over(kind.ends_attempt()),
            Self::Established => over(kind.ends_connection()),
            Self::Parting | Self::HeldBack if kind.ends_connection() => Step::Next,
            Self::Listening if kind == Kind::CONNECT_REQUEST => Step::Request,
            Self::Parting | Self::HeldBack | Self::Listening | Self::Watching => Step::Ignored,
        }
    }

    fn resolving(kind: Kind, wanted: Kind) -> Step {
        match kind {
            kind if kind == wanted => Step::Next,
            Kind::ADDR_ERROR | Kind::ROUTE_ERROR => Step::Over,
            _ => Step::Ignored,
        }
    }

    /// How long the state may last; `None` is for as long as its owner likes.
    pub(in crate::verbs) fn limit(self) -> Option<Duration> {
        let seconds = match self {
            // The kernel gives up after `RESOLVE_MS`, and says so; this is for a kernel that does not.
            Self::ResolvingAddress | Self::ResolvingRoute => 3,
            // A lost message is repeated after 4.3 s: four tries.
            Self::Connecting | Self::Accepting => 20,
            // One repetition, and its answer.
            Self::Parting => 10,
            // A switch that starts again takes about as long.
            Self::HeldBack => 60,
            Self::Established | Self::Listening | Self::Watching => return None,
        };
        Some(Duration::from_secs(seconds))
    }
}

/// How long the kernel may take for each step of resolving. 2 s: longer than a neighbour takes to answer that is
/// there.
pub(super) const RESOLVE_MS: i32 = 2000;

fn over(is_over: bool) -> Step {
    if is_over { Step::Over } else { Step::Ignored }
}

impl Kind {
    /// Whether it says that a connection's path is lost, and not that the connection manager has ended it.
    pub(super) fn is_about_path(self) -> bool {
        matches!(self, Self::UNREACHABLE | Self::CONNECT_ERROR)
    }

    fn ends_attempt(self) -> bool {
        self.is_about_path() || matches!(self, Self::REJECTED | Self::DISCONNECTED)
    }

    fn ends_connection(self) -> bool {
        self.is_about_path() || matches!(self, Self::DISCONNECTED | Self::TIMEWAIT_EXIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 9] = [
        State::ResolvingAddress,
        State::ResolvingRoute,
        State::Connecting,
        State::Accepting,
        State::Established,
        State::Parting,
        State::HeldBack,
        State::Listening,
        State::Watching,
    ];

    /// The kinds by their names in C, in the order of their numbers.
    const KINDS: [&str; 16] = [
        "ADDR_RESOLVED",
        "ADDR_ERROR",
        "ROUTE_RESOLVED",
        "ROUTE_ERROR",
        "CONNECT_REQUEST",
        "CONNECT_RESPONSE",
        "CONNECT_ERROR",
        "UNREACHABLE",
        "REJECTED",
        "ESTABLISHED",
        "DISCONNECTED",
        "DEVICE_REMOVAL",
        "MULTICAST_JOIN",
        "MULTICAST_ERROR",
        "ADDR_CHANGE",
        "TIMEWAIT_EXIT",
    ];

    /// The kinds that mean `step` in `state`, as the table has them.
    fn meaning(state: State, step: Step) -> String {
        let kinds = (0..).zip(KINDS).filter(|(number, _)| state.react(Kind(*number)) == step);
        let names: Vec<&str> = kinds.map(|(_, name)| name).collect();
        if names.is_empty() { "-".to_owned() } else { names.join(", ") }
    }

    fn row(state: State) -> String {
        let goes_on = [Step::Next, Step::Answer, Step::Request].map(|step| meaning(state, step));
        let goes_on: Vec<_> = goes_on.into_iter().filter(|names| names != "-").collect();
        let goes_on = if goes_on.is_empty() { "-".to_owned() } else { goes_on.join(", ") };
        let limit = state.limit().map_or_else(|| "none".into(), |limit| format!("{limit:?}"));
        format!("| {state:?} | {goes_on} | {} | {limit} |", meaning(state, Step::Over))
    }

    #[test]
    fn the_table_in_the_architecture_is_what_the_code_does() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../ARCHITECTURE.md");
        let document = std::fs::read_to_string(document).expect("the document is there");
        for state in STATES {
            // The last column says in words what happens at the deadline.
            let row = row(state);
            let found = document.lines().any(|line| line.starts_with(&row));
            assert!(found, "the table of events has no row that begins with\n{row}");
        }
    }

    #[test]
    fn the_removal_of_the_device_is_heard_in_every_state() {
        assert!(STATES.iter().all(|state| state.react(Kind::DEVICE_REMOVAL) == Step::Removed));
    }

    #[test]
    fn an_event_that_nobody_knows_means_nothing_in_any_state() {
        for state in STATES {
            for number in (16..64).chain([4711, u32::MAX]) {
                assert_eq!(state.react(Kind(number)), Step::Ignored, "{state:?} {number}");
            }
        }
    }

    #[test]
    fn only_a_listener_is_asked_and_only_who_connects_is_answered() {
        for state in STATES {
            let asked = state.react(Kind::CONNECT_REQUEST) == Step::Request;
            assert_eq!(asked, state == State::Listening, "{state:?}");
            let answered = state.react(Kind::CONNECT_RESPONSE) == Step::Answer;
            assert_eq!(answered, state == State::Connecting, "{state:?}");
        }
    }

    #[test]
    fn a_state_that_waits_for_somebody_else_has_a_deadline() {
        for state in STATES {
            let waits = (0..16).any(|number| state.react(Kind(number)) == Step::Next);
            assert_eq!(state.limit().is_some(), waits, "{state:?}");
        }
    }
}
