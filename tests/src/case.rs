//! What a case is.

use std::future::Future;
use std::pin::Pin;

use crate::fixture::Fixture;

/// A case that runs over every transport which has what it needs.
#[derive(Debug, Clone)]
pub struct Case {
    /// The module that it is in.
    pub topic: &'static str,
    /// Its function, whose name is a sentence.
    pub name: &'static str,
    /// What it needs of a transport.
    pub needs: &'static [Need],
    /// Whether it can do with a virtual clock where the transport can.
    pub time: Time,
    /// Runs it; a failure is a panic.
    pub run: fn(Fixture) -> Pin<Box<dyn Future<Output = ()>>>,
}

/// What a case may need of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A connection, and a server at its other end.
    Connection,
    /// Long bodies that travel in pieces.
    Pieces,
    /// One path for all calls of a channel.
    OnePath,
}

/// The clock of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// On one thread; time stands still while a task can run, and jumps when none can.
    Virtual,
    /// On two threads, with the machine's clock.
    Real,
}

impl Case {
    /// A case that needs a connection.
    #[must_use]
    pub const fn over_a_connection(mut self) -> Self {
        self.needs = &[Need::Connection];
        self
    }

    /// A case about what calls see of the one path that they take.
    #[must_use]
    pub const fn over_one_path(mut self) -> Self {
        self.needs = &[Need::OnePath];
        self
    }

    /// The same of one that needs a connection.
    #[must_use]
    pub const fn over_one_connection(mut self) -> Self {
        self.needs = &[Need::Connection, Need::OnePath];
        self
    }

    /// A case about bodies in pieces.
    #[must_use]
    pub const fn in_pieces(mut self) -> Self {
        self.needs = &[Need::Pieces];
        self
    }

    /// A case with other threads, processes or runtimes, for which a virtual clock would not wait.
    #[must_use]
    pub const fn in_real_time(mut self) -> Self {
        self.time = Time::Real;
        self
    }

    /// The name of the case over `backend`, as filters see it.
    pub fn path(&self, backend: &str) -> String {
        format!("{backend}::{}::{}", self.topic, self.name)
    }
}

/// A [`Case`] from an `async fn(Fixture)`.
#[macro_export]
macro_rules! case {
    ($function:ident) => {
        $crate::case::Case {
            topic: $crate::case::topic(::core::module_path!()),
            name: ::core::stringify!($function),
            needs: &[],
            time: $crate::case::Time::Virtual,
            run: |fixture| ::std::boxed::Box::pin($function(fixture)),
        }
    };
}

/// The last part of a module's path.
pub const fn topic(path: &'static str) -> &'static str {
    let bytes = path.as_bytes();
    let mut start = bytes.len();
    while start > 0 && bytes[start - 1] != b':' {
        start -= 1;
    }
    path.split_at(start).1
}
