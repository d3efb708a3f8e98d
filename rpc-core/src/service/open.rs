//! Services whose methods nobody has described: any path, in any form.
//!
//! Such a service has a descriptor all the same: one method for each pair of forms in which it can be called. The path goes
//! with the request.

use std::sync::Arc;

use super::{MethodDescriptor, ServiceDescriptor};
use crate::message::{Form, ReplyForm};
use crate::request::Request;
use crate::status::{Executed, Status};

const ANY: MethodDescriptor = MethodDescriptor::new("(any)", "(any)");

static METHODS: [MethodDescriptor; 6] = [
    ANY,
    ANY.server_streaming(),
    ANY.either(),
    ANY.client_streaming(),
    ANY.client_streaming().server_streaming(),
    ANY.client_streaming().either(),
];

/// The method of an open service that is called in these forms, by its index.
pub(crate) fn open_index(request: Form, reply: ReplyForm) -> usize {
    let row = match request {
        Form::Whole => 0,
        Form::Stream => 3,
    };
    let column = match reply {
        ReplyForm::Whole => 0,
        ReplyForm::Stream => 1,
        ReplyForm::Either => 2,
    };
    row + column
}

/// The same.
pub(crate) fn open_method(request: Form, reply: ReplyForm) -> &'static MethodDescriptor {
    &METHODS[open_index(request, reply)]
}

impl ServiceDescriptor {
    /// A descriptor of a service that answers for every method of this name.
    pub(crate) const fn open(name: &'static str) -> Self {
        Self { name, methods: &METHODS, is_open: true }
    }

    /// Whether it answers for methods that it does not name.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether an open service is meant by `path`.
    pub(crate) fn is_named_in(&self, path: &str) -> bool {
        self.is_open && service_of(path) == Some(self.name)
    }
}

/// The name of the service in a path `/package.Service/Method`.
pub(crate) fn service_of(path: &str) -> Option<&str> {
    path.strip_prefix('/')?.rsplit_once('/').map(|(service, _)| service)
}

/// The path that a service is called for which answers for many. Travels in the extensions of its requests.
#[derive(Debug, Clone)]
pub(crate) struct CalledPath(pub(crate) Arc<str>);

impl<T> Request<T> {
    /// Says which path is called.
    pub(crate) fn set_called_path(&mut self, path: Option<Arc<str>>) {
        if let Some(path) = path {
            self.extensions_mut().insert(CalledPath(path));
        }
    }

    /// The path that is called, where the method does not say it.
    pub(crate) fn called_path(&self) -> Option<&Arc<str>> {
        self.extensions().get::<CalledPath>().map(|called| &called.0)
    }
}

/// Nothing says which method is meant.
pub(crate) fn no_path() -> Status {
    let message = "a service that answers for every method was called by none: call it through a channel or a server";
    Status::internal(message).with_executed(Executed::No)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_forms_has_a_method() {
        for request in [Form::Whole, Form::Stream] {
            for reply in [ReplyForm::Whole, ReplyForm::Stream, ReplyForm::Either] {
                let method = open_method(request, reply);
                assert_eq!((method.request, method.reply), (request, reply));
            }
        }
    }

    #[test]
    fn an_open_service_has_the_paths_that_begin_with_its_name() {
        let service = ServiceDescriptor::open("a.A");
        assert!(service.is_named_in("/a.A/M"));
        for other in ["/a.AB/M", "/b/a.A/M", "a.A/M", "/a.A", ""] {
            assert!(!service.is_named_in(other), "{other}");
        }
    }
}
