//! What a server is to know a client by.
//!
//! Owns when the provider is asked: once for each connection, within its time, and never for one that others can read.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind};
use crate::panics::{Contained, panic_message};
use crate::transport::{BoxFuture, Secrecy, Target};
use crate::wire::hello::MAX_CREDENTIALS;

type Given = Result<Bytes, Box<dyn StdError + Send + Sync>>;

/// Gives the credentials of a client, anew for each connection, so that they may change. `Debug` shows none of it.
#[derive(Clone)]
pub struct CredentialsProvider(Arc<dyn Fn() -> BoxFuture<'static, Given> + Send + Sync>);

impl CredentialsProvider {
    /// Asks `provider`, which reads a file or asks a service for a token.
    pub fn new<F, R, B, E>(provider: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<B, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let provider = Arc::new(provider);
        Self(Arc::new(move || {
            let provider = Arc::clone(&provider);
            // Called where it is polled, so that a panic of the call itself is caught as well.
            Box::pin(async move { provider().await.map(Into::into).map_err(Into::into) })
        }))
    }

    /// The credentials for a connection to `target`.
    async fn ask(&self, target: &Target, deadline: Instant) -> Result<Bytes, Error> {
        let untrusted = |why: &str| {
            let message = format!("not connected to {target}, the credentials provider {why}");
            Error::new(ErrorKind::Untrusted, message)
        };
        let given = match timeout_at(deadline, Contained::new((self.0)())).await {
            Ok(Ok(Ok(given))) => given,
            Ok(Ok(Err(error))) => {
                let message = format!("not connected to {target}, the credentials provider failed");
                return Err(Error::with_source(ErrorKind::Untrusted, message, error));
            }
            Ok(Err(panic)) => {
                tracing::error!(
                    panic = panic_message(&*panic),
                    "the credentials provider panicked"
                );
                return Err(untrusted("panicked; the log says why"));
            }
            Err(_elapsed) => {
                let message = format!(
                    "not connected to {target}, the credentials provider did not answer within connect_timeout: raise \
                     it, or keep what it fetches"
                );
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
        };
        match given.len() {
            0 => Err(untrusted("gave nothing: have it fail, or leave it out")),
            1..=MAX_CREDENTIALS => Ok(given),
            len => Err(untrusted(&format!(
                "gave {len} bytes, {MAX_CREDENTIALS} fit: give a shorter token, or show a certificate over tls://"
            ))),
        }
    }
}

impl fmt::Debug for CredentialsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider")
    }
}

/// What a HELLO to `target` brings; nothing if this client has no credentials.
///
/// # Errors
///
/// Others could read them there; or there are none.
pub(super) async fn for_connection(
    config: &ClientConfig,
    target: &Target,
    secrecy: Secrecy,
    deadline: Instant,
) -> Result<Bytes, Error> {
    let Some(provider) = &config.credentials else {
        return Ok(Bytes::new());
    };
    if secrecy == Secrecy::Plaintext && !config.allow_plaintext_credentials {
        let message = format!(
            "not connected to {target}, which would carry this client's credentials for everybody to read: connect to \
             tls://, or set allow_plaintext_credentials(true) where everybody on the way may have them"
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    provider.ask(target, deadline).await
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::future::pending;
    use std::io;
    use std::time::Duration;

    async fn given(provider: CredentialsProvider, secrecy: Secrecy) -> Result<Bytes, Error> {
        let config = ClientConfig { credentials: Some(provider), ..ClientConfig::default() };
        let target = Target::new("x", "there");
        let deadline = Instant::now() + Duration::from_secs(1);
        for_connection(&config, &target, secrecy, deadline).await
    }

    async fn refused(provider: CredentialsProvider) -> Error {
        given(provider, Secrecy::Local).await.expect_err("nothing to show")
    }

    #[tokio::test]
    async fn nobody_is_asked_where_others_can_read_the_answer() {
        let provider = CredentialsProvider::new(|| {
            panic!("asked");
            #[expect(unreachable_code, reason = "it gives the closure its type")]
            async {
                Ok::<_, io::Error>("token")
            }
        });
        let error = given(provider, Secrecy::Plaintext).await.expect_err("it is plaintext");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("allow_plaintext_credentials(true)"), "{error}");
        for secrecy in [Secrecy::Encrypted, Secrecy::Local] {
            let provider = CredentialsProvider::new(|| async { Ok::<_, io::Error>("token") });
            assert_eq!(given(provider, secrecy).await.expect("a token"), "token");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_fails_hangs_panics_or_gives_too_much_is_told_in_words() {
        let fails = || async { Err::<Bytes, _>(io::Error::other("no such file")) };
        let error = refused(CredentialsProvider::new(fails)).await;
        assert_eq!(error.kind(), ErrorKind::Untrusted);
        assert!(error.to_string().ends_with("provider failed: no such file"), "{error}");
        let error = refused(CredentialsProvider::new(pending::<Result<Bytes, io::Error>>)).await;
        assert!(error.is_timeout() && error.to_string().contains("connect_timeout"), "{error}");
        let panics = || async { panic!("within") as Result<Bytes, io::Error> };
        let error = refused(CredentialsProvider::new(panics)).await;
        assert!(error.to_string().contains("panicked"), "{error}");
        let gives = |len| move || async move { Ok::<_, io::Error>(vec![b'S'; len]) };
        let error = refused(CredentialsProvider::new(gives(MAX_CREDENTIALS + 1))).await;
        assert!(error.to_string().contains("3073 bytes, 3072 fit"), "{error}");
        assert!(!error.to_string().contains("SS"), "{error}");
        refused(CredentialsProvider::new(gives(0))).await;
        let most = given(CredentialsProvider::new(gives(MAX_CREDENTIALS)), Secrecy::Local).await;
        assert_eq!(most.expect("they fit").len(), MAX_CREDENTIALS);
    }

    #[test]
    fn a_config_that_prints_shows_no_credentials() {
        let token = "a token";
        let provider = CredentialsProvider::new(move || async move { Ok::<_, io::Error>(token) });
        let config = ClientConfig { credentials: Some(provider), ..ClientConfig::default() };
        let shown = format!("{config:?}");
        assert!(shown.contains("CredentialsProvider") && !shown.contains(token), "{shown}");
    }
}
