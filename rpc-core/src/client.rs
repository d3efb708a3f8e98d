//! The caller's side: channels, calls, and the task that drives a connection.
//!
//! * [`Channel`]: where calls go. One plain cloneable type for every transport.
//! * [`Call`], [`StreamingCall`]: a call that runs; a future.
//! * [`OpenCall`]: a call by path, of a method whose form the caller does not know.
//! * [`Session`]: calls that may be repeated, and run once.
//! * [`Client`]: what generated clients are made of.
//!
//! Inside, [`proto::client`](crate::proto::client) holds the rules. `link` joins them to one connection: the
//! calling task encodes and hands its request to the transport; the `driver` task receives, wakes callers,
//! watches deadlines and sends CANCELs. `managed` makes connections one after the other, and finds one for each call.

mod call;
mod cancel;
mod channel;
mod connector;
mod credentials;
mod driver;
mod due;
mod endpoints;
mod in_process;
mod intercepted;
mod link;
mod managed;
mod methods;
mod open_call;
mod remote;
mod replies;
mod retrying;
mod sending;
mod session;
mod streaming_call;
mod stub;
mod table;
mod turn;

pub use call::Call;
pub use cancel::CancelHandle;
pub use channel::Channel;
pub use credentials::CredentialsProvider;
pub use endpoints::{EndpointChanges, Endpoints};
pub use managed::EndpointInfo;
pub use open_call::OpenCall;
pub use session::{Session, Slot};
pub use streaming_call::StreamingCall;
pub use stub::Client;
pub use turn::Turn;

/// What the types promise to those who move them between tasks, checked when this compiles.
const _: () = {
    const fn send_and_sync<T: Send + Sync + 'static>() {}
    const fn send_and_unpin<T: Send + Unpin + 'static>() {}
    send_and_sync::<Channel>();
    send_and_sync::<Client>();
    send_and_sync::<CancelHandle>();
    send_and_sync::<crate::Status>();
    send_and_sync::<crate::Error>();
    send_and_unpin::<Call<()>>();
    send_and_unpin::<StreamingCall<()>>();
    send_and_unpin::<OpenCall>();
    send_and_unpin::<crate::Streaming<()>>();
};
