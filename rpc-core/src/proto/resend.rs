//! Whether a call whose connection took it down is made again, by the channel and without its caller.
//!
//! At most once per call over another connection, beside once over the first path of its own, and never if a repeat could run a
//! handler twice that must run once. Owns what is known of the attempts at one call; does not make them.

use crate::status::{Code, Executed, Origin, Status};

/// What a repeat of a call may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeatable {
    /// Nothing: part of its request is gone, a stream that has been polled.
    Never,
    /// It is safe if no handler ran.
    IfNotExecuted,
    /// It is safe at the same server, which tells repeats by the slot of the call's session.
    BySlot,
    /// It is safe anyway: the method is idempotent.
    Always,
}

/// Where an attempt that failed left its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// It takes more calls.
    Stays,
    /// It takes none.
    Leaves,
}

/// Which attempt it was that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// That over the first path of a connection, after one over its second. What ends a connection ends both paths, one after the
    /// other, so this one says nothing of other connections.
    SameConnection,
    /// Any other.
    Another,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resend {
    /// The call has ended.
    No,
    /// It is made again, to whichever address.
    Anywhere,
    /// It is made again, to the address that it went to.
    SameAddress,
}

/// The attempts at one call.
#[derive(Debug, Default)]
pub struct Attempts {
    /// How the last one but this ended. What it says of whether the handler ran is true of all before it, too.
    before: Option<Status>,
    /// Whether one was made because of a connection.
    is_resent: bool,
}

impl Attempts {
    /// An attempt ended with `status`. Says what to do, and takes the status along if that is another attempt.
    ///
    /// # Errors
    ///
    /// How the call ended.
    pub fn handle_end(
        &mut self,
        status: Status,
        connection: Connection,
        over: Over,
        repeatable: Repeatable,
    ) -> Result<Resend, Status> {
        let status = self.overall(status);
        if self.is_resent && over == Over::Another {
            return Err(status);
        }
        match resend(&status, connection, repeatable) {
            Resend::No => Err(status),
            again => {
                self.is_resent = true;
                self.before = Some(status);
                Ok(again)
            }
        }
    }

    /// Another attempt follows, since the caller asked for that, after one that ended with `status`, which is true of all.
    pub fn handle_retry(&mut self, status: Status) {
        self.before = Some(status);
    }

    /// No attempt can be made, for this reason: how the call ended. Where there was one before, its end is what the caller
    /// needs to know.
    pub fn handle_none(&mut self, reason: Status) -> Status {
        self.before.take().unwrap_or(reason)
    }

    /// How a call ended whose last attempt ended so.
    pub fn overall(&self, status: Status) -> Status {
        let before = self.before.as_ref().map(Status::executed);
        match (before, status.executed()) {
            (Some(Executed::Yes), _) => status.with_executed(Executed::Yes),
            (Some(Executed::Maybe), Executed::No) => status.with_executed(Executed::Maybe),
            _ => status,
        }
    }
}

