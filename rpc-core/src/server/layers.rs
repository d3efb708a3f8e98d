//! What stands before every service of a server.

use std::sync::Arc;

use tokio::sync::watch;

use super::limited::{Gate, Limited, LoadLimits};
use super::sessions::{Once, Sessions};
use crate::interceptor::{Dynamic, Intercepted, Interceptor};
use crate::service::Service;

/// What makes calls with slots run once, interceptors before that, and in front of them the bounds of the whole server.
#[derive(Default)]
pub(super) struct Layers {
    interceptors: Vec<Arc<dyn Dynamic>>,
    gate: Option<Arc<Gate>>,
    sessions: Option<Sessions>,
    /// Closes when the server has ended.
    server: watch::Sender<()>,
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

    /// Lets calls with slots run once.
    pub(super) fn keep(&mut self, sessions: &Sessions) {
        self.sessions = Some(sessions.clone());
    }

    pub(super) fn sessions(&self) -> Option<&Sessions> {
        self.sessions.as_ref()
    }

    /// `service` behind all of this; as it is where there is nothing.
    pub(super) fn before(&self, mut service: Arc<dyn Service>) -> Arc<dyn Service> {
        if let Some(sessions) = &self.sessions {
            let server = self.server.subscribe();
            service = Arc::new(Once::new(service, sessions.clone(), self.gate.clone(), server));
        }
        for interceptor in &self.interceptors {
            service = Arc::new(Intercepted::from_arcs(service, Arc::clone(interceptor)));
        }
        match &self.gate {
            Some(gate) => {
                let (gate, sessions) = (Arc::clone(gate), self.sessions.clone());
                Arc::new(Limited::behind(service, gate, sessions))
            }
            None => service,
        }
    }
}
