//! The connection manager's side of the seam. Each handle lets go of what it stands for when it is dropped.

use std::future::{poll_fn, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use verbwire_core::transport::BoxFuture;
use verbwire_core::{Error, ErrorKind};

use super::conn::{EndId, Role};
use super::listen::{ListenAddress, Request};
use crate::fabric::nic::FabricNic;
use crate::fabric::qp::{FabricQp, QpId};
use crate::fabric::shared::Shared;
use crate::nic::{Cm, CmConnection, CmListener, ConnectRequest, Connected, Nic, Qp, Resolved};

/// A host's connection manager.
pub(in crate::fabric) struct FabricCm {
    shared: Arc<Shared>,
    nic: Arc<FabricNic>,
}

impl FabricCm {
    pub(in crate::fabric) fn new(shared: Arc<Shared>, nic: Arc<FabricNic>) -> Self {
        Self { shared, nic }
    }
}

impl Cm for FabricCm {
    fn resolve<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Resolved>, Error>> {
        let found = self.shared.with(|network| network.resolve(self.nic.host(), address));
        let (shared, nic) = (Arc::clone(&self.shared), Arc::clone(&self.nic));
        let address = address.to_owned();
        let resolved = found.map(|()| Box::new(FabricResolved { shared, nic, address }) as _);
        Box::pin(ready(resolved))
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn CmListener>, Error>> {
        let bound = self.shared.with(|network| network.listen(self.nic.host(), address));
        let (shared, nic) = (Arc::clone(&self.shared), Arc::clone(&self.nic));
        let listener =
            bound.map(|(key, address)| Box::new(FabricListener { shared, nic, key, address }) as _);
        Box::pin(ready(listener))
    }
}

struct FabricResolved {
    shared: Arc<Shared>,
    nic: Arc<FabricNic>,
    address: String,
}

impl Resolved for FabricResolved {
    fn nic(&self) -> Arc<dyn Nic> {
        Arc::clone(&self.nic) as Arc<dyn Nic>
    }

    fn connect(
        self: Box<Self>,
        qp: Arc<dyn Qp>,
        private_data: Vec<u8>,
    ) -> BoxFuture<'static, Result<Connected, Error>> {
        Box::pin(async move {
            let Self { shared, nic, address } = *self;
            let qp = own_qp(&shared, &*qp)?;
            let (id, local) =
                shared.with(|network| network.connect((nic.host(), qp), &address, private_data))?;
            stand(FabricEnd { shared, id }, (local, address)).await
        })
    }
}

struct FabricListener {
    shared: Arc<Shared>,
    nic: Arc<FabricNic>,
    key: ListenAddress,
    address: String,
}

impl CmListener for FabricListener {
    fn local_address(&self) -> &str {
        &self.address
    }

    fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Box<dyn ConnectRequest>, Error>> {
        let request = self.shared.with(|network| network.poll_request(self.key, cx));
        request.map_ok(|Request { conn, peer, private_data }| {
            let id = EndId { conn, role: Role::Passive };
            let end = FabricEnd { shared: Arc::clone(&self.shared), id };
            let (nic, local) = (Arc::clone(&self.nic), self.address.clone());
            Box::new(FabricRequest { end, nic, local, peer, private_data }) as _
        })
    }
}

impl Drop for FabricListener {
    fn drop(&mut self) {
        self.shared.with(|network| network.unlisten(self.key));
    }
}

/// A request. Dropped, it refuses.
struct FabricRequest {
    end: FabricEnd,
    nic: Arc<FabricNic>,
    local: String,
    peer: String,
    private_data: Vec<u8>,
}

impl ConnectRequest for FabricRequest {
    fn nic(&self) -> Arc<dyn Nic> {
        Arc::clone(&self.nic) as Arc<dyn Nic>
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn accept(
        self: Box<Self>,
        qp: Arc<dyn Qp>,
        private_data: Vec<u8>,
    ) -> BoxFuture<'static, Result<Connected, Error>> {
        Box::pin(async move {
            let Self { end, nic, local, peer, .. } = *self;
            let qp = own_qp(&end.shared, &*qp)?;
            let conn = end.id.conn;
            end.shared.with(|network| network.accept(conn, (nic.host(), qp), private_data))?;
            stand(end, (local, peer)).await
        })
    }

    fn reject(self: Box<Self>, private_data: Vec<u8>) {
        let FabricEnd { shared, id } = &self.end;
        shared.with(|network| network.reject(id.conn, private_data));
    }
}

/// One side of a connection. Dropped, it disconnects.
struct FabricEnd {
    shared: Arc<Shared>,
    id: EndId,
}

impl CmConnection for FabricEnd {
    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        self.shared.with(|network| network.poll_over(self.id, cx))
    }

    fn disconnect(&mut self) {
        self.shared.with(|network| network.disconnect(self.id));
    }
}

impl Drop for FabricEnd {
    fn drop(&mut self) {
        self.shared.with(|network| network.leave(self.id));
    }
}

/// Waits until the connection stands. Dropped before, it gives up.
async fn stand(end: FabricEnd, addresses: (String, String)) -> Result<Connected, Error> {
    let private_data =
        poll_fn(|cx| end.shared.with(|network| network.poll_outcome(end.id, cx))).await?;
    // The fabric has names for addresses, and messages without packets.
    Ok(Connected { private_data, addresses, gid: None, mtu: None, events: Box::new(end) })
}

fn own_qp(shared: &Arc<Shared>, qp: &dyn Qp) -> Result<QpId, Error> {
    let own = qp.as_any().downcast_ref::<FabricQp>().filter(|own| own.is_on(shared));
    own.map(FabricQp::id).ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "the queue pair belongs to another network")
    })
}
