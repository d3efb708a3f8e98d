//! Two machines and what is between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use verbwire_core::message::CallId;

use crate::memory::Rkey;
use crate::proto::rendezvous::wire::{Fin, Frame, Grant, GrantId, Name, Names, Place, RtsNumber};
use crate::proto::rendezvous::{
    Body, BodyLen, HeadOf, Outcome, Owner, OwnerLimits, TransferId, Via, Writer, WriterLimits,
};

/// Bytes of a chunk.
pub(super) const CHUNK: u32 = 4;

/// Bytes from one region to the next.
pub(super) const STRIDE: u64 = 1 << 20;

/// What a world begins with.
pub(super) struct Scenario {
    pub(super) messages: Vec<Plan>,
    /// How many of them, the first ones, either side may give up.
    pub(super) fickle: usize,
    pub(super) regions: usize,
    /// RTSs at a time, and Writes.
    pub(super) rts: usize,
    pub(super) window: u32,
    /// Longest body of the standing grant; 0 for none.
    pub(super) standing: u32,
}

/// A message to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    pub(super) len: u32,
    pub(super) route: Via,
    /// Longest reply that is advertised for it; 0 for none.
    pub(super) advertised: u32,
}

/// See the module. A region is its index, and so is a message.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) owner: Owner<usize>,
    pub(super) writer: Writer<usize>,
    pub(super) up: VecDeque<Up>,
    pub(super) down: VecDeque<Down>,
    /// Writes that are not complete, the oldest first, and how many of them have landed.
    pub(super) writes: VecDeque<(TransferId, usize)>,
    pub(super) landed_writes: usize,
    pub(super) regions: Vec<Region>,
    /// By region: message, first byte and place of what was written.
    pub(super) memory: Vec<BTreeSet<(usize, u32, u64)>>,
    pub(super) messages: Vec<Message>,
    pub(super) fickle: usize,
    pub(super) standing: Standing,
    pub(super) link: Link,
    pub(super) owner_qp: Qp,
    pub(super) writer_qp: Qp,
    grants_made: u32,
    /// The grants that the writer was told of, by what for, and how often each was closed.
    pub(super) told: BTreeMap<GrantId, Option<RtsNumber>>,
    pub(super) closings: BTreeMap<GrantId, u32>,
    pub(super) withdrawn: BTreeMap<RtsNumber, u32>,
    pub(super) crossings: BTreeSet<&'static str>,
}

/// Whose a region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Region {
    Free,
    /// The owner's, for the grant with this key.
    Granted(Rkey),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) plan: Plan,
    pub(super) transfer: Option<TransferId>,
    has_written: bool,
    pub(super) rts: Option<RtsNumber>,
    /// The owner has its head.
    pub(super) known: Option<RtsNumber>,
    /// What was advertised for it, and whether the writer has it.
    pub(super) grant: Option<GrantId>,
    pub(super) offered: bool,
    pub(super) given_up: bool,
    pub(super) unwanted: bool,
    /// It was not long after all, or nobody answers.
    pub(super) declined: bool,
    pub(super) outcome: Option<Outcome>,
    pub(super) delivered: u32,
    pub(super) discarded: u32,
    pub(super) dropped: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    None,
    ToCome(u32),
    Given(GrantId),
    Revoked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Link {
    Whole,
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Qp {
    Alive,
    Destroyed,
}

/// From the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Up {
    Write { message: usize, start: u32, place: Place },
    Head { message: usize, rts: RtsNumber, unused: Option<GrantId> },
    Written { message: usize, fin: Fin },
    Fin(Fin),
    Response { unused: Option<GrantId> },
    AbortAck(Names),
}

/// From the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Down {
    Request { message: usize, grant: Grant },
    Frame(Frame),
}

pub(super) fn call(message: usize) -> CallId {
    CallId { slot: u32::try_from(message).expect("few"), generation: 0 }
}

pub(super) fn len(bytes: u32) -> BodyLen {
    BodyLen::new(bytes).expect("not 0")
}

