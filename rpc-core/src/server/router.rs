//! From a method's path to the service that has it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::fallback::{self, At, Fallback};
use super::layers::Layers;
use super::sessions::Opening;
use crate::error::{Error, ErrorKind};
use crate::message::Form;
use crate::proto::server::{Shape, Streaming};
use crate::service::{MethodDescriptor, Service};
use crate::wire::head::MAX_PATH;

/// All services of a server.
#[derive(Default)]
pub(super) struct Router {
    /// Only looked up, so that its order does not show.
    routes: HashMap<&'static str, Route>,
    layers: Layers,
    fallback: Option<Arc<dyn Fallback>>,
}

/// A method of a service.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) service: Arc<dyn Service>,
    pub(super) index: usize,
}

impl Router {
    /// A router over `services`, each behind `layers`, and what answers for all other paths.
    ///
    /// # Errors
    ///
    /// There is no service, two have the same name, or a path is longer than the wire format carries.
    pub(super) fn new(
        mut services: Vec<Arc<dyn Service>>,
        layers: Layers,
        fallback: Option<Arc<dyn Fallback>>,
    ) -> Result<Self, Error> {
        if services.is_empty() && fallback.is_none() {
            let message = "a server without services answers nothing: call add_service first";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        if let Some(sessions) = layers.sessions() {
            services.push(Arc::new(Opening(sessions.clone())));
        }
        let mut router = Self { layers, fallback, ..Self::default() };
        let mut names = BTreeSet::new();
        for service in services {
            let name = service.descriptor().name;
            if !names.insert(name) {
                let message = format!("service {name} was added twice: remove one add_service");
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            let service = router.layers.before(service);
            for (index, method) in service.descriptor().methods.iter().enumerate() {
                let route = Route { service: Arc::clone(&service), index };
                router.add(method, route)?;
            }
        }
        Ok(router)
    }

    fn add(&mut self, method: &MethodDescriptor, route: Route) -> Result<(), Error> {
        let invalid = |why: String| Err(Error::new(ErrorKind::InvalidInput, why));
        if method.path.len() > MAX_PATH {
            return invalid(format!(
                "the method path {} has {} bytes, at most {MAX_PATH} are allowed",
                method.path,
                method.path.len()
            ));
        }
        if self.routes.insert(method.path, route).is_some() {
            return invalid(format!("two services have the method path {}", method.path));
        }
        Ok(())
    }

    /// Whether calls with slots run once here.
    pub(super) fn has_sessions(&self) -> bool {
        self.layers.sessions().is_some()
    }

    /// The method at `path`.
    pub(super) fn resolve(&self, path: &str) -> Option<Route> {
        if let Some(route) = self.routes.get(path) {
            return Some(route.clone());
        }
        let fallback = Arc::clone(self.fallback.as_ref()?);
        let service = self.layers.before(Arc::new(At { path: path.into(), fallback }));
        Some(Route { service, index: 0 })
    }
}

impl Streaming for Route {
    fn shape(&self) -> Shape {
        let method = self.method();
        Shape { request: method.request, reply: method.reply }
    }

    fn in_form(self, request: Form) -> Self {
        match self.service.fallback_path() {
            Some(_) => Self { index: fallback::method(request), ..self },
            None => self,
        }
    }
}

impl Route {
    pub(super) fn method(&self) -> &'static MethodDescriptor {
        &self.service.descriptor().methods[self.index]
    }
}
