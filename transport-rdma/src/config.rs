//! The settings of an RDMA transport, with their defaults and reasons.
//!
//! Limits on messages are not here: both sides announce them in HELLO, so they belong to the core's
//! `Limits`. What is announced of these (windows and the length of receives), the transport fills in.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::memory::Poison;
use crate::pool::{LandingConfig, PoolSize};
use crate::proto::credit::Windows;

/// Lengths that receives may have. The shortest still holds the longest method path beside a body worth
/// sending; the longest is where a copy costs as much as the round trip that it saves.
pub(crate) const EAGER: RangeInclusive<usize> = 4 << 10..=64 << 10;

/// Frames in flight that a window may have: what a receive queue of every device holds.
pub(crate) const WINDOW: RangeInclusive<u32> = 1..=4096;

/// Standing grants that a client takes at a time. 8: they cost it nothing, and are looked through for each request.
pub(crate) const STANDING: u32 = 8;

/// Longest request for which there are standing grants: the longest message.
const STANDING_LEN: u32 = LONGEST;

/// Longest buffer that pools are made for. 1 GiB: the longest message.
const LONGEST: u32 = 1 << 30;

/// Writes in flight that a connection may have. 256: of the shortest chunks these are a megabyte, more than any wire has in
/// flight.
const WRITES: u32 = 256;

/// Receives that connections may share: at least what a few need, at most what the queues of most devices hold.
const SHARED: RangeInclusive<u32> = 64..=32_768;

/// Longest time for buffers to come back from a queue pair in the error state.
const DRAIN: Duration = Duration::from_secs(60);

