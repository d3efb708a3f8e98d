//! The attempts at a call over a channel that makes it again.
//!
//! Owns what is known of them and the wait before the next; [`proto::resend`](crate::proto::resend) and
//! [`proto::retry`](crate::proto::retry) have the rules.

use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{mem, ptr};

use tokio::time::Instant;

use super::link::Link;
use super::managed::Managed;
use crate::backoff::Backoff;
use crate::error_details::RetryInfo;
use crate::proto::resend::{Attempts, Over, Repeatable};
use crate::proto::retry::RetryPolicy;
use crate::status::Status;

/// Made when the first attempt fails, or for a request with a policy of its own.
#[derive(Default)]
pub(super) struct History {
    pub(super) attempts: Attempts,
    policy: Option<Arc<RetryPolicy>>,
    /// Of the path that the last attempt failed on, if it was a second one: the first beside it.
    first: Weak<Link>,
    /// Of the policy, once it was asked.
    backoff: Option<Backoff>,
    /// Attempts that were made because of the policy.
    retries: u32,
}

impl History {
    pub(super) fn of(policy: Arc<RetryPolicy>) -> Self {
        Self { policy: Some(policy), ..Self::default() }
    }

    /// Which attempt it was that failed on this path.
    pub(super) fn over(&mut self, failed: &Arc<Link>) -> Over {
        let first =
            mem::replace(&mut self.first, failed.first().map_or_else(Weak::new, Arc::downgrade));
        match ptr::eq(first.as_ptr(), Arc::as_ptr(failed)) {
            true => Over::SameConnection,
            false => Over::Another,
        }
    }

    /// Whether the request has a policy of its own.
    pub(super) fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// An attempt ended with `status`, and is not made again because of its connection. How long to wait before it is made again because of
    /// a policy; `None` if it is not.
    pub(super) fn retry_after(
        &mut self,
        managed: &Managed,
        status: &Status,
        repeatable: Repeatable,
        deadline: Instant,
    ) -> Option<Duration> {
        let policy = Arc::clone(self.policy.as_ref().or(managed.retry())?);
        if !policy.is_failure(status) {
            return None;
        }
        // What failed costs a token, whether it is made again or not.
        let has_budget = managed.with_retries(|budget| budget.handle_failure());
        if !has_budget || !policy.allows(status, self.retries + 1, repeatable) {
            return None;
        }
        let (first, longest) = policy.backoff;
        let new = || Backoff::new(first, longest, managed.random().clone());
        let wait = self.backoff.get_or_insert_with(new).handle_failure();
        let wait = wait.max(told(status).unwrap_or_default());
        let due = Instant::now().checked_add(wait)?;
        self.retries += 1;
        (due < deadline).then_some(wait)
    }
}

/// When the server wants to be asked again.
fn told(status: &Status) -> Option<Duration> {
    if status.details().is_empty() {
        return None;
    }
    status.error_details().ok()?.retry_info().and_then(RetryInfo::delay)
}
