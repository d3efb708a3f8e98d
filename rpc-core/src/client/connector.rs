//! Makes connections to one address. Owns what each of them begins with; keeps none.

use std::sync::Arc;

use tokio::time::Instant;

use super::driver::Driver;
use super::link::Link;
use super::methods::MethodNumbers;
use super::table::Table;
use crate::config::ClientConfig;
use crate::error::Error;
use crate::proto::deadlines::deadline_after;
use crate::proto::hello::{Identity, agree};
use crate::sync::Mutex;
use crate::transport::{LocalSide, Target, Transport};

pub(super) struct Connector {
    transport: Arc<dyn Transport>,
    target: Target,
    config: ClientConfig,
    identity: Identity,
    methods: Arc<Mutex<MethodNumbers>>,
}

impl Connector {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        target: &Target,
        config: &ClientConfig,
        methods: Arc<Mutex<MethodNumbers>>,
    ) -> Self {
        let identity = Identity::new(config.random.clone());
        Self { transport, target: target.clone(), config: config.clone(), identity, methods }
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(super) fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// A connection that has said HELLO. Its driver runs on the runtime that polls this.
    ///
    /// Dropping the future gives the attempt up.
    pub(super) async fn connect(&self) -> Result<Arc<Link>, Error> {
        let hello = self.identity.hello(&self.config.limits);
        let table = Arc::new(Table::default());
        let local = LocalSide {
            hello: hello.clone(),
            placement: Arc::clone(&table) as _,
            deadline: deadline_after(Instant::now(), self.config.connect_timeout),
            ticket: None,
        };
        let established = self.transport.connect(&self.target, local).await?;
        if let Err(error) = agree(&hello, &established.peer) {
            established.connection.close(error.clone());
            return Err(error);
        }
        let (transport, methods) = (Arc::clone(&self.transport), Arc::clone(&self.methods));
        let window = hello.stream_window;
        let link = Link::new(transport, table, established, &self.config, methods, window);
        tokio::spawn(Driver::new(Arc::clone(link.shared())));
        Ok(Arc::new(link))
    }
}
