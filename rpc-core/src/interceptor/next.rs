//! What is behind an interceptor.

use std::fmt;
use std::sync::Arc;

use super::progress::{Progress, Traffic};
use super::replies::replies_have_begun;
use super::{Outcome, Payload};
use crate::metadata::MetadataMap;
use crate::request::Request;
use crate::service::MethodDescriptor;
use crate::status::Executed;
use crate::transport::BoxFuture;

/// The rest of a call: further interceptors, and then the channel or the handler.
///
/// It can be cloned, to run the call again.
#[derive(Clone)]
pub struct Next {
    called: Called,
    side: Side,
    rest: Arc<dyn Rest>,
    progress: Arc<Progress>,
}

/// What is called.
#[derive(Clone)]
pub(crate) struct Called {
    pub(crate) method: &'static MethodDescriptor,
    /// Where the method does not say it.
    pub(crate) path: Option<Arc<str>>,
}

/// Where an interceptor stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Before a channel.
    Client,
    /// Before a service.
    Server,
}

/// What an interceptor does with the metadata of replies in a stream, when they begin.
pub(crate) type Begun = Box<dyn FnOnce(&mut MetadataMap) + Send>;

/// What comes behind the last interceptor.
pub(crate) trait Rest: Send + Sync + 'static {
    /// `begun` is for replies in a stream alone.
    fn run(&self, request: Request<Payload>, begun: Option<Begun>) -> BoxFuture<'static, Outcome>;

    /// Whether there is somebody to take the replies of a further run.
    fn can_run(&self) -> bool;
}

impl Next {
    pub(crate) fn new(called: Called, side: Side, rest: Arc<dyn Rest>) -> (Self, Arc<Progress>) {
        let progress = Arc::<Progress>::default();
        (Self { called, side, rest, progress: Arc::clone(&progress) }, progress)
    }

    /// The method that is called, and with it which of its sides are streams. A call by path, and a service
    /// that answers for methods which nobody has described, have one for each pair of forms, whatever the path.
    pub fn method(&self) -> &'static MethodDescriptor {
        self.called.method
    }

    /// The path that is called, for example `/helloworld.Greeter/SayHello`.
    pub fn path(&self) -> &str {
        self.called.path.as_deref().unwrap_or(self.called.method.path)
    }

    /// The side that this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Counts the call's messages as they go by, also those of a call that fails.
    pub fn traffic(&self) -> Traffic {
        Traffic::new(Arc::clone(&self.progress))
    }

    /// Whether the rest of the call may be run, once or once more: not when replies in a stream have begun. The caller has had
    /// them then, and [`run`](Self::run) fails without calling anything.
    pub fn can_run(&self) -> bool {
        self.rest.can_run()
    }

    /// Runs the rest of the call, to its end: where replies are a stream, to the end of that.
    ///
    /// # Errors
    ///
    /// How the call failed. Whatever status an interceptor makes of it, whether the handler ran is kept. `Internal`
    /// without a run where it [can no longer run](Self::can_run). `Cancelled` without a run if an interceptor left this to
    /// a task and ended the call first: its caller was told that it has not been executed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels what it runs.
    pub async fn run(self, request: Request<Payload>) -> Outcome {
        self.run_until_end(request, None).await
    }

    /// As [`run`](Self::run), with a look at how a stream of replies begins: `begun` is given the metadata of the reply
    /// before the caller has it, and may change it. It is not called where the reply is one message, whose metadata are in the
    /// outcome, nor where the call fails before.
    ///
    /// ```
    /// # use verbwire_core as verbwire;
    /// use verbwire::interceptor::{Interceptor, Next, Outcome, Payload};
    /// use verbwire::Request;
    ///
    /// /// Says with every stream of replies which server it is from.
    /// struct Names;
    ///
    /// impl Interceptor for Names {
    ///     async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
    ///         let name = "east-3".parse()?;
    ///         next.run_with(request, |metadata| {
    ///             let _there_is_room = metadata.insert("served-by", name);
    ///         })
    ///         .await
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As for [`run`](Self::run).
    pub async fn run_with(
        self,
        request: Request<Payload>,
        begun: impl FnOnce(&mut MetadataMap) + Send + 'static,
    ) -> Outcome {
        self.run_until_end(request, Some(Box::new(begun))).await
    }

    async fn run_until_end(self, request: Request<Payload>, begun: Option<Begun>) -> Outcome {
        if !self.rest.can_run() {
            return Err(replies_have_begun());
        }
        let mut run = self.progress.begin()?;
        let request = request.map(|payload| payload.counted(&self.progress));
        let outcome = self.rest.run(request, begun).await;
        run.executed = match &outcome {
            Ok(_) => Executed::Yes,
            Err(status) => status.executed(),
        };
        if let Some(reply) = outcome.as_ref().ok().and_then(|response| response.get_ref().body()) {
            self.progress.replies.add(reply.len());
        }
        outcome
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("path", &self.path()).field("side", &self.side).finish()
    }
}
