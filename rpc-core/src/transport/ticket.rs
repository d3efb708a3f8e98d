//! What admits a connection that is the second path of another one.

use std::fmt;

/// A server gives it out over the first path; the client shows it as it connects the second, before anything is made for it.
///
/// ```text
///  offset  size  field
///       0    16  token        random; whoever has it may connect, once and soon
///      16     8  connection   number of the first path, little-endian: the server's
///      24     8  incarnation  of the client, which both paths' HELLOs show
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// A secret.
    pub token: [u8; 16],
    /// The connection that it belongs to.
    pub connection: u64,
    /// Whose it is.
    pub incarnation: u64,
}

impl Ticket {
    /// Its bytes on the wire.
    pub const LEN: usize = 32;

    /// As it travels.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..16].copy_from_slice(&self.token);
        out[16..24].copy_from_slice(&self.connection.to_le_bytes());
        out[24..].copy_from_slice(&self.incarnation.to_le_bytes());
        out
    }

    /// What was sent.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let (token, numbers) = bytes.split_first_chunk().expect("16 of 32 bytes");
        let (connection, incarnation) = numbers.split_first_chunk().expect("8 of 16 bytes");
        let incarnation = incarnation.first_chunk().expect("the last 8 bytes");
        Self {
            token: *token,
            connection: u64::from_le_bytes(*connection),
            incarnation: u64::from_le_bytes(*incarnation),
        }
    }
}

impl fmt::Debug for Ticket {
    /// Without the token, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("connection", &self.connection)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_survives_the_wire_and_hides_its_token() {
        let ticket =
            Ticket { token: [0xab; 16], connection: 0x0102_0304, incarnation: u64::MAX - 1 };
        assert_eq!(Ticket::decode(&ticket.encode()), ticket);
        let shown = format!("{ticket:?}");
        assert!(!shown.contains("171") && !shown.contains("ab, "), "{shown}");
    }
}
