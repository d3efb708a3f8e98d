//! Which numbers stand for which methods on a connection.
//!
//! A service's methods get consecutive numbers when its first client is made, so that a call needs no
//! look-up. Whether the callee knows a number yet is [`proto::client`](crate::proto::client)'s business.

use crate::message::MethodId;
use crate::service::ServiceDescriptor;

/// The numbers given out on one connection.
#[derive(Debug)]
pub(super) struct MethodNumbers {
    services: Vec<(&'static ServiceDescriptor, ServiceNumbers)>,
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
        Self { services: Vec::new(), next: 1, max }
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
    fn a_service_that_does_not_fit_has_no_numbers() {
        let mut numbers = MethodNumbers::new(2);
        assert_eq!(numbers.register(&ONE).method(0), MethodId(1));
        assert_eq!(numbers.register(&TWO).method(1), MethodId::NONE);
    }
}
