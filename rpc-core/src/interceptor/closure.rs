//! Interceptors from functions.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::{Interceptor, Next, Outcome, Payload};
use crate::request::Request;
use crate::status::Status;

/// An interceptor from a function of tonic's form: it sees a request without its message, and changes its
/// metadata, timeout and extensions, or refuses the call.
///
/// The function is called by one call at a time, so it should be short; what awaits something is an
/// [`Interceptor`].
pub fn from_fn<F>(function: F) -> FromFn<F>
where
    F: FnMut(Request<()>) -> Result<Request<()>, Status> + Send + 'static,
{
    FromFn(Mutex::new(function))
}

/// See [`from_fn`].
pub struct FromFn<F>(Mutex<F>);

impl<F> Interceptor for FromFn<F>
where
    F: FnMut(Request<()>) -> Result<Request<()>, Status> + Send + 'static,
{
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let (request, payload) = request.split();
        let changed = {
            // A function that has panicked before fails its own calls, and those alone.
            let mut function = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (*function)(request)?
        };
        next.run(changed.map(|()| payload)).await
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}
