//! How a software NIC reaches a slab's memory: by address, checked against the chunk's owner.
//!
//! A real NIC reaches what it was told to, whoever uses it by now. This one only touches chunks that belong
//! to the NIC at that moment, for which no reference exists, and reads runs that are lent to it, for which no
//! mutable one does. So it is sound whatever it is told; what a real NIC would have corrupted is an error
//! here.

use std::ptr::copy_nonoverlapping as copy;

use super::owners::{Owner, Owners};
use super::slab::{NicAccess, Slab};

/// An access that a real NIC would have carried out, on memory that is not the NIC's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// Not within this slab.
    #[error("{len} bytes at 0x{address:x} are not within the slab")]
    OutOfSlab {
        /// First byte.
        address: u64,
        /// Length.
        len: usize,
    },
    /// A chunk that belongs to the CPU, or to the NIC for the other direction only.
    #[error("chunk {chunk} does not belong to the NIC for this access")]
    NotOwned {
        /// The chunk's index.
        chunk: usize,
    },
}

/// A chunk, with how often it has changed its owner: between two looks at equal tenures it belonged to one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    chunk: usize,
    owners: u64,
}

impl Slab {
    /// Whether so many bytes at `address` are within the slab.
    pub fn holds(&self, address: u64, len: usize) -> bool {
        self.offset(address, len).is_ok()
    }

    /// The tenure of the chunk that `address` is in; `None` where there is none.
    pub fn tenure(&self, address: u64) -> Option<Tenure> {
        let chunk = self.offset(address, 1).ok()? / self.chunk_len();
        self.owners().changes_of(chunk).map(|owners| Tenure { chunk, owners })
    }

    /// Reads into `out`, as a NIC that sends.
    ///
    /// # Errors
    ///
    /// The memory does not belong to the NIC.
    pub fn dma_read(&self, address: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let offset = self.offset(address, out.len())?;
        let owners = self.owners();
        if !owners.lends(offset..offset + out.len()) {
            self.check(&owners, offset, out.len(), |owner| matches!(owner, Owner::Nic(_)))?;
        }
        // SAFETY: the range is within the slab (`offset`), whose bytes are initialised (invariant 1). While
        // `owners` is locked, either its chunks belong to the NIC, so no `CpuBuf` of them exists and no
        // reference into them does (invariants 2 and 3); or a live `Bytes` covers it, so no mutable
        // reference to it exists (invariant 4). `out` is borrowed mutably, so it overlaps with neither.
        unsafe { copy(self.at(offset), out.as_mut_ptr(), out.len()) }
        Ok(())
    }

    /// Writes `data`, as a NIC that receives.
    ///
    /// # Errors
    ///
    /// The memory does not belong to the NIC for writing.
    pub fn dma_write(&self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        let offset = self.offset(address, data.len())?;
        let owners = self.owners();
        let writable = |owner| owner == Owner::Nic(NicAccess::Write);
        self.check(&owners, offset, data.len(), writable)?;
        // SAFETY: as for `dma_read`, with the direction turned.
        unsafe { copy(data.as_ptr(), self.at(offset), data.len()) }
        Ok(())
    }

    fn offset(&self, address: u64, len: usize) -> Result<usize, DmaError> {
        address
            .checked_sub(self.address())
            .and_then(|offset| usize::try_from(offset).ok())
            .filter(|offset| offset.checked_add(len).is_some_and(|end| end <= self.len()))
            .ok_or(DmaError::OutOfSlab { address, len })
    }

    fn check(
        &self,
        owners: &Owners,
        offset: usize,
        len: usize,
        allowed: impl Fn(Owner) -> bool,
    ) -> Result<(), DmaError> {
        let first = offset / self.chunk_len();
        let last = (offset + len).saturating_sub(1).max(offset) / self.chunk_len();
        for chunk in first..=last {
            // Behind the last chunk there may be the rest of a page that belongs to nobody.
            if !owners.of(chunk).is_some_and(&allowed) {
                return Err(DmaError::NotOwned { chunk });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pool::{Poison, Pool};
    use crate::memory::{Released, Slab};

    #[test]
    fn a_nic_reaches_only_what_belongs_to_it() {
        let pool = Pool::new(Slab::new(64, 4), Poison::Off);
        let cpu = pool.take().expect("free");
        let source = pool.take().expect("free").into_nic(NicAccess::Read);
        let sink = pool.take().expect("free").into_nic(NicAccess::Write);
        let slab = pool.slab();
        let mut out = [0; 8];
        assert_eq!(slab.dma_read(source.address(), &mut out), Ok(()));
        assert_eq!(slab.dma_write(sink.address() + 56, b"12345678"), Ok(()));
        let not_owned = |chunk| Err(DmaError::NotOwned { chunk });
        assert_eq!(slab.dma_write(source.address(), b"1"), not_owned(1));
        assert_eq!(slab.dma_read(cpu.as_ptr().addr() as u64, &mut out), not_owned(0));
        assert_eq!(slab.dma_write(sink.address() + 57, b"12345678"), not_owned(3));
        assert_eq!(&sink.into_cpu(Released::by_nic())[56..], b"12345678");
    }

    #[test]
    fn addresses_out_of_the_slab_are_refused_also_where_they_wrap() {
        let slab = Slab::new(64, 1);
        for address in [0, slab.address() - 1, slab.address() + slab.len() as u64, u64::MAX] {
            let error = DmaError::OutOfSlab { address, len: 2 };
            assert_eq!(slab.dma_write(address, b"ab"), Err(error));
        }
    }
}
