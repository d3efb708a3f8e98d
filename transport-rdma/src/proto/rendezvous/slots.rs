//! A table whose entries are named by index and generation.

/// See the module. Entries are used again, with the next generation; names of the past stay recognisable.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct Entry<T> {
    /// Of the present use, or of the next one. Wraps.
    generation: u32,
    value: Option<T>,
}

/// An entry's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, value: T) -> Slot {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, value: None });
            u32::try_from(self.entries.len() - 1).expect("tables are bounded by their users")
        });
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Slot { index, generation: entry.generation }
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<T> {
        let entry = self.entries.get_mut(slot.index as usize)?;
        let value = entry.value.take_if(|_| entry.generation == slot.generation)?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot.index);
        Some(value)
    }

    pub(super) fn find(&self, slot: Slot) -> Option<&T> {
        let entry = self.entries.get(slot.index as usize)?;
        entry.value.as_ref().filter(|_| entry.generation == slot.generation)
    }

    pub(super) fn find_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let entry = self.entries.get_mut(slot.index as usize)?;
        entry.value.as_mut().filter(|_| entry.generation == slot.generation)
    }

    /// Whether the name was in use once and is not any more.
    pub(super) fn is_past(&self, slot: Slot) -> bool {
        self.entries.get(slot.index as usize).is_some_and(|entry| {
            (1..=1 << 31).contains(&entry.generation.wrapping_sub(slot.generation))
        })
    }

    /// All entries in use, in the order of their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        self.entries.iter().zip(0..).filter_map(|(entry, index)| {
            let slot = Slot { index, generation: entry.generation };
            entry.value.as_ref().map(|value| (slot, value))
        })
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.value.as_mut())
    }

    /// Entries in use.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_past_never_finds_the_entry_s_next_use() {
        let mut slots = Slots::new();
        let first = slots.insert('a');
        assert_eq!((slots.find(first), slots.is_past(first)), (Some(&'a'), false));
        assert_eq!(slots.remove(first), Some('a'));
        assert!(slots.is_past(first), "also before its next use");
        let second = slots.insert('b');
        assert_eq!((first.index, second.index), (0, 0));
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.remove(first), None);
        assert!(slots.is_past(first) && !slots.is_past(second));
        assert_eq!((slots.find(second), slots.len()), (Some(&'b'), 1));
        let never = Slot { index: 1, generation: 0 };
        let later = Slot { generation: 2, ..second };
        assert!(!slots.is_past(never) && !slots.is_past(later));
    }
}
