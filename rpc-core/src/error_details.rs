//! The standard details of a failed call, `google.rpc` in `error_details.proto`.
//!
//! What is wrong with which field, when to try again, which quota is used up: in a form that programs read. They
//! travel as the details of a [`Status`], the same bytes that gRPC servers and clients of any language
//! exchange. Owns the messages and their order; knows nothing of calls.
//!
//! ```
//! # use verbwire_core as verbwire;
//! use verbwire::error_details::{BadRequest, ErrorDetails, RetryInfo};
//! use verbwire::Status;
//!
//! let details = ErrorDetails::new()
//!     .with(BadRequest::of("name", "must not be empty"))
//!     .with(RetryInfo::after(std::time::Duration::from_secs(2)));
//! let status = Status::invalid_argument("no name").with_error_details(&details);
//!
//! let read = status.error_details().expect("the standard form");
//! assert_eq!(read.bad_request().expect("there").field_violations[0].field, "name");
//! ```

mod messages;

use prost::{DecodeError, Message};

pub use messages::{
    Any, BadRequest, DebugInfo, Duration, ErrorInfo, FieldViolation, Help, Link, LocalizedMessage,
    PreconditionFailure, PreconditionViolation, QuotaFailure, QuotaViolation, RequestInfo,
    ResourceInfo, RetryInfo,
};

use crate::status::Status;

/// Details of a failed call, in order; of each kind there may be several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ErrorDetails(Vec<ErrorDetail>);

/// What stands in front of the name of a message's type.
const PREFIX: &str = "type.googleapis.com/";

macro_rules! kinds {
    ($($kind:ident, $reader:ident;)*) => {
        /// One detail.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum ErrorDetail {
            $(
                #[doc = concat!("`google.rpc.", stringify!($kind), "`.")]
                $kind($kind),
            )*
            /// A message that is none of these.
            Other(Any),
        }

        $(
            impl From<$kind> for ErrorDetail {
                fn from(detail: $kind) -> Self {
                    Self::$kind(detail)
                }
            }
        )*

        impl ErrorDetail {
            fn pack(&self) -> Any {
                match self {
                    $(Self::$kind(detail) => Any {
                        type_url: concat!("type.googleapis.com/google.rpc.", stringify!($kind)).to_owned(),
                        value: detail.encode_to_vec().into(),
                    },)*
                    Self::Other(any) => any.clone(),
                }
            }

            fn unpack(any: Any) -> Result<Self, DecodeError> {
                // Any host may stand in front, and servers do differ.
                let name = any.type_url.rsplit('/').next().unwrap_or_default();
                match name {
                    $(concat!("google.rpc.", stringify!($kind)) => {
                        $kind::decode(any.value).map(Self::$kind)
                    })*
                    _ => Ok(Self::Other(any)),
                }
            }
        }

        impl ErrorDetails {
            $(
                #[doc = concat!("The first `", stringify!($kind), "`.")]
                pub fn $reader(&self) -> Option<&$kind> {
                    self.0.iter().find_map(|detail| match detail {
                        ErrorDetail::$kind(detail) => Some(detail),
                        _ => None,
                    })
                }
            )*
        }
    };
}

kinds! {
    RetryInfo, retry_info;
    DebugInfo, debug_info;
    QuotaFailure, quota_failure;
    ErrorInfo, error_info;
    PreconditionFailure, precondition_failure;
    BadRequest, bad_request;
    RequestInfo, request_info;
    ResourceInfo, resource_info;
    Help, help;
    LocalizedMessage, localized_message;
}

impl ErrorDetails {
    /// No details.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The same with one more.
    #[must_use]
    pub fn with(mut self, detail: impl Into<ErrorDetail>) -> Self {
        self.0.push(detail.into());
        self
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &ErrorDetail> {
        self.0.iter()
    }
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

impl Status {
    /// Adds standard details, which take the place of [`details`](Self::details).
    #[must_use]
    pub fn with_error_details(self, details: &ErrorDetails) -> Self {
        let status = RpcStatus {
            code: i32::from(self.code() as u8),
            message: self.message().to_owned(),
            details: details.iter().map(ErrorDetail::pack).collect(),
        };
        self.with_details(status.encode_to_vec())
    }

    /// The standard details; none where there are no details at all.
    ///
    /// # Errors
    ///
    /// The details are bytes of another form.
    pub fn error_details(&self) -> Result<ErrorDetails, DecodeError> {
        let status = RpcStatus::decode(self.details().clone())?;
        let details = status.details.into_iter().map(ErrorDetail::unpack);
        details.collect::<Result<_, _>>().map(ErrorDetails)
    }
}

impl Any {
    /// A detail of an application's own type, whose full name is `name`.
    pub fn pack(name: &str, message: &impl Message) -> Self {
        Self { type_url: format!("{PREFIX}{name}"), value: message.encode_to_vec().into() }
    }
}

impl From<Any> for ErrorDetail {
    fn from(any: Any) -> Self {
        Self::Other(any)
    }
}

#[cfg(test)]
mod tests;
