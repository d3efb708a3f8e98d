//! The status of a message that is longer than its receiver allows.

use std::fmt;

use crate::status::Status;

/// The status of a `what` of `len` bytes that the `side` which receives it does not accept.
pub(crate) fn too_large(what: &str, len: usize, max: usize, side: &str) -> Status {
    Status::resource_exhausted(format!(
        "{what} message of {} exceeds max_message_size of {}, set by the {side}'s max_message_size(..)",
        Size(len),
        Size(max)
    ))
}

/// The status of metadata that the `side` which receives it does not accept.
pub(crate) fn too_much_metadata(what: &str, len: usize, max: usize, side: &str) -> Status {
    Status::resource_exhausted(format!(
        "{what} metadata of {} exceeds max_metadata_size of {}, announced by the {side}: raise its \
         max_metadata_size(..), and over RDMA eager_len of its RdmaConfig too, or keep such calls \
         on TCP by PathPolicy::TcpOnly",
        Size(len),
        Size(max)
    ))
}

/// A number of bytes as people write it: in MiB or KiB where that is exact.
pub(crate) struct Size(pub(crate) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_names_both_sizes_and_the_setter() {
        let status = too_large("request", 80 << 20, 64 << 20, "server");
        assert_eq!(
            status.message(),
            "request message of 80 MiB exceeds max_message_size of 64 MiB, set by the server's \
             max_message_size(..)"
        );
        assert_eq!(Size(1025).to_string(), "1025 bytes");
        assert_eq!(Size(2048).to_string(), "2 KiB");
    }
}
