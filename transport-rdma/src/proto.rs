//! The rules of a connection over RDMA, without device, clock or task.
//!
//! * `greeting`: the private data of connect requests.
//! * [`credit`]: a sender never sends what its peer has no receive for.
//! * [`grants`]: whose landing memory is granted next, over all connections of a device.
//! * [`loans`]: who may have how many of the receives that connections share.
//! * [`rendezvous`]: long bodies, by Writes into granted memory.
//! * [`send_queue`]: how many work requests fit, and which of them are signalled.
//! * `spin`: how often an empty completion queue is polled again.

pub mod credit;
pub mod grants;
pub(crate) mod greeting;
pub mod loans;
pub mod rendezvous;
pub mod send_queue;
pub(crate) mod spin;
