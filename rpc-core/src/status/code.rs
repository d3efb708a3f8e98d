//! gRPC's status codes.
//!
//! Numbers and meanings: the gRPC documentation, `doc/statuscodes.md`.

use std::fmt;

/// A gRPC status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Code {
    /// The call returned a reply.
    Ok = 0,
    /// The call was cancelled, as a rule by its caller.
    Cancelled = 1,
    /// An error that fits no other code.
    Unknown = 2,
    /// The request is wrong whatever the state of the system.
    InvalidArgument = 3,
    /// The deadline passed before the call was done.
    DeadlineExceeded = 4,
    /// Something that the request names does not exist.
    NotFound = 5,
    /// Something that the request would create exists.
    AlreadyExists = 6,
    /// The caller is known and may not do this.
    PermissionDenied = 7,
    /// A limit or quota was reached.
    ResourceExhausted = 8,
    /// The system is not in the state that the request needs.
    FailedPrecondition = 9,
    /// The operation lost against a concurrent one.
    Aborted = 10,
    /// The operation went past a valid range.
    OutOfRange = 11,
    /// The service or method does not exist here.
    Unimplemented = 12,
    /// An invariant of the system is broken.
    Internal = 13,
    /// The service cannot be reached now; another try may succeed.
    Unavailable = 14,
    /// Data is lost or corrupt beyond repair.
    DataLoss = 15,
    /// The caller did not prove who it is.
    Unauthenticated = 16,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The code's meaning in a few words.
    pub fn description(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown error",
            Self::InvalidArgument => "invalid argument",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::PermissionDenied => "permission denied",
            Self::ResourceExhausted => "resource exhausted",
            Self::FailedPrecondition => "failed precondition",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out of range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal error",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data loss",
            Self::Unauthenticated => "unauthenticated",
        }
    }
}

impl From<i32> for Code {
    /// Numbers that gRPC does not define become [`Code::Unknown`], as gRPC asks.
    fn from(number: i32) -> Self {
        usize::try_from(number)
            .ok()
            .and_then(|index| Self::ALL.get(index).copied())
            .unwrap_or(Self::Unknown)
    }
}

impl From<Code> for i32 {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_its_number() {
        for code in Code::ALL {
            assert_eq!(Code::from(i32::from(code)), code);
        }
    }

    #[test]
    fn numbers_out_of_range_are_unknown() {
        for number in [-1, 17, i32::MAX, i32::MIN] {
            assert_eq!(Code::from(number), Code::Unknown);
        }
    }
}
