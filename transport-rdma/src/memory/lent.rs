//! Bytes that a user holds and a NIC reads.
//!
//! A frozen buffer is sent from where it lies, while its holders go on reading it. That is sound: nobody
//! writes. What must not happen is that its chunk returns to its pool, is filled anew and goes out in the place
//! of what was sent (a peer's NIC that lost an acknowledgement has it read again long after a reply came). So
//! the loan keeps the bytes, and ends by the same proof as a `NicBuf`.

use std::fmt;
use std::mem::forget;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::buf::Released;
use super::slab::{Domain, Lkey, Slab};

/// A run of bytes in a registered slab that a NIC may read until [`Released`].
///
/// Dropped without it, the bytes are never freed: the NIC may still read them.
///
/// # Invariants
///
/// `bytes` is `Some` until `self` is consumed or drops, and then forgotten or dropped behind the end of the loan.
/// It is not empty, so that it is a shared borrow of what it covers for as long as it lives.
#[must_use = "lent bytes come back only through their completion"]
pub struct Lent {
    bytes: Option<Bytes>,
    slab: Arc<Slab>,
    offset: usize,
    lkey: Lkey,
}

const HELD: &str = "lent bytes are held until the loan is consumed";

impl Lent {
    /// Lends bytes that lie in `slab`, which is registered with `domain`; else gives `None`.
    ///
    /// Empty bytes are never lent: they may point anywhere.
    pub fn new(slab: Arc<Slab>, domain: Domain, bytes: Bytes) -> Option<Self> {
        let offset = (bytes.as_ptr().addr() as u64).checked_sub(slab.address())?;
        let offset = usize::try_from(offset).ok()?;
        if bytes.is_empty() || bytes.len() > slab.len().checked_sub(offset)? {
            return None;
        }
        let (lkey, _) = slab.keys_in(domain)?;
        slab.owners().lend(offset..offset + bytes.len());
        Some(Self { bytes: Some(bytes), slab, offset, lkey })
    }

    /// The first byte's address, as a NIC knows it.
    pub fn address(&self) -> u64 {
        self.slab.address() + self.offset as u64
    }

    /// How many bytes, never zero.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The key in the domain that the bytes were lent to.
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// Ends the loan; the bytes, for whoever wants to send them again.
    pub fn release(mut self, _proof: Released) -> Bytes {
        self.slab.owners().end_loan(&self.run());
        self.bytes.take().expect(HELD)
    }

    fn bytes(&self) -> &Bytes {
        self.bytes.as_ref().expect(HELD)
    }

    fn run(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            self.slab.count_lost_loan();
            forget(bytes);
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes at offset {})", self.len(), self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Poison, Pool, Region, Rkey};

    struct Fake(u32);

    impl Region for Fake {
        fn lkey(&self) -> Lkey {
            Lkey(self.0)
        }

        fn rkey(&self) -> Rkey {
            Rkey(self.0)
        }
    }

    fn registered() -> (Arc<Pool>, Domain) {
        let (pool, domain) = (Pool::new(Slab::new(64, 2), Poison::Off), Domain::unique());
        pool.slab().add_region(domain, Box::new(Fake(5)));
        (pool, domain)
    }

    #[test]
    fn a_nic_reads_what_is_lent_and_nothing_beside_it() {
        let (pool, domain) = registered();
        let mut buf = pool.take().expect("free");
        buf[8..16].copy_from_slice(b"abcdefgh");
        let slice = Bytes::from_owner(buf).slice(8..16);
        let slab = pool.slab();
        let lent = Lent::new(Arc::clone(slab), domain, slice).expect("registered");
        assert_eq!((lent.lkey(), lent.len(), lent.address()), (Lkey(5), 8, slab.address() + 8));
        let mut out = [0; 4];
        assert_eq!(slab.dma_read(lent.address() + 4, &mut out), Ok(()));
        assert_eq!(&out, b"efgh");
        assert!(slab.dma_read(lent.address() + 5, &mut out).is_err());
        assert!(slab.dma_write(lent.address(), b"x").is_err());
        let address = lent.address();
        assert_eq!(lent.release(Released::by_nic()), "abcdefgh");
        assert!(slab.dma_read(address, &mut out).is_err());
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn bytes_that_were_lent_keep_their_chunk_until_the_proof() {
        let (pool, domain) = registered();
        let bytes = Bytes::from_owner(pool.take().expect("free"));
        let lent = Lent::new(Arc::clone(pool.slab()), domain, bytes).expect("registered");
        assert_eq!(pool.free(), 1, "the user has dropped it, the NIC has not");
        drop(lent.release(Released::by_nic()));
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn a_loan_that_is_dropped_without_proof_never_returns_its_chunk() {
        let (pool, domain) = registered();
        let bytes = Bytes::from_owner(pool.take().expect("free"));
        drop(Lent::new(Arc::clone(pool.slab()), domain, bytes));
        assert_eq!((pool.free(), pool.slab().lost_loans()), (1, 1));
    }

    #[test]
    fn foreign_empty_and_unregistered_bytes_are_not_lent() {
        let (pool, domain) = registered();
        let slab = pool.slab();
        let lend = |domain, bytes: Bytes| Lent::new(Arc::clone(slab), domain, bytes).is_some();
        let own = Bytes::from_owner(pool.take().expect("free"));
        assert!(!lend(domain, Bytes::from_static(b"elsewhere")));
        assert!(!lend(domain, Bytes::from_owner(pool.take().expect("free")).slice(3..3)));
        assert!(!lend(Domain::unique(), own.clone()));
        slab.end_region(domain);
        assert!(!lend(domain, own));
    }
}
