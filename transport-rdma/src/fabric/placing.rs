//! How the bytes of a peer's Write come to lie in memory: at once, late, or in parts.
//!
//! Owns what has arrived on a queue pair and does not lie in memory yet. A reliable connection promises one thing about
//! it: when the completion of a SEND shows, all Writes before that SEND lie there. Until then any part of any of
//! them may be seen or not; and bytes that have arrived are placed even when their queue pair fails. After its destruction
//! nothing is.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use super::fate::Fate;
use super::mr::{Aim, Landing};
use super::network::Network;
use super::qp::{Phase, QpId, QpState};
use super::schedule::Event;
use crate::memory::Rkey;

/// Most parts of a Write that is torn.
const PARTS: usize = 5;

/// Bytes that are on their way into memory. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PieceId(u64);

/// The number of a Write on a queue pair, in the order of arrival, from 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WriteNumber(u64);

/// What has arrived on a queue pair and does not lie in memory yet.
#[derive(Default)]
pub(super) struct Placing {
    pieces: BTreeMap<PieceId, (WriteNumber, Landing)>,
    arrived: WriteNumber,
}

impl Placing {
    /// The last Write that has arrived; 0 before the first.
    pub(super) fn arrived(&self) -> WriteNumber {
        self.arrived
    }

    fn waits_for_earlier(&self, write: WriteNumber) -> bool {
        self.pieces.values().any(|(earlier, _)| *earlier < write)
    }
}

impl Network {
    /// A peer's Write arrives on `to`. Errs if its keys do not allow it, or, where it is placed at once, if the memory is
    /// not the NIC's.
    pub(super) fn handle_write(
        &mut self,
        to: QpId,
        landing: Landing,
        fate: Fate,
    ) -> Result<(), ()> {
        let Some(qp) = self.qps.get_mut(&to) else { return Err(()) };
        qp.placing.arrived.0 += 1;
        let write = qp.placing.arrived;
        let most = match fate {
            Fate::LateWrite(delay) | Fate::TornWrite(delay) if !landing.data.is_empty() => delay,
            _ => return self.land_in_order(to, write, &landing),
        };
        if !self.may_land(to, &landing) {
            return Err(());
        }
        self.faults.late_writes += 1;
        let parts = match fate {
            Fate::TornWrite(_) if landing.data.len() > 1 => self.tear(landing),
            _ => vec![landing],
        };
        self.faults.torn_writes += u64::from(parts.len() > 1);
        let torn = parts.len() > 1;
        for part in parts {
            let delay = if torn { self.part_of(most) } else { most };
            let piece = PieceId(self.next_id());
            let Some(qp) = self.qps.get_mut(&to) else { return Err(()) };
            qp.placing.pieces.insert(piece, (write, part));
            self.schedule(delay, Event::Place(to, piece));
        }
        Ok(())
    }

    fn part_of(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.u64(0..=most))
    }

    /// Parts at random places, none of them empty.
    fn tear(&mut self, landing: Landing) -> Vec<Landing> {
        let Landing { address, rkey, aim, data } = landing;
        let mut cuts: Vec<usize> =
            (1..self.rng.usize(2..=PARTS)).map(|_| self.rng.usize(1..data.len())).collect();
        cuts.extend([0, data.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let part = |pair: &[usize]| Landing {
            address: address + pair[0] as u64,
            rkey,
            aim,
            data: data[pair[0]..pair[1]].to_vec(),
        };
        cuts.windows(2).map(part).collect()
    }

    fn land_in_order(&mut self, to: QpId, write: WriteNumber, landing: &Landing) -> Result<(), ()> {
        let waits = |qp: &QpState| qp.placing.waits_for_earlier(write);
        let overtakes = self.qps.get(&to).is_some_and(waits);
        self.faults.reordered_writes += u64::from(overtakes);
        self.land(to, landing)
    }

    /// Late bytes come to lie in memory, if they do not yet.
    pub(super) fn place(&mut self, to: QpId, piece: PieceId) {
        let Some(qp) = self.qps.get_mut(&to) else { return };
        let Some((write, landing)) = qp.placing.pieces.remove(&piece) else { return };
        let failed = qp.phase == Phase::Error;
        self.faults.writes_after_error += u64::from(failed);
        // The sender was told of success by now.
        let _refused = self.land_in_order(to, write, &landing);
    }

    /// The completion of a SEND shows: all Writes up to `last` must lie in memory.
    pub(super) fn fence(&mut self, to: QpId, last: WriteNumber) {
        let Some(qp) = self.qps.get(&to) else { return };
        let due: Vec<PieceId> = qp
            .placing
            .pieces
            .iter()
            .filter(|(_, (write, _))| *write <= last)
            .map(|(piece, _)| *piece)
            .collect();
        self.faults.fenced_writes += due.len() as u64;
        due.into_iter().for_each(|piece| self.place(to, piece));
    }

    /// The queue pair is being destroyed: what it has still to place, it places now.
    pub(super) fn place_all(&mut self, to: QpId) {
        let Some(qp) = self.qps.get_mut(&to) else { return };
        for (_, (_, landing)) in mem::take(&mut qp.placing.pieces) {
            self.faults.writes_after_error += 1;
            let _refused = self.land(to, &landing);
        }
    }

    /// What a Write that is posted now is aimed at.
    pub(super) fn aim(&mut self, from: QpId, address: u64, rkey: Rkey) -> Option<Aim> {
        let peer = self.qps.get(&from)?.peer?;
        let host = self.qps.get(&peer)?.host;
        self.aim_at(host, address, rkey)
    }
}