/// Settings of an [`RdmaTransport`](crate::RdmaTransport). Values out of range are moved into it.
///
/// The defaults make 984 KiB of registered memory per connection: (64 + 16 + 3) receives and 40 sends of
/// 8 KiB each. [`for_many`](Self::for_many) has settings for hundreds of connections and more.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// Data frames that the peer may have in flight to this side. 64: several times what the round trip of
    /// a rack takes at the rate of small calls. 1 to 4096.
    pub data_window: u32,
    /// Control frames that the peer may have in flight, apart from data. 16: they are short, rare and
    /// taken at once. 1 to 4096.
    pub control_window: u32,
    /// Receives of `eager_len` bytes that all connections of a device share, instead of having their own. 0, which is off. Else
    /// 64 to 32768; the device's limit where that is lower.
    ///
    /// Each connection is promised 6 of them for as long as it lives. A connection whose peer has more to send borrows some,
    /// up to `data_window`, from what others do not need; so a sixteenth more than 6 for each connection is the least, and
    /// whatever is beyond that is speed for those that are busy. A connection for which there are
    /// not 6, and one more for its HELLO, is refused; so the most that there can be, 32,768, suffice for 5119 connections.
    ///
    /// Only connections whose peers share a protection domain share receives: trusted peers ([`Peers::Trusted`]), and peers
    /// behind memory windows. Others have their own, since a queue of receives belongs to one domain, and so has every
    /// connection on a device that has no shared receive queues; both are logged once. The peer may have any setting; one
    /// that knows nothing of loans sends two messages per round trip. A peer that sends more than it may is disconnected as
    /// soon as that is noticed. Until then it takes what others were promised: on InfiniBand their messages wait for as long
    /// as `rnr_retry` lets them, on iWARP their connections may end. That is what sharing means, so share with peers that you
    /// would trust with that.
    pub shared_receives: u32,
    /// Length of a receive and of a frame, in bytes. 8 KiB: most calls, and a 4 KiB block with its head.
    /// 4 KiB to 64 KiB.
    pub eager_len: usize,
    /// Buffers that frames are sent from. 40: more than a batch of 16 twice, and together with the
    /// receives less than 1 MiB. At least 2; more than `send_depth` are not used, and not made.
    pub staging_buffers: u32,
    /// Work requests that the send queue holds. 256: frames of both windows with as much again in reserve;
    /// what the device's send and completion queues hold where that is less. At least 2.
    pub send_depth: u32,
    /// Completions that a shared completion queue holds; connections of a runtime share one as long as all their
    /// work fits. 8192: two dozen connections of these defaults. Less than one connection needs gives each
    /// its own; the device's limit where that is lower.
    pub completion_queue_depth: u32,
    /// How completions are waited for.
    pub polling: Polling,
    /// Bytes up to which a frame travels in its work request, if the device can. 220: what the devices of
    /// today take without a second cache line of their own being fetched in turn.
    pub max_inline: usize,
    /// Messages that may wait to be sent, of data and of control each; beyond it `try_send` says "full".
    /// 1024: as many as calls at a time.
    pub send_queue_messages: usize,
    /// Bytes of bodies that may wait to be sent, per connection; beyond it `try_send` says "full" to all but
    /// control. 64 MiB: one body of the longest kind. It bounds what a peer that takes nothing can make this
    /// side hold; a body is taken when the queue is below this limit, however long it is.
    pub send_queue_bytes: usize,
    /// How long a peer may take nothing at all while something is queued; then the connection ends. 30 s:
    /// longer than any pause of a living peer, as over TCP.
    pub stall_timeout: Duration,
    /// How long a connection that was closed waits until its peer has what was sent. 1 s: many round
    /// trips, and no longer than anybody waits for a shutdown.
    pub close_timeout: Duration,
    /// How long a queue pair in the error state may take to give its buffers back before it is destroyed
    /// with them. 5 s: devices do it at once or not at all. At most a minute, since some never do.
    pub drain_timeout: Duration,
    /// Bodies longer than this are written into memory of their receiver, shorter ones travel in messages. 32 KiB: from
    /// there on the copies on both sides cost more than the round trip for the grant. What fits one frame is never
    /// written.
    pub rendezvous_threshold: usize,
    /// Bytes of one Write. 256 KiB: its post costs nothing beside it, and a short message waits for two of them at
    /// most. 4 KiB to 1 GiB.
    pub write_chunk: u32,
    /// Writes in flight per connection. 2: one is on the wire while the next is fetched. 1 to 256.
    pub write_window: u32,
    /// Bytes that all peers together may be writing to a device, where each grant counts with at most one connection's
    /// Writes in flight. 64 MiB: far more than any wire has in flight. A longer one is granted when it is alone.
    pub granted_bytes: u64,
    /// Grants that each client of a server here is given for long requests to come, so that these need no round trip for
    /// one. None: each holds `standing_grant_len` bytes of landing memory as long as the connection lives, used or not. For a
    /// few clients that send long requests one after the other. All of a device together hold a quarter of
    /// `granted_bytes` at most, and half of the landing memory's `quarantine_cap`, and are taken back when a message waits
    /// for memory. None for peers that have a protection domain of their own. At most 8.
    pub standing_grants: u32,
    /// Longest request that fits such a grant. 1 MiB: from there on the round trip is little beside the Writes.
    pub standing_grant_len: u32,
    /// How long a peer from which nothing arrives may keep memory that it was asked to give back; then its queue pair is
    /// destroyed, which proves that it writes no more. 2 s: a living peer answers at once.
    pub revoke_timeout: Duration,
    /// Memory that peers write to, per device. Its longest region must hold the longest message that is accepted; it is 1 GiB
    /// at most.
    pub landing: LandingConfig,
    /// Memory that long bodies are copied to when they do not lie in registered memory, per device. Its longest buffer holds
    /// at least a `write_chunk`, and 1 GiB at most.
    pub staging: PoolSize,
    /// Untrusted peers at a time that are sent what users allocated from where it lies, on devices where such peers have a
    /// protection domain each. For others it is copied: each domain locks all of it once more. 8: the servers of a
    /// client.
    pub attached_domains: usize,
    /// What is assumed of peers.
    pub peers: Peers,
    /// Memory of long received bodies that is kept for the next ones when they are dropped, for all
    /// connections of the transport together, in bytes. 16 MiB, as over TCP.
    pub kept_landing_bytes: usize,
    /// Registered slabs (with their protection domains, where peers have one each) that are kept per device for the next connections. 4: reconnecting clients do not
    /// register anew.
    pub kept_slabs: usize,
    /// Whether buffers are filled with a pattern while the NIC owns them. Off; on for the software NIC.
    pub poison: Poison,
}

