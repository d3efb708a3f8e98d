//! What the generator writes, and what it says when it does not.

mod diagnostics;
mod options;
mod output;
mod scratch;
mod services;
mod snapshots;
mod stubs;
