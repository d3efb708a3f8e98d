//! Each rule of the fabric has a test; the rig connects two hosts in a few lines.

mod connections;
mod determinism;
mod domains;
mod endings;
mod errors;
mod faults;
mod limits;
mod malice;
mod messages;
mod pools;
mod random;
mod rig;
mod srq;
mod windows;