impl World {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let Scenario { rts, window, .. } = *scenario;
        let owner = OwnerLimits {
            rts,
            advertised: 2,
            quarantine: u64::MAX,
            revoke_timeout: Duration::from_secs(2),
        };
        let writer = WriterLimits { chunk: CHUNK, window, rts, advertised: 2, standing: 1 };
        let message = |plan: &Plan| Message {
            plan: *plan,
            transfer: None,
            has_written: false,
            rts: None,
            known: None,
            grant: None,
            offered: false,
            given_up: false,
            unwanted: false,
            declined: false,
            outcome: None,
            delivered: 0,
            discarded: 0,
            dropped: 0,
        };
        Self {
            now: Instant::now(),
            owner: Owner::new(owner),
            writer: Writer::new(writer),
            up: VecDeque::new(),
            down: VecDeque::new(),
            writes: VecDeque::new(),
            landed_writes: 0,
            regions: vec![Region::Free; scenario.regions],
            memory: vec![BTreeSet::new(); scenario.regions],
            messages: scenario.messages.iter().map(message).collect(),
            fickle: scenario.fickle,
            standing: match scenario.standing {
                0 => Standing::None,
                len => Standing::ToCome(len),
            },
            link: Link::Whole,
            owner_qp: Qp::Alive,
            writer_qp: Qp::Alive,
            grants_made: 0,
            told: BTreeMap::new(),
            closings: BTreeMap::new(),
            withdrawn: BTreeMap::new(),
            crossings: BTreeSet::new(),
        }
    }

    pub(super) fn free_region(&self) -> Option<usize> {
        self.regions.iter().position(|region| *region == Region::Free)
    }

    /// Takes a free region for a grant.
    fn take_region(&mut self) -> (usize, Place) {
        let region = self.free_region().expect("looked for before");
        self.grants_made += 1;
        let rkey = Rkey(self.grants_made);
        self.regions[region] = Region::Granted(rkey);
        (region, Place { address: (region as u64 + 1) * STRIDE, rkey })
    }

    pub(super) fn advertise(&mut self, message: usize) {
        let (region, place) = self.take_region();
        let len = len(self.messages[message].plan.advertised);
        let grant = self.owner.advertise(call(message), len, region, place).expect("few");
        self.messages[message].grant = Some(grant.id);
        self.told.insert(grant.id, None);
        self.down.push_back(Down::Request { message, grant });
    }

    pub(super) fn stand(&mut self, bytes: u32) {
        let (region, place) = self.take_region();
        self.standing = Standing::Given(self.owner.stand(len(bytes), region, place));
    }

    pub(super) fn grant(&mut self, rts: RtsNumber) {
        let (region, place) = self.take_region();
        self.owner.grant(rts, region, place).expect("it waits");
    }

    pub(super) fn begin(&mut self, message: usize) {
        let Message { plan, grant, .. } = self.messages[message].clone();
        let body = Body { len: len(plan.len), before_longest: 1, crc: None };
        let via = grant.map_or(plan.route, Via::Advertised);
        self.messages[message].transfer = Some(self.writer.begin(message, body, via));
    }

    pub(super) fn decline(&mut self, message: usize) {
        self.messages[message].declined = true;
        let grant = self.messages[message].grant.expect("it was offered");
        let unused = self.writer.decline(grant);
        self.closed(unused);
        self.up.push_back(Up::Response { unused });
    }

    pub(super) fn give_up(&mut self, message: usize) {
        let it = &mut self.messages[message];
        it.given_up = true;
        match (it.transfer, it.grant) {
            (Some(transfer), _) => self.writer.give_up(transfer),
            (None, Some(grant)) => {
                it.declined = true;
                self.writer.give_up_grant(grant);
            }
            (None, None) => panic!("it has not begun"),
        }
    }

    pub(super) fn unwant(&mut self, message: usize) {
        let it = &mut self.messages[message];
        it.unwanted = true;
        if let Some(grant) = it.grant {
            self.owner.revoke(grant, self.now).expect("no cap");
        }
        if let Some(rts) = it.known {
            self.owner.give_up(rts, self.now).expect("no cap");
        }
    }

    pub(super) fn revoke_standing(&mut self, grant: GrantId) {
        self.owner.revoke(grant, self.now).expect("no cap");
        self.standing = Standing::Revoked;
    }

    pub(super) fn expire(&mut self) {
        let due = self.owner.poll_timeout().expect("memory is in quarantine");
        self.owner.handle_timeout(due).expect_err("it is due");
        self.crossings.insert("no proof in time");
        self.link = Link::Broken;
    }

    pub(super) fn announce(&mut self) {
        let announced = self.writer.poll_announce().expect("it has one");
        let message = *self.writer.source(announced.transfer).expect("it is there");
        let it = &mut self.messages[message];
        if it.has_written {
            self.crossings.insert("a body whose grant is gone asks by RTS");
        }
        it.rts = Some(announced.rts);
        self.closed(announced.unused);
        let (rts, unused) = (announced.rts, announced.unused);
        self.up.push_back(Up::Head { message, rts, unused });
    }

    pub(super) fn write(&mut self) {
        let chunk = self.writer.poll_write().expect("it has one");
        let message = *self.writer.source(chunk.transfer).expect("it is there");
        assert_eq!(chunk.len, CHUNK, "bodies are whole chunks here");
        self.messages[message].has_written = true;
        self.writes.push_back((chunk.transfer, message));
        self.up.push_back(Up::Write { message, start: chunk.start, place: chunk.place });
    }

    pub(super) fn fin(&mut self) {
        let written = self.writer.poll_fin().expect("it has one");
        let message = *self.writer.source(written.transfer).expect("it is there");
        self.closed(Some(written.fin.grant));
        let fin = written.fin;
        self.up.push_back(match written.head {
            HeadOf::Before => Up::Fin(fin),
            HeadOf::Now => Up::Written { message, fin },
        });
    }

    pub(super) fn abort_ack(&mut self) {
        let Some(Frame::AbortAck(names)) = self.writer.poll_abort_ack() else {
            panic!("it has one");
        };
        for name in names.iter() {
            match name {
                Name::Rts(rts) => *self.withdrawn.entry(rts).or_default() += 1,
                Name::Grant(id) => self.closed(Some(id)),
            }
        }
        self.up.push_back(Up::AbortAck(names));
    }

    fn closed(&mut self, grant: Option<GrantId>) {
        if let Some(grant) = grant {
            *self.closings.entry(grant).or_default() += 1;
        }
    }

    pub(super) fn cts(&mut self) {
        let frame = self.owner.poll_cts().expect("it has one");
        let Frame::Cts { rts, grant } = frame else { panic!("a CTS") };
        self.told.insert(grant.id, rts);
        self.down.push_back(Down::Frame(frame));
    }

    pub(super) fn abort(&mut self) {
        let frame = self.owner.poll_abort().expect("it has one");
        self.down.push_back(Down::Frame(frame));
    }

    pub(super) fn free(&mut self, region: usize) {
        self.regions[region] = Region::Free;
        self.memory[region].clear();
    }

    pub(super) fn destroy_owner(&mut self) {
        self.owner_qp = Qp::Destroyed;
        self.up.clear();
        self.owner.handle_destroyed();
    }

    pub(super) fn destroy_writer(&mut self) {
        self.writer_qp = Qp::Destroyed;
        self.down.clear();
        self.writes.clear();
        self.landed_writes = 0;
        self.writer.handle_destroyed();
    }
}
