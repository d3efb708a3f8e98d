//! What a server says of its services. Owns their statuses; does not answer calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use verbwire::NamedService;

use crate::pb::health_check_response::ServingStatus as Told;
use crate::pb::health_server::HealthServer;
use crate::service::HealthService;

/// Whether a service serves, as its server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServingStatus {
    /// It is not known.
    Unknown,
    /// It does.
    Serving,
    /// It does not, for now.
    NotServing,
}

impl ServingStatus {
    pub(crate) fn told(self) -> Told {
        match self {
            Self::Unknown => Told::Unknown,
            Self::Serving => Told::Serving,
            Self::NotServing => Told::NotServing,
        }
    }
}

/// A reporter and the health service that says what it was told, for `add_service`.
///
/// The service is that of one server, whose own name is `""`: it serves unless something else is said of it.
pub fn health_reporter() -> (HealthReporter, HealthServer<HealthService>) {
    let reporter = HealthReporter::new();
    let service = HealthService::from_health_reporter(reporter.clone());
    (reporter, HealthServer::new(service))
}

/// Says which services serve. Clones speak of the same server.
///
/// What is said reaches every watch, the latest at last: a watch that is slow is not told what was true in between.
#[derive(Debug, Clone)]
pub struct HealthReporter(Arc<watch::Sender<Statuses>>);

/// What was said of every service that something was said of.
#[derive(Debug, Default)]
pub(crate) struct Statuses {
    by_service: BTreeMap<String, ServingStatus>,
    is_shut_down: bool,
}

impl HealthReporter {
    /// Of a server that serves, and of no service.
    pub fn new() -> Self {
        let server = (String::new(), ServingStatus::Serving);
        let statuses = Statuses { by_service: BTreeMap::from([server]), is_shut_down: false };
        Self(Arc::new(watch::Sender::new(statuses)))
    }

    /// The service that `S` is the server of, for example `GreeterServer<MyGreeter>`, serves.
    pub fn set_serving<S: NamedService>(&self) {
        self.set_service_status(S::NAME, ServingStatus::Serving);
    }

    /// The service that `S` is the server of does not serve.
    pub fn set_not_serving<S: NamedService>(&self) {
        self.set_service_status(S::NAME, ServingStatus::NotServing);
    }

    /// Says this of a service by its name, as `shop.Orders`; `""` is the whole server. After a
    /// [`shutdown`](Self::shutdown) it says nothing.
    pub fn set_service_status(&self, service: impl AsRef<str>, status: ServingStatus) {
        let service = service.as_ref();
        self.change(|by_service| match by_service.get_mut(service) {
            Some(known) => std::mem::replace(known, status) != status,
            None => by_service.insert(service.to_owned(), status).is_none(),
        });
    }

    /// Nothing is known any more of a service: a check finds none of this name, a watch says `SERVICE_UNKNOWN` and waits.
    pub fn clear_service_status(&self, service: &str) {
        self.change(|by_service| by_service.remove(service).is_some());
    }

    /// No service serves any more, nor does the server; nothing that is said later counts.
    ///
    /// A watch says so and ends with `Unavailable`, so that a server that drains does not wait for it. To be called when the
    /// server begins to shut down; to send clients away before, use [`set_service_status`](Self::set_service_status).
    pub fn shutdown(&self) {
        self.0.send_if_modified(|statuses| {
            for status in statuses.by_service.values_mut() {
                *status = ServingStatus::NotServing;
            }
            !std::mem::replace(&mut statuses.is_shut_down, true)
        });
    }

    /// Changes what is said; `change` returns whether it did.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, ServingStatus>) -> bool) {
        self.0.send_if_modified(|statuses| {
            !statuses.is_shut_down && change(&mut statuses.by_service)
        });
    }

    /// What is said of a service; `None` if nothing is.
    pub(crate) fn status(&self, service: &str) -> Option<ServingStatus> {
        self.0.borrow().status(service)
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Statuses> {
        self.0.subscribe()
    }
}

impl Default for HealthReporter {
    fn default() -> Self {
        Self::new()
    }
}

impl Statuses {
    pub(crate) fn status(&self, service: &str) -> Option<ServingStatus> {
        self.by_service.get(service).copied()
    }

    /// Whether what is said now is the last.
    pub(crate) fn is_final(&self) -> bool {
        self.is_shut_down
    }
}
