//! The answers of `grpc.health.v1.Health`. A watch owns what it has said last, and no queue.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::watch::Receiver;
use verbwire::{Request, Response, Status};

use crate::pb::health_check_response::ServingStatus as Told;
use crate::pb::health_server::Health;
use crate::pb::{HealthCheckRequest, HealthCheckResponse};
use crate::reporter::{HealthReporter, ServingStatus, Statuses};

/// Answers checks and watches with what a [`HealthReporter`] was told.
#[derive(Debug)]
pub struct HealthService(HealthReporter);

impl HealthService {
    /// The service that says what `reporter` was told.
    pub fn from_health_reporter(reporter: HealthReporter) -> Self {
        Self(reporter)
    }
}

impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        let Some(status) = self.0.status(service) else {
            return Err(Status::not_found(format!(
                "this server says nothing of the health of a service {service:?}"
            )));
        };
        Ok(Response::new(response(status.told())))
    }

    type WatchStream = Watch;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watch>, Status> {
        let service = request.into_inner().service;
        let turn = Turn::Look(self.0.subscribe());
        Ok(Response::new(Watch { service, told: None, turn }))
    }
}

fn response(status: Told) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// What is said of one service, from now on.
///
/// It looks when it is polled, which is when the client has room: what was said in between is not said.
pub struct Watch {
    service: String,
    told: Option<Told>,
    turn: Turn,
}

enum Turn {
    Look(Receiver<Statuses>),
    /// `None` when nobody is left who could say more.
    Wait(Pin<Box<dyn Future<Output = Option<Receiver<Statuses>>> + Send>>),
    End,
}

impl Watch {
    /// What to say next, if anything.
    fn look(&mut self, mut statuses: Receiver<Statuses>) -> Option<Result<Told, Status>> {
        let (status, is_final) = {
            let statuses = statuses.borrow_and_update();
            (statuses.status(&self.service), statuses.is_final())
        };
        let status = status.map_or(Told::ServiceUnknown, ServingStatus::told);
        if self.told != Some(status) {
            self.told = Some(status);
            self.turn = Turn::Look(statuses);
            return Some(Ok(status));
        }
        if is_final {
            self.turn = Turn::End;
            return Some(Err(Status::unavailable("the server is shutting down")));
        }
        let changed = async move { statuses.changed().await.is_ok().then_some(statuses) };
        self.turn = Turn::Wait(Box::pin(changed));
        None
    }
}

impl Stream for Watch {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match std::mem::replace(&mut self.turn, Turn::End) {
                Turn::Look(statuses) => {
                    if let Some(told) = self.look(statuses) {
                        return Poll::Ready(Some(told.map(response)));
                    }
                }
                Turn::Wait(mut changed) => match changed.as_mut().poll(cx) {
                    Poll::Ready(Some(statuses)) => self.turn = Turn::Look(statuses),
                    Poll::Ready(None) => {}
                    Poll::Pending => {
                        self.turn = Turn::Wait(changed);
                        return Poll::Pending;
                    }
                },
                Turn::End => return Poll::Ready(None),
            }
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("service", &self.service).finish_non_exhaustive()
    }
}