/// What is assumed of the peers of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peers {
    /// They might write to memory after they said that they have finished. What they wrote is copied out before it is
    /// looked at. The default.
    Untrusted,
    /// They do not. What they wrote is read where it lies, without a copy. **If a peer does write on, this program has
    /// undefined behaviour**: see [`memory`](crate::memory). For peers that run the same software under the same
    /// administration.
    Trusted,
}

/// How a runtime waits for completions of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polling {
    /// Sleeps until the device makes an event. The default: it takes no processor that others could use.
    Events,
    /// Polls an empty queue some more times before it sleeps, at most this often in a row; more while that finds
    /// something, less while it does not. Other tasks of the runtime run in between. For processors to spare:
    /// a completion that is found this way costs no system call and no wake-up.
    Adaptive {
        /// Polls in vain, at most. 64 take some ten microseconds.
        most: u32,
    },
    /// Never sleeps: keeps a worker of the runtime busy as long as there is a connection. For runtimes whose
    /// workers have processors of their own.
    Busy,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            data_window: 64,
            control_window: 16,
            shared_receives: 0,
            eager_len: 8 << 10,
            staging_buffers: 40,
            send_depth: 256,
            completion_queue_depth: 8192,
            polling: Polling::Events,
            max_inline: 220,
            send_queue_messages: 1024,
            send_queue_bytes: 64 << 20,
            stall_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(5),
            rendezvous_threshold: 32 << 10,
            write_chunk: 256 << 10,
            write_window: 2,
            granted_bytes: 64 << 20,
            standing_grants: 0,
            standing_grant_len: 1 << 20,
            revoke_timeout: Duration::from_secs(2),
            landing: LandingConfig::default(),
            staging: PoolSize::default(),
            attached_domains: 8,
            peers: Peers::Untrusted,
            kept_landing_bytes: 16 << 20,
            kept_slabs: 4,
            poison: Poison::Off,
        }
    }
}

impl RdmaConfig {
    /// Settings for a side that has so many connections at a time, most of them idle. Receives are shared: 8 for each connection,
    /// and 1024 besides for those that are busy. Each has 8 buffers to send from and a short send queue, so that a connection
    /// holds some 112 KiB and not 984. Receives are 32,768 at most: from 3968 connections on there is less for those that are
    /// busy, and beyond 5119 a connection is refused (see [`shared_receives`](Self::shared_receives)).
    pub fn for_many(connections: u32) -> Self {
        let shared_receives = connections.saturating_mul(8).saturating_add(1024);
        Self {
            shared_receives: shared_receives.clamp(*SHARED.start(), *SHARED.end()),
            staging_buffers: 8,
            send_depth: 16,
            completion_queue_depth: 32_768,
            ..Self::default()
        }
    }

