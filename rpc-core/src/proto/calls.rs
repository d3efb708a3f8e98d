//! The slot table: calls by id, checked by generation.
//!
//! Owns which slots are in use and how often each was used. Knows nothing of what a call is.

use crate::message::CallId;

/// Calls in slots. A slot's generation grows with each use, so that the id of an ended call names nothing.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// Slots to use next, the last ended first: its memory is still in the cache.
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Calls in the table.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether no call is in the table.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a call into a free slot.
    ///
    /// # Panics
    ///
    /// With `u32::MAX` calls in the table; whoever inserts keeps far below that.
    pub fn insert(&mut self, value: T) -> CallId {
        let slot = self.free.pop().unwrap_or_else(|| {
            let next = u32::try_from(self.slots.len()).expect("concurrency limits are u32");
            self.slots.push(Slot { generation: 0, value: None });
            next
        });
        let entry = &mut self.slots[slot as usize];
        entry.value = Some(value);
        CallId { slot, generation: entry.generation }
    }

    /// The call with this id, if it has not ended.
    pub fn find(&mut self, id: CallId) -> Option<&mut T> {
        self.slot(id)?.value.as_mut()
    }

    /// Takes the call out; its slot is free for another.
    pub fn remove(&mut self, id: CallId) -> Option<T> {
        let slot = self.slot(id)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(value)
    }

    /// All calls, in the order of their slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (CallId, &mut T)> {
        self.slots.iter_mut().zip(0..).filter_map(|(entry, slot)| {
            let id = CallId { slot, generation: entry.generation };
            entry.value.as_mut().map(|value| (id, value))
        })
    }

    fn slot(&mut self, id: CallId) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut(usize::try_from(id.slot).ok()?)?;
        (slot.generation == id.generation).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_id_of_an_ended_call_names_nothing() {
        let mut slots = Slots::default();
        let first = slots.insert('a');
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b');
        assert_eq!(first.slot, second.slot);
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.find(second), Some(&mut 'b'));
    }

    #[test]
    fn ids_out_of_range_name_nothing() {
        let mut slots = Slots::<char>::default();
        assert_eq!(slots.find(CallId { slot: u32::MAX, generation: 0 }), None);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(operations in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..200)) {
            let mut slots = Slots::default();
            let mut model = BTreeMap::new();
            let mut ended = Vec::new();
            for (value, (insert, pick)) in operations.into_iter().enumerate() {
                if insert || model.is_empty() {
                    prop_assert_eq!(model.insert(slots.insert(value), value), None);
                } else {
                    let id = *model.keys().nth(pick.index(model.len())).expect("within");
                    prop_assert_eq!(slots.remove(id), model.remove(&id));
                    ended.push(id);
                }
                prop_assert_eq!(slots.len(), model.len());
                prop_assert!(ended.iter().all(|id| slots.find(*id).is_none()));
                let listed: Vec<_> = slots.iter_mut().map(|(id, value)| (id, *value)).collect();
                prop_assert_eq!(listed, model.iter().map(|(id, value)| (*id, *value)).collect::<Vec<_>>());
            }
        }
    }
}
