//! What the method numbers of a connection mean.

use super::{Announcement, Refusal, refuse};
use crate::message::MethodId;
use crate::status::Status;

/// Methods by their numbers.
#[derive(Debug)]
pub(super) struct Methods<R> {
    known: Vec<Option<Method<R>>>,
    max: usize,
}

#[derive(Debug, Clone)]
struct Method<R> {
    path: Box<str>,
    /// `None`: nothing is served at the path.
    route: Option<R>,
}

impl<R: Clone> Methods<R> {
    /// None yet; at most `max` numbers.
    pub(super) fn new(max: u32) -> Self {
        Self { known: Vec::new(), max: max as usize }
    }

    /// What the request's method resolves to. The outer error is a violation; the inner one a status.
    pub(super) fn route(
        &mut self,
        request: Announcement<'_>,
        resolve: impl FnOnce(&str) -> Option<R>,
    ) -> Result<Result<R, Refusal>, Refusal> {
        let number = request.method.0 as usize;
        let Some(path) = request.path else {
            let known = self.known.get(number).and_then(Option::as_ref);
            let method = known.ok_or_else(|| {
                Refusal::Violation(format!("method number {number} was never given a path"))
            })?;
            return Ok(method.route.clone().ok_or_else(|| unimplemented_at(&method.path)));
        };
        if number > self.max {
            return Err(Refusal::Violation(format!(
                "method number {number} exceeds max_interned_methods of {}",
                self.max
            )));
        }
        if request.method != MethodId::NONE {
            let known = self.intern(number, path, resolve)?;
            return Ok(known.route.clone().ok_or_else(|| unimplemented_at(path)));
        }
        Ok(resolve(path).ok_or_else(|| unimplemented_at(path)))
    }

    fn intern(
        &mut self,
        number: usize,
        path: &str,
        resolve: impl FnOnce(&str) -> Option<R>,
    ) -> Result<&Method<R>, Refusal> {
        if self.known.len() <= number {
            self.known.resize_with(number + 1, || None);
        }
        let method = self.known[number]
            .get_or_insert_with(|| Method { path: path.into(), route: resolve(path) });
        if *method.path != *path {
            return Err(Refusal::Violation(format!(
                "method number {number} stands for {} and cannot become {path}",
                method.path
            )));
        }
        Ok(method)
    }
}

fn unimplemented_at(path: &str) -> Refusal {
    refuse(Status::unimplemented(format!(
        "{path} is not served here: the service was not added to the server, or the server is an older \
         version of it"
    )))
}
