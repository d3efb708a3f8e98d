//! Messages that are compressed: which encodings there are, who takes them, what is compressed and what is not.
//!
//! * [`Encoding`]: a way to compress; [`Encodings`]: those that a side takes, as its HELLO says.
//! * [`Compression`]: what a side does with what it sends. Nothing, unless it is asked to.
//! * `Coded`: what a [`Body`](crate::Body) knows that is compressed.
//!
//! A message is compressed as a whole, by who sends it, in the task that encodes it; and decompressed by who decodes it,
//! in that task, up to a limit. In between its bytes are carried as they are. Both are work of the processor without an
//! await: gzip was seen to take 36 ms of a slow core for 1 MiB of text and 21 ms back, zstd 2 ms and less. Nothing of it
//! happens in the task that drives a connection, which is why a method that is `inline_safe` is not polled there where
//! its request is compressed, or its server compresses replies.
//!
//! Owns no state. Does not know calls, transports or frames.

mod coded;
mod decompress;
mod encoding;
mod send;

pub(crate) use coded::{Coded, Inbound, Receiver};
pub use encoding::{Encoding, EncodingId, Encodings};
pub(crate) use send::Outbound;
pub use send::{Compression, MIN_COMPRESSED_LEN};
