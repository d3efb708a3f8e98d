//! Why an attempt at a call with a slot does not run, in words: of the call that its slot had, they tell nothing. Nor the id of a
//! session, which is a secret: statuses are logged.

use std::time::Duration;

use super::SessionLimits;
use crate::message::SlotUse;
use crate::status::{Executed, Status};

/// The server does not know the session: whether an earlier attempt ran is not known, either.
pub(super) fn unknown() -> Status {
    let message =
        "the session is not known here: it expired, or the server was started anew; open another";
    Status::failed_precondition(message).with_executed(Executed::Maybe)
}

/// The server keeps no sessions.
pub(crate) fn no_sessions() -> Status {
    let message =
        "the session is not known here: this server keeps none; Builder::sessions lets it";
    Status::failed_precondition(message).with_executed(Executed::Maybe)
}

/// Nobody opens another session for now.
pub(super) fn too_many(whose: &str, limit: &str, most: usize, lease: Duration) -> Status {
    let message = format!(
        "{whose} has {limit} of {most} sessions already, each kept for {lease:?} after its last call"
    );
    Status::resource_exhausted(message).with_executed(Executed::No)
}

pub(super) fn stale(this: SlotUse) -> Status {
    let message = format!(
        "slot {} of the session has had a later call, and sequence {} comes too late",
        this.slot, this.sequence
    );
    Status::aborted(message).with_executed(Executed::Maybe)
}

pub(super) fn another_method(this: SlotUse, now: &str) -> Status {
    let message = format!(
        "sequence {} of slot {} was a call of another method, and cannot be repeated as {now}: give each call a \
         use of its own",
        this.sequence, this.slot
    );
    Status::invalid_argument(message).with_executed(Executed::Maybe)
}

/// Executed maybe: the call that the slot had may have run, and its caller may mean this one by it.
pub(super) fn another_request(this: SlotUse) -> Status {
    let message = format!(
        "sequence {} of slot {} was a call with another request, and this one did not run: give each call a use of its \
         own, and encode what is repeated the same way",
        this.sequence, this.slot
    );
    Status::invalid_argument(message).with_executed(Executed::Maybe)
}

pub(super) fn not_kept(len: usize, limits: &SessionLimits) -> Status {
    let message = format!(
        "the call ran, and its answer of {len} bytes was not kept: max_kept_answer is {} and max_kept_bytes {} \
         bytes",
        limits.max_kept_answer, limits.max_kept_bytes
    );
    Status::data_loss(message).with_executed(Executed::Yes)
}

/// The session is of an earlier epoch.
pub(super) fn over(its: u64, now: u64) -> Status {
    let message =
        format!("the session was opened in epoch {its}, and it is epoch {now} now: open another");
    Status::failed_precondition(message).with_executed(Executed::Maybe)
}
