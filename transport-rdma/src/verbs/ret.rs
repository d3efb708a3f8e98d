//! How C says that a call failed, turned into `Result`.
//!
//! The libraries have five conventions, and devices deviate from them. Each has a function here, and nothing
//! else of this fence looks at a return value:
//!
//! ```text
//!   zero_or_errno   0, else an errno, positive or negated (siw); -1 means that errno holds it
//!   minus_one       0, else -1 with errno (librdmacm)
//!   non_null        a pointer, else null with errno
//!   count           a count, else a negative number
//!   posted          as zero_or_errno, and failed also if the bad work request is set (siw returns 0 then)
//! ```
//!
//! Owns no state. Numbers that nobody knows stay numbers.

use std::io;
use std::ptr::NonNull;

use crate::nic::NicError;

/// A call into a C library that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {errno}")]
pub(super) struct CallError {
    pub(super) call: &'static str,
    pub(super) errno: Errno,
}

/// An errno, positive. 0 where C failed without saying why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Errno(pub(super) i32);

impl Errno {
    /// What the last failed call of this thread left.
    pub(super) fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// From a returned number of either sign.
    pub(super) fn returned(number: i32) -> Self {
        Self(number.checked_abs().unwrap_or(i32::MAX))
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("no reason given (errno 0)"),
            errno => io::Error::from_raw_os_error(errno).fmt(f),
        }
    }
}

impl From<CallError> for NicError {
    fn from(error: CallError) -> Self {
        Self { verb: error.call, reason: error.errno.to_string() }
    }
}

impl CallError {
    /// The same for a [`NicError`], with what to do about it.
    pub(super) fn advise(self, advice: &str) -> NicError {
        NicError { verb: self.call, reason: format!("{}; {advice}", self.errno) }
    }
}

/// 0 is success. Everything else is an errno of either sign, but for -1, with which some providers say that
/// errno holds it.
pub(super) fn zero_or_errno(call: &'static str, returned: i32) -> Result<(), CallError> {
    let last = Errno::last();
    match returned {
        0 => Ok(()),
        -1 if last != Errno(0) => Err(CallError { call, errno: last }),
        number => Err(CallError { call, errno: Errno::returned(number) }),
    }
}

/// 0 is success, -1 a failure with errno.
pub(super) fn minus_one(call: &'static str, returned: i32) -> Result<(), CallError> {
    match returned {
        0 => Ok(()),
        -1 => Err(CallError { call, errno: Errno::last() }),
        // Not documented, but a number is worth more than an old errno.
        number => Err(CallError { call, errno: Errno::returned(number) }),
    }
}

/// A pointer is success, null a failure with errno.
pub(super) fn non_null<T>(call: &'static str, returned: *mut T) -> Result<NonNull<T>, CallError> {
    NonNull::new(returned).ok_or_else(|| CallError { call, errno: Errno::last() })
}

/// A count is success, a negative number a failure: a negated errno, as far as it means anything.
pub(super) fn count(call: &'static str, returned: i32) -> Result<usize, CallError> {
    usize::try_from(returned).map_err(|_| CallError { call, errno: Errno::returned(returned) })
}

/// Success is 0 and no bad work request.
pub(super) fn posted<T>(call: &'static str, returned: i32, bad: *const T) -> Result<(), CallError> {
    match (returned, bad.is_null()) {
        (0, true) => Ok(()),
        (0, false) => Err(CallError { call, errno: Errno(libc::EINVAL) }),
        (number, _) => Err(CallError { call, errno: Errno::returned(number) }),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;

    const CALL: &str = "ibv_something";

    fn failed(errno: i32) -> CallError {
        CallError { call: CALL, errno: Errno(errno) }
    }

    /// Makes errno `ENOENT`, as a failed call leaves it.
    fn leave_errno() {
        std::fs::read_dir("").expect_err("no folder has this name");
    }

    #[test]
    fn an_errno_may_come_with_either_sign() {
        assert_eq!(zero_or_errno(CALL, 0), Ok(()));
        assert_eq!(zero_or_errno(CALL, libc::ENOMEM), Err(failed(libc::ENOMEM)));
        assert_eq!(zero_or_errno(CALL, -libc::ENOMEM), Err(failed(libc::ENOMEM)));
        assert_eq!(zero_or_errno(CALL, i32::MIN), Err(failed(i32::MAX)));
    }

    #[test]
    fn minus_one_says_that_errno_holds_the_reason() {
        leave_errno();
        assert_eq!(minus_one(CALL, -1), Err(failed(libc::ENOENT)));
        leave_errno();
        assert_eq!(zero_or_errno(CALL, -1), Err(failed(libc::ENOENT)));
        assert_eq!(minus_one(CALL, -libc::EINVAL), Err(failed(libc::EINVAL)));
        assert_eq!(minus_one(CALL, 0), Ok(()));
    }

    #[test]
    fn null_says_that_errno_holds_the_reason() {
        leave_errno();
        assert_eq!(non_null::<u8>(CALL, null_mut()), Err(failed(libc::ENOENT)));
        let mut value = 1_u8;
        assert!(non_null(CALL, &raw mut value).is_ok());
    }

    #[test]
    fn a_negative_count_is_a_failure() {
        assert_eq!(count(CALL, 3), Ok(3));
        assert_eq!(count(CALL, -libc::EIO), Err(failed(libc::EIO)));
    }

    #[test]
    fn a_post_that_returns_zero_has_failed_if_a_work_request_is_bad() {
        let work = 1_u8;
        assert_eq!(posted(CALL, 0, null::<u8>()), Ok(()));
        assert_eq!(posted(CALL, 0, &raw const work), Err(failed(libc::EINVAL)));
        assert_eq!(posted(CALL, -libc::ENOMEM, &raw const work), Err(failed(libc::ENOMEM)));
        assert_eq!(posted(CALL, libc::ENOMEM, null::<u8>()), Err(failed(libc::ENOMEM)));
    }

    #[test]
    fn numbers_without_a_name_are_shown_as_they_are() {
        assert!(failed(4095).to_string().contains("4095"), "{}", failed(4095));
        assert_eq!(failed(0).to_string(), "ibv_something failed: no reason given (errno 0)");
    }
}
