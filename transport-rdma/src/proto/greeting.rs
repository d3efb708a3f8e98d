//! The private data of a connect request and its answer: who is there, before any message.
//!
//! ```text
//!  offset  size  field
//!       0     4  magic    "VWRD"
//!       4     4  version  of this format, little-endian: 0, or 1 with a ticket
//!       8     8  nonce    the connecting side's; HELLO has the same number, and the answer repeats it
//!      16    32  ticket   version 1: what admits the connecting side
//! ```
//!
//! Everything else is in HELLO. An answer is of version 0. A refusal carries words instead.

use verbwire_core::transport::Ticket;
use verbwire_core::wire::cut;

use crate::nic::MAX_PRIVATE_DATA;

const MAGIC: [u8; 4] = *b"VWRD";

/// The version of this format, and of everything on a queue pair before HELLO.
const VERSION: u32 = 0;

/// The same with a ticket. A version, since devices pad private data, so that its length says nothing.
const WITH_TICKET: u32 = 1;

/// Without a ticket.
const LEN: usize = 16;

/// What a side sends along with a connect request or its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) nonce: u64,
    /// What admits the connecting side, where it is asked for.
    pub(crate) ticket: Option<Ticket>,
}

/// Private data of something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GreetingError {
    /// Too short, or another magic.
    #[error("expected private data of a verbwire endpoint, got \"{}\"", .0.escape_ascii())]
    Foreign(Vec<u8>),
    /// A version that this side does not speak.
    #[error(
        "the peer's version of the RDMA handshake is {0}, this side's is {WITH_TICKET}; upgrade the older"
    )]
    Version(u32),
}

impl Greeting {
    /// The answer to this.
    pub(crate) fn answer(self) -> Self {
        Self { ticket: None, ..self }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let version = if self.ticket.is_some() { WITH_TICKET } else { VERSION };
        let parts = [&MAGIC[..], &version.to_le_bytes(), &self.nonce.to_le_bytes()];
        let mut bytes = parts.concat();
        bytes.extend(self.ticket.iter().flat_map(Ticket::encode));
        debug_assert!(bytes.len() <= MAX_PRIVATE_DATA);
        bytes
    }

    /// Reads private data; what stands behind the known fields is ignored, since devices pad it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, GreetingError> {
        let foreign =
            || GreetingError::Foreign(bytes.iter().take(MAX_PRIVATE_DATA).copied().collect());
        let Some((&[m0, m1, m2, m3, v0, v1, v2, v3, ref nonce @ ..], behind)) =
            bytes.split_first_chunk::<LEN>()
        else {
            return Err(foreign());
        };
        if [m0, m1, m2, m3] != MAGIC {
            return Err(foreign());
        }
        let ticket = match u32::from_le_bytes([v0, v1, v2, v3]) {
            VERSION => None,
            WITH_TICKET => Some(Ticket::decode(behind.first_chunk().ok_or_else(foreign)?)),
            version => return Err(GreetingError::Version(version)),
        };
        Ok(Self { nonce: u64::from_le_bytes(*nonce), ticket })
    }
}

/// The words of a refusal, cut to what private data can carry.
pub(crate) fn refusal(words: &str) -> Vec<u8> {
    cut(words, MAX_PRIVATE_DATA).as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_survives_padding() {
        let ticket = Ticket { token: [7; 16], connection: 3, incarnation: 4 };
        for ticket in [None, Some(ticket)] {
            let greeting = Greeting { nonce: 0x0102_0304_0506_0708, ticket };
            let mut bytes = greeting.encode();
            bytes.resize(MAX_PRIVATE_DATA, 0);
            assert_eq!(Greeting::decode(&bytes), Ok(greeting));
        }
    }

    #[test]
    fn other_data_is_refused_at_every_length() {
        let ticket = Ticket { token: [7; 16], connection: 3, incarnation: 4 };
        for ticket in [None, Some(ticket)] {
            let whole = Greeting { nonce: 1, ticket }.encode();
            for cut in 0..whole.len() {
                let error = Greeting::decode(&whole[..cut]).expect_err("cut");
                assert_eq!(error, GreetingError::Foreign(whole[..cut].to_vec()));
            }
        }
        let other = GreetingError::Foreign(vec![b'x'; LEN]);
        assert_eq!(Greeting::decode(&[b'x'; LEN]), Err(other));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Greeting { nonce: 1, ticket: None }.encode();
        bytes[4] = 9;
        assert_eq!(Greeting::decode(&bytes), Err(GreetingError::Version(9)));
    }
}
