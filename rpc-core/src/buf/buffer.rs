//! Memory that a user fills in place and sends without a copy.
//!
//! A [`Buffer`] comes from `Channel::alloc` or `Request::alloc`, which take it from the transport's own
//! pool; over RDMA that is registered memory. It is owned by the CPU: no device can reach it before it
//! is frozen and sent.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

use crate::error::{Error, ErrorKind};

/// Longest body that the wire format has a length for.
const MAX_LEN: usize = u32::MAX as usize;

/// The memory under a [`Buffer`]: a run of initialised bytes with an owner.
///
/// Implemented by transports for their pools. Dropping the storage returns the memory.
pub trait Storage: AsRef<[u8]> + AsMut<[u8]> + Send + 'static {}

impl Storage for Vec<u8> {}

/// A run of bytes to fill in place; [`freeze`](Self::freeze) turns it into `Bytes` for a message field.
pub struct Buffer {
    storage: Box<dyn Storage>,
    len: usize,
}

impl Buffer {
    /// A buffer over the first `len` bytes of `storage`; all of it where it is shorter.
    pub fn new(storage: impl Storage, len: usize) -> Self {
        let len = len.min(storage.as_ref().len());
        Self { storage: Box::new(storage), len }
    }

    /// `len` zeroed bytes on the heap, for transports without a pool of their own.
    ///
    /// # Errors
    ///
    /// More than a message can carry, or than the system has.
    pub fn zeroed(len: usize) -> Result<Self, Error> {
        if len > MAX_LEN {
            let message = format!("a buffer of {len} bytes fits no message, at most {MAX_LEN} do");
            return Err(Error::new(ErrorKind::LocalResource, message));
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|error| {
            Error::with_source(
                ErrorKind::LocalResource,
                format!("no memory for {len} bytes"),
                error,
            )
        })?;
        bytes.resize(len, 0);
        Ok(Self::new(bytes, len))
    }

    /// Shortens the buffer to `len` bytes; a longer `len` changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Ends the filling: the bytes, without a copy. The memory returns to its pool when the last slice drops.
    pub fn freeze(self) -> Bytes {
        let len = self.len;
        Bytes::from_owner(Frozen(self.storage)).slice(..len)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.storage).as_ref()[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut (*self.storage).as_mut()[..self.len]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// `Bytes` asks its owner for `AsRef<[u8]>`, which a boxed trait object does not have by itself.
struct Frozen(Box<dyn Storage>);

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freezing_keeps_the_memory_in_place() {
        let mut buffer = Buffer::zeroed(8192).expect("8 KiB");
        buffer[..3].copy_from_slice(b"abc");
        buffer.truncate(3);
        let start = buffer.as_ptr();
        let bytes = buffer.freeze();
        assert_eq!(bytes, "abc");
        assert_eq!(bytes.as_ptr(), start);
    }

    #[test]
    fn a_buffer_that_fits_no_message_is_an_error() {
        let error = Buffer::zeroed(usize::MAX).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::LocalResource);
    }

    #[test]
    fn a_length_beyond_the_storage_is_cut() {
        assert_eq!(Buffer::new(vec![1, 2], 9).len(), 2);
    }
}
