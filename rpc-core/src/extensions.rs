//! Values that travel with a request inside this process.
//!
//! What an interceptor finds out, a handler can use: who the caller is, for example. Nothing of it is sent.

use std::any::{Any, TypeId, type_name};
use std::collections::BTreeMap;
use std::fmt;

/// At most one value of each type.
#[derive(Default)]
pub struct Extensions(BTreeMap<TypeId, Extension>);

struct Extension {
    type_name: &'static str,
    value: Box<dyn Any + Send + Sync>,
}

/// What absent extensions look like.
pub(crate) static NONE: Extensions = Extensions(BTreeMap::new());

impl Extensions {
    /// Puts a value in; returns the one of the same type that was there.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        let new = Extension { type_name: type_name::<T>(), value: Box::new(value) };
        self.0.insert(TypeId::of::<T>(), new).and_then(Extension::into_value)
    }

    /// The value of this type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.value.downcast_ref()
    }

    /// The value of this type, to change it.
    pub fn get_mut<T: Send + Sync + 'static>(&mut self) -> Option<&mut T> {
        self.0.get_mut(&TypeId::of::<T>())?.value.downcast_mut()
    }

    /// Takes the value of this type out.
    pub fn remove<T: Send + Sync + 'static>(&mut self) -> Option<T> {
        self.0.remove(&TypeId::of::<T>()).and_then(Extension::into_value)
    }
}

impl Extension {
    fn into_value<T: 'static>(self) -> Option<T> {
        self.value.downcast().ok().map(|value| *value)
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By name, since the order of type ids means nothing.
        let mut names: Vec<_> = self.0.values().map(|one| one.type_name).collect();
        names.sort_unstable();
        f.debug_set().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_value() {
        let mut extensions = Extensions::default();
        assert_eq!(extensions.insert("first"), None);
        assert_eq!(extensions.insert(7_u8), None);
        assert_eq!(extensions.insert("second"), Some("first"));
        *extensions.get_mut::<u8>().expect("there") += 1;
        assert_eq!((extensions.get::<u8>(), extensions.get::<u16>()), (Some(&8), None));
        assert_eq!(format!("{extensions:?}"), r#"{"&str", "u8"}"#);
        assert_eq!(extensions.remove::<&str>(), Some("second"));
        assert_eq!(extensions.get::<&str>(), None);
    }
}