fn resend(status: &Status, connection: Connection, repeatable: Repeatable) -> Resend {
    // A server that drains answers late requests by a status of its own.
    let is_refused = connection == Connection::Leaves
        && status.code() == Code::Unavailable
        && status.executed() == Executed::No;
    if status.origin() != Origin::Transport && !is_refused {
        return Resend::No;
    }
    match (status.executed(), repeatable) {
        (_, Repeatable::Never) | (Executed::Yes, _) => Resend::No,
        // Other servers do not know its session.
        (_, Repeatable::BySlot) => Resend::SameAddress,
        (Executed::No, _) | (Executed::Maybe, Repeatable::Always) => Resend::Anywhere,
        (Executed::Maybe, Repeatable::IfNotExecuted) => Resend::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(origin: Origin, executed: Executed) -> Status {
        Status::unavailable("as told").with_origin(origin).with_executed(executed)
    }

    #[test]
    fn what_the_connection_ended_is_repeated_as_far_as_that_is_safe() {
        use Repeatable::{Always, BySlot, IfNotExecuted, Never};
        use Resend::{Anywhere, No, SameAddress};
        for (executed, rows) in [
            (
                Executed::No,
                [(Never, No), (IfNotExecuted, Anywhere), (BySlot, SameAddress), (Always, Anywhere)],
            ),
            (
                Executed::Maybe,
                [(Never, No), (IfNotExecuted, No), (BySlot, SameAddress), (Always, Anywhere)],
            ),
            (Executed::Yes, [(Never, No), (IfNotExecuted, No), (BySlot, No), (Always, No)]),
        ] {
            for (repeatable, expected) in rows {
                let status = ended(Origin::Transport, executed);
                let decided = resend(&status, Connection::Leaves, repeatable);
                assert_eq!(decided, expected, "{executed:?} {repeatable:?}");
            }
        }
    }

    #[test]
    fn what_a_peer_or_this_side_says_is_final_unless_a_leaving_server_refuses() {
        use Connection::{Leaves, Stays};
        for (status, connection, expected) in [
            (ended(Origin::Peer, Executed::No), Stays, Resend::No),
            (ended(Origin::Peer, Executed::No), Leaves, Resend::Anywhere),
            (ended(Origin::Peer, Executed::Maybe), Leaves, Resend::No),
            (ended(Origin::Local, Executed::Maybe), Leaves, Resend::No),
            (Status::not_found("").with_executed(Executed::No), Leaves, Resend::No),
            (Status::deadline_exceeded("").with_executed(Executed::No), Leaves, Resend::No),
        ] {
            let words = format!("{status:?} {connection:?}");
            assert_eq!(resend(&status, connection, Repeatable::Always), expected, "{words}");
        }
    }

    #[test]
    fn a_call_is_made_again_once() {
        let mut attempts = Attempts::default();
        let mut end = || {
            let status = ended(Origin::Transport, Executed::No);
            attempts.handle_end(status, Connection::Leaves, Over::Another, Repeatable::Always)
        };
        assert_eq!(end().expect("again"), Resend::Anywhere);
        assert_eq!(end().expect_err("once").executed(), Executed::No);
    }

    #[test]
    fn a_call_that_fell_back_to_the_first_path_of_a_dying_connection_is_made_again_once_more() {
        let mut attempts = Attempts::default();
        let mut end = |over| {
            let status = ended(Origin::Transport, Executed::No);
            attempts.handle_end(status, Connection::Leaves, over, Repeatable::IfNotExecuted)
        };
        assert_eq!(end(Over::Another).expect("to the first path"), Resend::Anywhere);
        assert_eq!(end(Over::SameConnection).expect("to the next"), Resend::Anywhere);
        end(Over::Another).expect_err("once over another connection");
    }

    /// The second attempt did not run, and the first one may have.
    #[test]
    fn not_executed_is_only_said_if_it_is_true_of_both_attempts() {
        for (first, last, expected) in [
            (Executed::Maybe, Executed::No, Executed::Maybe),
            (Executed::Maybe, Executed::Yes, Executed::Yes),
            (Executed::No, Executed::No, Executed::No),
            (Executed::No, Executed::Maybe, Executed::Maybe),
        ] {
            let mut attempts = Attempts::default();
            let status = ended(Origin::Transport, first);
            attempts
                .handle_end(status, Connection::Leaves, Over::Another, Repeatable::Always)
                .expect("again");
            assert_eq!(attempts.overall(ended(Origin::Peer, last)).executed(), expected);
            let status = ended(Origin::Peer, last);
            let ended =
                attempts.handle_end(status, Connection::Stays, Over::Another, Repeatable::Always);
            assert_eq!(ended.expect_err("final").executed(), expected, "{first:?} {last:?}");
        }
    }

    /// The first attempt ran, and the retry of it did not.
    #[test]
    fn what_ran_once_is_not_said_to_have_not() {
        let mut attempts = Attempts::default();
        attempts.handle_retry(ended(Origin::Peer, Executed::Yes));
        let last = ended(Origin::Transport, Executed::No);
        let again =
            attempts.handle_end(last, Connection::Leaves, Over::Another, Repeatable::Always);
        assert_eq!(again.expect_err("it ran").executed(), Executed::Yes);
    }

    #[test]
    fn a_call_that_cannot_be_made_again_ends_as_it_did_at_first() {
        let mut attempts = Attempts::default();
        let first = ended(Origin::Transport, Executed::Maybe).with_message("first".to_owned());
        attempts
            .handle_end(first, Connection::Leaves, Over::Another, Repeatable::Always)
            .expect("again");
        let none = Status::unavailable("no connection").with_executed(Executed::No);
        let ended = attempts.handle_none(none);
        assert_eq!((ended.message(), ended.executed()), ("first", Executed::Maybe));
        let none = Attempts::default().handle_none(Status::unavailable("no connection"));
        assert_eq!(none.message(), "no connection");
    }
}
