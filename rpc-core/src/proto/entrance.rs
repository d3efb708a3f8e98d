//! Whether a call's handler was entered, where something stands before it that may take its time or not let the call in.
//!
//! ```text
//!              enter                       enter
//!   Waiting ──────────► Entered ◄──────────────────── Apart (goes on, whoever asked for it)
//!      │  go_apart                                      ▲
//!      ├────────────────────────────────────────────────┘
//!      │  stop
//!      └──────────► Closed: nothing enters any more
//! ```
//!
//! Who ends a call asks here what to say of it, and by that closes the entrance: so a call of which *not executed* was
//! said does not run later, and one of which *executed* was said was entered. A plain service has no entrance: to call it
//! is to enter it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use crate::status::{Executed, Status};

const WAITING: u8 = 0;
const APART: u8 = 1;
const ENTERED: u8 = 2;
const CLOSED: u8 = 3;

/// The entrance of one call, shared by those who may let it in and those who may end it.
#[derive(Debug, Default)]
pub struct Entrance {
    state: AtomicU8,
    /// That of what goes on apart, once that is known.
    apart: OnceLock<Arc<Entrance>>,
}

impl Entrance {
    /// The handler is about to be entered.
    ///
    /// # Errors
    ///
    /// Its caller has been told that it was not.
    pub fn enter(&self) -> Result<(), Status> {
        self.change(ENTERED)
    }

    /// The call is handed to something that goes on without its caller, and of which nothing is known yet.
    ///
    /// # Errors
    ///
    /// As for [`enter`](Self::enter).
    pub fn go_apart(&self) -> Result<(), Status> {
        self.change(APART)
    }

    /// What goes on apart enters there.
    pub fn follow(&self, apart: Arc<Self>) {
        // A second run of a call that goes on meets the first one.
        let _is_known = self.apart.set(apart);
    }

    /// The call ends now: what to say of it. Where the handler was not entered, and the call does not go on apart, it
    /// cannot be entered any more.
    pub fn stop(&self) -> Executed {
        let closed =
            self.state.compare_exchange(WAITING, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        match closed {
            Ok(_) | Err(CLOSED) => Executed::No,
            Err(_) => self.so_far(),
        }
    }

    /// What can be said of the call without closing the entrance.
    pub fn so_far(&self) -> Executed {
        match self.state.load(Ordering::Acquire) {
            ENTERED => Executed::Yes,
            CLOSED => Executed::No,
            APART if self.apart.get().is_some_and(|apart| apart.is_entered()) => Executed::Yes,
            _ => Executed::Maybe,
        }
    }

    fn is_entered(&self) -> bool {
        self.state.load(Ordering::Acquire) == ENTERED
    }

    /// Goes on to `next`, unless it is closed or further already.
    fn change(&self, next: u8) -> Result<(), Status> {
        let further = |state| (state < next).then_some(next);
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, further) {
            Err(CLOSED) => Err(closed()),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// What `entrance` says of a call that ends now; a call without one was entered when it was called.
pub(crate) fn stop(entrance: Option<&Entrance>) -> Executed {
    entrance.map_or(Executed::Yes, Entrance::stop)
}

fn closed() -> Status {
    let message = "this call has ended, not executed: it cannot be run any more";
    Status::cancelled(message).with_executed(Executed::No)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_not_to_have_run_is_not_entered_any_more() {
        let entrance = Entrance::default();
        assert_eq!(entrance.so_far(), Executed::Maybe);
        assert_eq!(entrance.stop(), Executed::No);
        let status = entrance.enter().expect_err("closed");
        assert_eq!(status.executed(), Executed::No);
        entrance.go_apart().expect_err("closed");
        assert_eq!((entrance.stop(), entrance.so_far()), (Executed::No, Executed::No));
    }

    #[test]
    fn what_was_entered_stays_so() {
        let entrance = Entrance::default();
        entrance.enter().expect("open");
        entrance.go_apart().expect("an earlier run was entered");
        entrance.enter().expect("again");
        assert_eq!((entrance.stop(), entrance.so_far()), (Executed::Yes, Executed::Yes));
        entrance.enter().expect("nobody was told that it did not run");
    }

    #[test]
    fn what_goes_on_apart_has_perhaps_run_until_it_is_entered() {
        let (entrance, apart) = (Entrance::default(), Arc::<Entrance>::default());
        entrance.go_apart().expect("open");
        assert_eq!(entrance.stop(), Executed::Maybe);
        entrance.follow(Arc::clone(&apart));
        assert_eq!(entrance.stop(), Executed::Maybe);
        apart.enter().expect("to stop the one does not stop the other");
        assert_eq!(entrance.stop(), Executed::Yes);
    }
}
