//! Who a client is, before any of its requests is looked at.
//!
//! Owns how the server's hook is asked: once per connection, within the handshake's time, and a panic of it ends nothing else.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use tracing::error;

use crate::panics::{Contained, panic_message};
use crate::status::{Code, Executed, Status};
use crate::transport::{BoxFuture, Path, PeerCertificates};

/// A client that has connected and said HELLO, and of whom nothing more is known yet. `Debug` shows no credentials.
pub struct Newcomer {
    pub(super) path: Path,
    pub(super) certificates: Option<PeerCertificates>,
    pub(super) credentials: Bytes,
    pub(super) software: String,
}

impl Newcomer {
    /// The way that its connection goes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The certificates that it has shown, where its connection asks for them.
    pub fn certificates(&self) -> Option<&PeerCertificates> {
        self.certificates.as_ref()
    }

    /// What its credentials provider gave; `None` if it has none. At most 3 KiB, which anybody may have said: nothing is
    /// known of them before they are checked.
    pub fn credentials(&self) -> Option<&[u8]> {
        (!self.credentials.is_empty()).then_some(&self.credentials)
    }

    /// Name and version of its software, as it says itself.
    pub fn software(&self) -> &str {
        &self.software
    }
}

impl fmt::Debug for Newcomer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Newcomer")
            .field("path", &self.path)
            .field("certificates", &self.certificates)
            .field("credentials", &format_args!("{} bytes", self.credentials.len()))
            .field("software", &self.software)
            .finish()
    }
}

/// What a hook found.
type Identity = Arc<dyn Any + Send + Sync>;

type Hook = dyn Fn(Newcomer) -> BoxFuture<'static, Result<Identity, Status>> + Send + Sync;

/// A server's hook.
#[derive(Clone)]
pub(super) struct Authentication(Arc<Hook>);

impl Authentication {
    pub(super) fn new<F, R, T>(hook: F) -> Self
    where
        F: Fn(Newcomer) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, Status>> + Send + 'static,
        T: Send + Sync + 'static,
    {
        let hook = Arc::new(hook);
        Self(Arc::new(move |newcomer| {
            let hook = Arc::clone(&hook);
            // Called where it is polled, so that a panic of the call itself is caught as well.
            Box::pin(async move {
                let found = hook(newcomer).await?;
                Ok(Arc::new(found) as Identity)
            })
        }))
    }

    /// Asks who `newcomer` is.
    ///
    /// # Errors
    ///
    /// What each of its calls is to be answered with.
    pub(super) async fn ask(
        &self,
        newcomer: Newcomer,
        deadline: Instant,
    ) -> Result<Identity, Status> {
        let found = match timeout_at(deadline, Contained::new((self.0)(newcomer))).await {
            Ok(Ok(found)) => found,
            Ok(Err(panic)) => {
                error!(panic = panic_message(&*panic), "the authentication of a client panicked");
                Err(Status::internal(
                    "the server's authentication panicked; the server's log says why",
                ))
            }
            Err(_elapsed) => Err(Status::unavailable(
                "the server's authentication did not finish within its handshake_timeout; try again later, or raise it",
            )),
        };
        found.map_err(|status| {
            // A hook that fails with `Ok` has let nobody in.
            let code = status.code();
            let status = match code {
                Code::Ok => Status::unauthenticated(status.message()),
                _ => status,
            };
            status.with_executed(Executed::No)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::future::pending;
    use std::time::Duration;

    fn newcomer() -> Newcomer {
        Newcomer {
            path: Path { transport: "mem", local: "here".to_owned(), peer: "there".to_owned() },
            certificates: None,
            credentials: Bytes::from_static(b"secret"),
            software: "test".to_owned(),
        }
    }

    async fn refused(hook: Authentication) -> Status {
        let deadline = Instant::now() + Duration::from_secs(1);
        let status = hook.ask(newcomer(), deadline).await.expect_err("refused");
        assert_eq!(status.executed(), Executed::No);
        status
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_hook_finds_has_its_type() {
        let hook = Authentication::new(|newcomer: Newcomer| async move {
            Ok(newcomer.credentials().map(<[u8]>::len))
        });
        let found = hook.ask(newcomer(), Instant::now() + Duration::from_secs(1)).await;
        assert_eq!(found.expect("let in").downcast_ref(), Some(&Some(6_usize)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_that_refuses_hangs_or_panics_lets_nobody_in() {
        let hook = Authentication::new(|_| async { Err::<(), _>(Status::permission_denied("no")) });
        let status = refused(hook).await;
        assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "no"));
        let hook = Authentication::new(|_| async { Err::<(), _>(Status::new(Code::Ok, "odd")) });
        assert_eq!(refused(hook).await.code(), Code::Unauthenticated);
        let hook = Authentication::new(|_| pending::<Result<(), Status>>());
        assert!(refused(hook).await.message().contains("handshake_timeout"));
        let hook = Authentication::new(|_| async { panic!("within") as Result<(), Status> });
        assert_eq!(refused(hook).await.code(), Code::Internal);
        fn at_once(_: Newcomer) -> std::future::Ready<Result<(), Status>> {
            panic!("before it is a future")
        }
        assert_eq!(refused(Authentication::new(at_once)).await.code(), Code::Internal);
    }

    #[test]
    fn a_newcomer_that_prints_shows_no_credentials() {
        let shown = format!("{:?}", newcomer());
        assert!(shown.contains("6 bytes") && !shown.contains("secret"), "{shown}");
    }
}
