//! From a method's path to the service that has it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::layers::Layers;
use super::sessions::Opening;
use crate::error::{Error, ErrorKind};
use crate::message::{Form, ReplyForm};
use crate::proto::server::{Forms, Shape, Streaming};
use crate::service::{MethodDescriptor, Service, open_index, open_method, service_of};
use crate::wire::head::MAX_PATH;

/// All services of a server.
#[derive(Default)]
pub(super) struct Router {
    /// Only looked up, so that its order does not show.
    routes: HashMap<&'static str, Route>,
    /// By their names: those that answer for every method. Only looked up as well.
    open: HashMap<&'static str, Arc<dyn Service>>,
    layers: Layers,
    fallback: Option<Arc<dyn Service>>,
}

/// A method of a service.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) service: Arc<dyn Service>,
    which: Which,
}

#[derive(Clone)]
enum Which {
    /// One that it describes.
    Index(usize),
    /// One of an open service.
    At(Arc<str>),
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
        fallback: Option<Arc<dyn Service>>,
    ) -> Result<Self, Error> {
        if services.is_empty() && fallback.is_none() {
            let message = "a server without services answers nothing: call add_service first";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        if let Some(sessions) = layers.sessions() {
            services.push(Arc::new(Opening(sessions.clone())));
        }
        let fallback = fallback.map(|fallback| layers.before(fallback));
        let mut router = Self { layers, fallback, ..Self::default() };
        let mut names = BTreeSet::new();
        for service in services {
            let name = service.descriptor().name;
            if !names.insert(name) {
                let message = format!("service {name} was added twice: remove one add_service");
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            let service = router.layers.before(service);
            if service.descriptor().is_open() {
                router.open.insert(name, service);
                continue;
            }
            router.add_methods(&service)?;
        }
        Ok(router)
    }

    /// Adds what belongs to the connections themselves: no layer stands before it.
    ///
    /// # Errors
    ///
    /// A service has its methods already.
    pub(super) fn add_internal(&mut self, service: impl Service) -> Result<(), Error> {
        self.add_methods(&(Arc::new(service) as Arc<dyn Service>))
    }

    fn add_methods(&mut self, service: &Arc<dyn Service>) -> Result<(), Error> {
        for (index, method) in service.descriptor().methods.iter().enumerate() {
            let route = Route { service: Arc::clone(service), which: Which::Index(index) };
            self.add(method, route)?;
        }
        Ok(())
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
        let open = service_of(path).and_then(|name| self.open.get(name));
        let service = Arc::clone(open.or(self.fallback.as_ref())?);
        Some(Route { service, which: Which::At(path.into()) })
    }
}

impl Streaming for Route {
    fn shape(&self) -> Shape {
        let Which::Index(index) = self.which else { return Shape::Open };
        let method = &self.service.descriptor().methods[index];
        let reply = if method.reply == ReplyForm::Whole { Form::Whole } else { Form::Stream };
        Shape::Known { request: method.request, reply }
    }
}

impl Route {
    /// The method that a call in these forms runs.
    pub(super) fn method(&self, forms: Forms) -> &'static MethodDescriptor {
        match self.which {
            Which::Index(index) => &self.service.descriptor().methods[index],
            Which::At(_) => open_method(forms.request, forms.reply),
        }
    }

    /// Its index.
    pub(super) fn index(&self, forms: Forms) -> usize {
        match self.which {
            Which::Index(index) => index,
            Which::At(_) => open_index(forms.request, forms.reply),
        }
    }

    /// The path, where the method does not say it.
    pub(super) fn path(&self) -> Option<&Arc<str>> {
        match &self.which {
            Which::Index(_) => None,
            Which::At(path) => Some(path),
        }
    }
}
