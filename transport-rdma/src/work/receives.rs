//! Receives in flight.
//!
//! An entry per receive, made once; each use of it has another generation.

use super::id::{ConnectionNumber, Kind, WorkId};
use super::sends::sge;
use crate::memory::{CpuBuf, NicAccess, NicBuf, Released};
use crate::nic::RecvWr;

/// Bits of a sequence number that say the entry; the rest is the generation.
const ENTRY_BITS: u32 = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Receives {
    kind: Kind,
    connection: ConnectionNumber,
    entries: Vec<Entry>,
    /// Entries without a buffer.
    free: Vec<u16>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Wraps.
    generation: u16,
    buf: Option<NicBuf>,
}

impl Receives {
    pub(crate) fn new(kind: Kind, connection: ConnectionNumber) -> Self {
        Self { kind, connection, entries: Vec::new(), free: Vec::new() }
    }

    /// Takes a buffer for a receive that is about to be posted.
    pub(crate) fn push(&mut self, buf: CpuBuf) -> RecvWr {
        self.push_at(buf).1
    }

    /// The same; also says which entry it has.
    pub(crate) fn push_at(&mut self, buf: CpuBuf) -> (usize, RecvWr) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            u16::try_from(self.entries.len() - 1).expect("queues hold at most 32768 receives")
        });
        let buf = buf.into_nic(NicAccess::Write);
        let sge = sge(&buf, buf.chunk_len());
        let entry = &mut self.entries[usize::from(index)];
        entry.generation = entry.generation.wrapping_add(1);
        let sequence = u64::from(entry.generation) << ENTRY_BITS | u64::from(index);
        entry.buf = Some(buf);
        let id = WorkId { kind: self.kind, connection: self.connection, sequence };
        (usize::from(index), RecvWr { id: id.encode(), sge })
    }

    /// The entry that a sequence number names.
    pub(crate) fn entry(sequence: u64) -> usize {
        (sequence & 0xffff) as usize
    }

    /// Whether one is in flight of which this is the sequence number.
    pub(crate) fn is_posted(&self, sequence: u64) -> bool {
        let entry = self.entries.get(Self::entry(sequence));
        entry.is_some_and(|entry| {
            u64::from(entry.generation) == sequence >> ENTRY_BITS && entry.buf.is_some()
        })
    }

    /// A receive completed. `None` if it is not in flight.
    pub(crate) fn complete(&mut self, sequence: u64) -> Option<CpuBuf> {
        let index = u16::try_from(sequence & 0xffff).ok()?;
        let entry = self.entries.get_mut(usize::from(index))?;
        if u64::from(entry.generation) != sequence >> ENTRY_BITS {
            return None;
        }
        let buf = entry.buf.take()?;
        self.free.push(index);
        Some(buf.into_cpu(Released::by_nic()))
    }

    /// Whether none is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    /// No NIC touches them any more: all come back.
    pub(crate) fn release(&mut self) {
        for (entry, index) in self.entries.iter_mut().zip(0..) {
            if let Some(buf) = entry.buf.take() {
                drop(buf.into_cpu(Released::by_nic()));
                self.free.push(index);
            }
        }
    }
}
