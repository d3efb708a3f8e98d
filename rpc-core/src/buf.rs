//! Message bodies as lists of segments.
//!
//! A body is standard protobuf; only its memory is special. Encoding keeps every large `Bytes` field as
//! a segment of its own, by reference count; decoding gives large `bytes` fields as slices of what was
//! received. Who allocated a segment (the heap, a registered pool) does not show here.

mod body;
mod buffer;
mod writer;

pub use body::{Body, BodyReader};
pub use buffer::{Buffer, Storage};
pub use writer::SegmentWriter;

/// Fields from this length on are kept by reference; shorter ones are copied.
///
/// Both ways 4 KiB is where a copy begins to cost more than a reference count, and copying the short
/// ones out keeps a small field from pinning a large landing buffer.
pub const BY_REFERENCE: usize = 4096;
