//! Who the bytes of a slab belong to at this moment, as far as a software NIC must know.

use std::ops::Range;

use super::slab::NicAccess;

/// Who a chunk belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The CPU, or nobody.
    Cpu,
    Nic(NicAccess),
}

/// The owner of each chunk, and the runs that a NIC may read although they are the CPU's.
pub(super) struct Owners {
    chunks: Vec<Owner>,
    /// How often each has changed its owner.
    changes: Vec<u64>,
    /// Few: the segments that are being sent. A run that is sent twice at a time is here twice.
    lent: Vec<Range<usize>>,
}

impl Owners {
    /// So many chunks of the CPU.
    pub(super) fn new(chunks: usize) -> Self {
        Self { chunks: vec![Owner::Cpu; chunks], changes: vec![0; chunks], lent: Vec::new() }
    }

    /// The owner of a chunk; `None` behind the last one, where the rest of a page belongs to nobody.
    pub(super) fn of(&self, chunk: usize) -> Option<Owner> {
        self.chunks.get(chunk).copied()
    }

    pub(super) fn set(&mut self, chunk: usize, owner: Owner) {
        self.chunks[chunk] = owner;
        self.changes[chunk] += 1;
    }

    /// How often a chunk has changed its owner; `None` behind the last one.
    pub(super) fn changes_of(&self, chunk: usize) -> Option<u64> {
        self.changes.get(chunk).copied()
    }

    /// Whether all of a run is lent, by one loan.
    pub(super) fn lends(&self, run: Range<usize>) -> bool {
        self.lent.iter().any(|lent| lent.start <= run.start && run.end <= lent.end)
    }

    pub(super) fn lend(&mut self, run: Range<usize>) {
        self.lent.push(run);
    }

    /// Ends one loan of exactly this run.
    pub(super) fn end_loan(&mut self, run: &Range<usize>) {
        if let Some(at) = self.lent.iter().position(|lent| lent == run) {
            self.lent.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_lent_twice_stays_lent_until_both_loans_end() {
        let mut owners = Owners::new(1);
        owners.lend(10..20);
        owners.lend(10..20);
        owners.end_loan(&(10..20));
        assert!(owners.lends(10..20) && owners.lends(12..15));
        assert!(!owners.lends(9..12) && !owners.lends(15..21));
        owners.end_loan(&(10..20));
        assert!(!owners.lends(12..15));
    }
}
