use std::time::Duration;

use verbwire_core::message::CallId;

use super::wire::{Frame, Grant, GrantId, Name, Names, Place, RtsNumber};
use super::*;
use crate::memory::Rkey;

mod hostile;
mod model;
mod owning;
mod writing;

const CALL: CallId = CallId { slot: 3, generation: 7 };

const TIMEOUT: Duration = Duration::from_secs(2);

const LIMITS: OwnerLimits =
    OwnerLimits { rts: 3, advertised: 2, quarantine: 100 << 10, revoke_timeout: TIMEOUT };

const WRITER: WriterLimits =
    WriterLimits { chunk: 256 << 10, window: 2, rts: 3, advertised: 2, standing: 1 };

fn len(bytes: u32) -> BodyLen {
    BodyLen::new(bytes).expect("not 0")
}

fn body(bytes: u32) -> Body {
    Body { len: len(bytes), before_longest: 0, crc: None }
}

/// Memory of the region with this name.
fn place(region: char) -> Place {
    Place { address: u64::from(u32::from(region)) << 32, rkey: Rkey(u32::from(region)) }
}

fn id(index: u32, generation: u32) -> GrantId {
    GrantId { index, generation }
}

fn names(names: &[Name]) -> Names {
    Names::first_of(names.iter().copied()).expect("one at least")
}

/// An owner that was asked for this body by RTS 0 and has granted region `a`.
fn granted(bytes: u32) -> (Owner<char>, GrantId) {
    granted_within(LIMITS, bytes)
}

fn granted_within(limits: OwnerLimits, bytes: u32) -> (Owner<char>, GrantId) {
    let mut owner = Owner::new(limits);
    owner.handle_rts(RtsNumber(0), len(bytes), None).expect("the first");
    let grant = owner.grant(RtsNumber(0), 'a', place('a')).expect("it waits");
    assert!(owner.poll_cts().is_some());
    (owner, grant)
}

/// A writer of one body that has asked for a grant by RTS 0.
fn asked(bytes: u32) -> (Writer<char>, TransferId) {
    let mut writer = Writer::new(WRITER);
    let transfer = writer.begin('x', body(bytes), Via::Ask);
    let announced = writer.poll_announce().expect("it asks");
    assert_eq!((announced.transfer, announced.rts), (transfer, RtsNumber(0)));
    (writer, transfer)
}

fn grant(id: GrantId, region: char, bytes: u32) -> Grant {
    Grant { id, place: place(region), len: len(bytes).grant_len() }
}

fn released(owner: &mut Owner<char>) -> Vec<(char, Proof)> {
    std::iter::from_fn(|| owner.poll_released())
        .map(|released| (released.region, released.proof))
        .collect()
}

fn abort_of(frame: Option<Frame>) -> Vec<Name> {
    match frame {
        Some(Frame::Abort(names) | Frame::AbortAck(names)) => names.iter().collect(),
        None => Vec::new(),
        other => panic!("{other:?}"),
    }
}
