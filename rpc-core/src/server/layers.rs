//! What stands before every service of a server.

use std::sync::Arc;

use super::limited::{Gate, Limited, LoadLimits};
use crate::interceptor::{Dynamic, Intercepted, Interceptor};
use crate::service::Service;

/// Interceptors, and in front of them the bounds of the whole server.
#[derive(Default)]
pub(super) struct Layers {
    interceptors: Vec<Arc<dyn Dynamic>>,
    gate: Option<Arc<Gate>>,
}

impl Layers {
    /// Puts an interceptor in front of the others.
    pub(super) fn intercept(&mut self, interceptor: impl Interceptor) {
        self.interceptors.push(Arc::new(interceptor));
    }

    /// Bounds what all services run together.
    pub(super) fn limit(&mut self, limits: &LoadLimits) {
        let gate = || Arc::new(Gate::new(limits, "the server"));
        self.gate = (!limits.is_none()).then(gate);
    }

    /// `service` behind all of this; as it is where there is nothing.
    pub(super) fn before(&self, mut service: Arc<dyn Service>) -> Arc<dyn Service> {
        for interceptor in &self.interceptors {
            service = Arc::new(Intercepted::from_arcs(service, Arc::clone(interceptor)));
        }
        match &self.gate {
            Some(gate) => Arc::new(Limited::behind(service, Arc::clone(gate))),
            None => service,
        }
    }
}
