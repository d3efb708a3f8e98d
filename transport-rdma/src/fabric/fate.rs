//! What the fabric does to a work request besides executing it. The one place where malice is decided.
//!
//! Every work request passes [`Script::fate_of`] when it is posted. A test writes the script: by host and by
//! the number of the work request on that host.

use std::collections::BTreeMap;
use std::time::Duration;

use super::host::HostId;

/// What happens to a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// What its device does.
    Execute,
    /// It is executed, and its completion shows so much later. Later completions of that queue wait
    /// behind it.
    LateCompletion(Duration),
    /// It is executed, and its success completes silently. Failures are not lost.
    LostCompletion,
    /// Its host dies before it takes the work request.
    Kill(Death),
}

/// How a host dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// The power goes: nobody is told. Peers find out when a request of theirs stays unanswered.
    Host,
    /// The process ends, and its kernel disconnects what it leaves.
    Process,
}

/// Which work requests are not simply executed.
#[derive(Debug, Default)]
pub(super) struct Script(BTreeMap<(HostId, u64), Fate>);

impl Script {
    pub(super) fn write(&mut self, host: HostId, nth: u64, fate: Fate) {
        self.0.insert((host, nth), fate);
    }

    /// Takes the fate of the `nth` work request that `host` posts.
    pub(super) fn fate_of(&mut self, host: HostId, nth: u64) -> Fate {
        self.0.remove(&(host, nth)).unwrap_or(Fate::Execute)
    }

    /// Lines of the script that have not come true.
    pub(super) fn pending(&self) -> usize {
        self.0.len()
    }
}