    /// The same with every value in its range.
    pub(crate) fn in_range(mut self) -> Self {
        self.data_window = self.data_window.clamp(*WINDOW.start(), *WINDOW.end());
        self.control_window = self.control_window.clamp(*WINDOW.start(), *WINDOW.end());
        if self.shared_receives > 0 {
            self.shared_receives = self.shared_receives.clamp(*SHARED.start(), *SHARED.end());
        }
        self.eager_len = self.eager_len.clamp(*EAGER.start(), *EAGER.end());
        self.drain_timeout = self.drain_timeout.min(DRAIN);
        self.staging_buffers = self.staging_buffers.max(2);
        self.send_depth = self.send_depth.max(2);
        self.send_queue_messages = self.send_queue_messages.max(1);
        self.send_queue_bytes = self.send_queue_bytes.max(1);
        self.write_chunk = self.write_chunk.clamp(4 << 10, 1 << 30);
        self.write_window = self.write_window.clamp(1, WRITES);
        self.standing_grants = self.standing_grants.min(STANDING);
        self.standing_grant_len = self.standing_grant_len.clamp(1, STANDING_LEN);
        self.landing.size.longest = self.landing.size.longest.min(LONGEST as usize);
        // A chunk that has to be staged finds a buffer.
        let chunk = self.write_chunk as usize;
        self.staging.longest = self.staging.longest.clamp(chunk, LONGEST as usize);
        self
    }

    /// Bytes of Writes that a connection has in flight.
    pub(crate) fn written_bytes(&self) -> u64 {
        u64::from(self.write_chunk) * u64::from(self.write_window)
    }

    /// This side's windows.
    pub(crate) fn windows(&self) -> Windows {
        Windows { data: self.data_window, control: self.control_window }
    }

    /// Receives that are posted before a connection stands: one for HELLO, which is not posted again, and
    /// those that the windows promise.
    pub(crate) fn receives(&self) -> u32 {
        self.windows().receives() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_holds_less_than_a_megabyte_of_registered_memory() {
        let config = RdmaConfig::default().in_range();
        let buffers = (config.receives() + config.staging_buffers) as usize;
        assert_eq!(buffers * config.eager_len, 984 << 10);
    }

    #[test]
    fn values_below_their_range_are_moved_into_it() {
        let mut odd = RdmaConfig {
            data_window: 0,
            control_window: 0,
            shared_receives: 1,
            eager_len: 0,
            staging_buffers: 0,
            send_depth: 0,
            send_queue_messages: 0,
            send_queue_bytes: 0,
            write_chunk: 0,
            write_window: 0,
            standing_grant_len: 0,
            ..RdmaConfig::default()
        };
        odd.staging.longest = 0;
        let config = odd.in_range();
        assert_eq!(config.windows(), Windows { data: 1, control: 1 });
        assert_eq!((config.shared_receives, config.eager_len), (64, 4096));
        assert_eq!((config.staging_buffers, config.send_depth), (2, 2));
        assert_eq!((config.send_queue_messages, config.send_queue_bytes), (1, 1));
        assert_eq!((config.write_chunk, config.write_window), (4096, 1));
        assert_eq!((config.staging.longest, config.standing_grant_len), (4096, 1));
        assert_eq!(RdmaConfig::default().in_range().shared_receives, 0, "none is none");
    }

    #[test]
    fn values_above_their_range_are_moved_into_it() {
        let mut odd = RdmaConfig {
            data_window: u32::MAX,
            control_window: u32::MAX,
            shared_receives: u32::MAX,
            eager_len: usize::MAX,
            write_chunk: u32::MAX,
            write_window: u32::MAX,
            standing_grants: u32::MAX,
            standing_grant_len: u32::MAX,
            drain_timeout: Duration::MAX,
            ..RdmaConfig::default()
        };
        (odd.landing.size.longest, odd.staging.longest) = (usize::MAX, usize::MAX);
        let config = odd.in_range();
        assert_eq!(config.windows(), Windows { data: 4096, control: 4096 });
        assert_eq!((config.shared_receives, config.eager_len), (32_768, 64 << 10));
        assert_eq!((config.write_chunk, config.write_window), (1 << 30, 256));
        assert_eq!((config.standing_grants, config.standing_grant_len), (8, 1 << 30));
        assert_eq!((config.landing.size.longest, config.staging.longest), (1 << 30, 1 << 30));
        assert_eq!(config.drain_timeout, Duration::from_secs(60));
    }
}
