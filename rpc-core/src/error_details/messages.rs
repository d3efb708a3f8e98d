//! The messages of `google/rpc/error_details.proto`, by hand: they are few, and every user of the crate would
//! otherwise compile a generator for them.

use std::collections::BTreeMap;
use std::time;

use bytes::Bytes;
use prost::Message;

/// Any message, with the name of its type: `google.protobuf.Any`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Any {
    /// Ends in `/` and the full name of the type.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The encoded message.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// And billionths of one, with the same sign.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// When to try again.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RetryInfo {
    /// Wait at least so long.
    #[prost(message, optional, tag = "1")]
    pub retry_delay: Option<Duration>,
}

/// What a developer wants to know.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DebugInfo {
    /// Where it happened, the innermost place first.
    #[prost(string, repeated, tag = "1")]
    pub stack_entries: Vec<String>,
    /// More words.
    #[prost(string, tag = "2")]
    pub detail: String,
}

/// Which quotas are used up.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct QuotaFailure {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub violations: Vec<QuotaViolation>,
}

/// A quota that is used up.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct QuotaViolation {
    /// Whose quota.
    #[prost(string, tag = "1")]
    pub subject: String,
    /// Which, and what to do.
    #[prost(string, tag = "2")]
    pub description: String,
}

/// The cause in a form that programs read.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ErrorInfo {
    /// The cause, in `UPPER_SNAKE_CASE`; unique within the domain.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Who gives the reason its meaning, for example `storage.example.com`.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// More about it.
    #[prost(btree_map = "string, string", tag = "3")]
    pub metadata: BTreeMap<String, String>,
}

/// Which conditions do not hold.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreconditionFailure {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub violations: Vec<PreconditionViolation>,
}

/// A condition that does not hold.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreconditionViolation {
    /// The kind of condition, for example `TOS`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// What it is about.
    #[prost(string, tag = "2")]
    pub subject: String,
    /// What to do.
    #[prost(string, tag = "3")]
    pub description: String,
}

/// Which fields of the request are wrong.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BadRequest {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub field_violations: Vec<FieldViolation>,
}

/// A field that is wrong.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FieldViolation {
    /// Its path in the request, for example `address.street`.
    #[prost(string, tag = "1")]
    pub field: String,
    /// Why.
    #[prost(string, tag = "2")]
    pub description: String,
}

/// By what a server finds the request again.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestInfo {
    /// Its id in the server's logs.
    #[prost(string, tag = "1")]
    pub request_id: String,
    /// Opaque to the client.
    #[prost(string, tag = "2")]
    pub serving_data: String,
}

/// What was accessed.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResourceInfo {
    /// Its kind, for example `volume`.
    #[prost(string, tag = "1")]
    pub resource_type: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub resource_name: String,
    /// Whose it is.
    #[prost(string, tag = "3")]
    pub owner: String,
    /// What went wrong with it.
    #[prost(string, tag = "4")]
    pub description: String,
}

/// Where to read more.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Help {
    /// Places.
    #[prost(message, repeated, tag = "1")]
    pub links: Vec<Link>,
}

/// A place to read more.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Link {
    /// What is there.
    #[prost(string, tag = "1")]
    pub description: String,
    /// Its address.
    #[prost(string, tag = "2")]
    pub url: String,
}

/// The error in a user's own language.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LocalizedMessage {
    /// The language, for example `de-CH`.
    #[prost(string, tag = "1")]
    pub locale: String,
    /// The words.
    #[prost(string, tag = "2")]
    pub message: String,
}

impl RetryInfo {
    /// Try again after `delay`.
    pub fn after(delay: time::Duration) -> Self {
        let seconds = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
        let nanos = i32::try_from(delay.subsec_nanos()).expect("below a billion");
        Self { retry_delay: Some(Duration { seconds, nanos }) }
    }

    /// How long to wait; `None` if that is not said, or is no time.
    pub fn delay(&self) -> Option<time::Duration> {
        let Duration { seconds, nanos } = self.retry_delay?;
        let (seconds, nanos) = (u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?);
        // More than a billion would be carried, which may overflow.
        (nanos < 1_000_000_000).then(|| time::Duration::new(seconds, nanos))
    }
}

impl BadRequest {
    /// One field is wrong.
    pub fn of(field: impl Into<String>, description: impl Into<String>) -> Self {
        let violation = FieldViolation { field: field.into(), description: description.into() };
        Self { field_violations: vec![violation] }
    }
}

impl QuotaFailure {
    /// One quota is used up: whose, which and what to do.
    pub fn of(subject: impl Into<String>, description: impl Into<String>) -> Self {
        let violation = QuotaViolation { subject: subject.into(), description: description.into() };
        Self { violations: vec![violation] }
    }
}

impl ResourceInfo {
    /// What went wrong with a resource of this kind and name, which nobody in particular owns.
    pub fn of(
        resource_type: impl Into<String>,
        resource_name: impl Into<String>,
        description: impl Into<String>,
    ) -> Self {
        Self {
            resource_type: resource_type.into(),
            resource_name: resource_name.into(),
            owner: String::new(),
            description: description.into(),
        }
    }
}

impl ErrorInfo {
    /// A reason of a domain.
    pub fn of(reason: impl Into<String>, domain: impl Into<String>) -> Self {
        Self { reason: reason.into(), domain: domain.into(), metadata: BTreeMap::new() }
    }
}
