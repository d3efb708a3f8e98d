//! Which numbers stand for which methods on a connection.
//!
//! A service's methods get consecutive numbers when its first client is made, so that a call needs no
//! look-up. Methods that are called by their paths get theirs as they come, and have to be looked up. Whether the
//! callee knows a number yet is [`proto::client`](crate::proto::client)'s business.

use std::collections::HashMap;
use std::sync::Arc;

use crate::message::MethodId;
use crate::service::ServiceDescriptor;

/// Most methods that have numbers because they were called by their paths: who hands on what others call must not fill
/// this side's memory.
const MAX_PATHS: u32 = 1024;

/// The numbers given out on one connection.
#[derive(Debug)]
pub(super) struct MethodNumbers {
    services: Vec<(&'static ServiceDescriptor, ServiceNumbers)>,
    /// Only looked up, so that its order does not show.
    paths: HashMap<Arc<str>, MethodId>,
    next: u32,
    max: u32,
}

/// The numbers of one service's methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceNumbers {
    /// The first method's number; the others follow.
    From(u32),
    /// The peer remembers no more numbers: every REQUEST carries its path.
    None,
}

impl MethodNumbers {
    /// No numbers yet; the peer remembers `max`.
    pub(super) fn new(max: u32) -> Self {
        Self { services: Vec::new(), paths: HashMap::new(), next: 1, max }
    }

    /// The numbers of a service, given out now if it is new.
    pub(super) fn register(&mut self, service: &'static ServiceDescriptor) -> ServiceNumbers {
        let known = self.services.iter().find(|(known, _)| known.has_same_paths(service));
        if let Some((_, numbers)) = known {
            return *numbers;
        }
        let numbers = match u32::try_from(service.methods.len()) {
            Ok(count) if count <= self.max - (self.next - 1) => {
                let first = self.next;
                self.next += count;
                ServiceNumbers::From(first)
            }
            _ => ServiceNumbers::None,
        };
        self.services.push((service, numbers));
        numbers
    }

    /// The number of the method at `path`, given out now if it is new. Half of all numbers are for services.
    pub(super) fn number(&mut self, path: &Arc<str>) -> MethodId {
        if let Some(known) = self.paths.get(path) {
            return *known;
        }
        let is_full = self.paths.len() >= MAX_PATHS.min(self.max.div_ceil(2)) as usize;
        if is_full || self.next > self.max {
            return MethodId::NONE;
        }
        let number = MethodId(self.next);
        self.next += 1;
        self.paths.insert(Arc::clone(path), number);
        number
    }
}

impl ServiceNumbers {
    /// The number of a method, by its index in the descriptor.
    pub(super) fn method(self, index: usize) -> MethodId {
        match (self, u32::try_from(index)) {
            (Self::From(first), Ok(index)) => MethodId(first + index),
            _ => MethodId::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::MethodDescriptor;

    static TWO: ServiceDescriptor = ServiceDescriptor::new(
        "a.Two",
        &[MethodDescriptor::new("A", "/a.Two/A"), MethodDescriptor::new("B", "/a.Two/B")],
    );
    static ONE: ServiceDescriptor =
        ServiceDescriptor::new("a.One", &[MethodDescriptor::new("A", "/a.One/A")]);

    #[test]
    fn services_get_consecutive_numbers_once() {
        let mut numbers = MethodNumbers::new(3);
        assert_eq!(numbers.register(&TWO).method(1), MethodId(2));
        assert_eq!(numbers.register(&ONE).method(0), MethodId(3));
        assert_eq!(numbers.register(&TWO).method(0), MethodId(1));
    }

    #[test]
    fn another_version_of_a_service_has_numbers_of_its_own() {
        static TURNED: ServiceDescriptor = ServiceDescriptor::new(
            "a.Two",
            &[MethodDescriptor::new("B", "/a.Two/B"), MethodDescriptor::new("A", "/a.Two/A")],
        );
        let mut numbers = MethodNumbers::new(9);
        assert_eq!(numbers.register(&TWO).method(0), MethodId(1));
        assert_eq!(numbers.register(&TURNED).method(0), MethodId(3));
    }

    #[test]
    fn paths_have_numbers_of_their_own_and_leave_half_of_all_to_services() {
        let mut numbers = MethodNumbers::new(4);
        assert_eq!(numbers.number(&"/b.B/A".into()), MethodId(1));
        assert_eq!(numbers.register(&ONE).method(0), MethodId(2));
        assert_eq!(numbers.number(&"/b.B/B".into()), MethodId(3));
        assert_eq!(numbers.number(&"/b.B/C".into()), MethodId::NONE);
        assert_eq!(numbers.number(&"/b.B/A".into()), MethodId(1));
        assert_eq!(numbers.register(&TWO).method(0), MethodId::NONE);
        let mut numbers = MethodNumbers::new(1 << 20);
        let taken =
            (0..2000).filter(|n| numbers.number(&format!("/b.B/{n}").into()) != MethodId::NONE);
        assert_eq!(taken.count(), MAX_PATHS as usize);
    }

    #[test]
    fn a_service_that_does_not_fit_has_no_numbers() {
        let mut numbers = MethodNumbers::new(2);
        assert_eq!(numbers.register(&ONE).method(0), MethodId(1));
        assert_eq!(numbers.register(&TWO).method(1), MethodId::NONE);
    }
}
