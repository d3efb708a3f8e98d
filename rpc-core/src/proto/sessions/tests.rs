use proptest::prelude::*;

use super::*;
use crate::buf::Body;
use crate::status::Code;

const LEASE: Duration = Duration::from_secs(10);
const METHOD: &str = "/a.A/A";

type Table = SessionTable<u32, u32>;

fn limits() -> SessionLimits {
    SessionLimits {
        max_sessions: 2,
        slots: 2,
        lease: LEASE,
        max_kept_answer: 100,
        max_kept_bytes: 150,
        ..SessionLimits::default()
    }
}

fn table() -> (Table, SessionId, Instant) {
    let mut table = Table::new(limits());
    let now = Instant::now();
    let opened = open(&mut table, now).expect("room");
    (table, opened.session, now)
}

fn open(table: &mut Table, now: Instant) -> Result<Opened, Status> {
    let mut next = 0;
    table.open(now, None, || {
        next += 1;
        Ok(next)
    })
}

fn this(session: SessionId, slot: u32, sequence: u64) -> SlotUse {
    SlotUse { session, slot, sequence }
}

/// Every attempt's request.
fn same() -> Fingerprint {
    Fingerprint::of(&Body::new())
}

/// An attempt, as a word and a number.
fn arrive(table: &mut Table, now: Instant, this: SlotUse, token: u32) -> (&'static str, u32) {
    match table.arrive(now, this, METHOD.into(), same(), || Ok(token)) {
        Arrival::Run { running, superseded: None } => ("runs", running),
        Arrival::Run { superseded: Some(old), .. } => ("supersedes", old),
        Arrival::Wait(running) => ("waits", running),
        Arrival::Answer(answer) => ("is answered", answer),
        Arrival::Refuse(status) => ("is refused", status.code() as u32),
    }
}

fn refused(code: Code) -> (&'static str, u32) {
    ("is refused", code as u32)
}

fn finish(table: &mut Table, now: Instant, this: SlotUse, answer: u32, len: usize) {
    table.finish(now, this, Executed::Yes, len, || answer);
}

#[test]
fn a_repeat_waits_for_the_call_that_runs_and_then_has_its_answer() {
    let (mut table, session, now) = table();
    let this = this(session, 1, 1);
    assert_eq!(arrive(&mut table, now, this, 7), ("runs", 7));
    assert_eq!(arrive(&mut table, now, this, 8), ("waits", 7));
    table.enter(now, this, now + LEASE).expect("in time");
    finish(&mut table, now, this, 70, 10);
    assert_eq!(arrive(&mut table, now, this, 9), ("is answered", 70));
    assert_eq!(table.kept_bytes(), 10);
}

#[test]
fn the_next_use_of_a_slot_forgets_the_answer_and_what_is_older_is_stale() {
    let (mut table, session, now) = table();
    let (first, third) = (this(session, 0, 1), this(session, 0, 3));
    arrive(&mut table, now, first, 1);
    finish(&mut table, now, first, 10, 10);
    assert_eq!(arrive(&mut table, now, third, 3), ("runs", 3));
    assert_eq!(table.kept_bytes(), 0);
    for sequence in [1, 2] {
        let stale = this(session, 0, sequence);
        assert_eq!(arrive(&mut table, now, stale, 9), refused(Code::Aborted));
    }
    // Another slot has sequences of its own.
    assert_eq!(arrive(&mut table, now, this(session, 1, 1), 4), ("runs", 4));
}

#[test]
fn a_newer_call_supersedes_one_that_runs_which_then_is_not_entered() {
    let (mut table, session, now) = table();
    let (first, second) = (this(session, 0, 1), this(session, 0, 2));
    arrive(&mut table, now, first, 1);
    assert_eq!(arrive(&mut table, now, second, 2), ("supersedes", 1));
    let status = table.enter(now, first, now + LEASE).expect_err("superseded");
    assert_eq!((status.code(), status.executed()), (Code::Aborted, Executed::No));
    // What it still says changes nothing.
    finish(&mut table, now, first, 10, 10);
    assert_eq!(arrive(&mut table, now, second, 3), ("waits", 2));
    assert_eq!(table.kept_bytes(), 0);
}

#[test]
fn a_call_that_did_not_run_may_run_again() {
    let (mut table, session, now) = table();
    let this = this(session, 0, 1);
    arrive(&mut table, now, this, 1);
    let status = table.enter(now, this, now).expect_err("too late");
    assert_eq!((status.code(), status.executed()), (Code::DeadlineExceeded, Executed::No));
    table.finish(now, this, Executed::No, 10, || unreachable!("not kept"));
    assert_eq!(arrive(&mut table, now, this, 2), ("runs", 2));
}

#[test]
fn a_call_of_an_earlier_epoch_is_not_entered_although_it_had_arrived() {
    let (mut table, session, now) = table();
    let (waits, ran) = (this(session, 0, 1), this(session, 1, 1));
    arrive(&mut table, now, ran, 1);
    finish(&mut table, now, ran, 10, 10);
    arrive(&mut table, now, waits, 2);
    table.set_epoch(5);
    let status = table.enter(now, waits, now + LEASE).expect_err("another epoch");
    assert_eq!((status.code(), status.executed()), (Code::FailedPrecondition, Executed::No));
    assert!(status.message().contains("in epoch 0, and it is epoch 5"), "{status}");
    table.finish(now, waits, Executed::No, 0, || 0);
    for attempt in [waits, ran] {
        assert_eq!(arrive(&mut table, now, attempt, 3), refused(Code::FailedPrecondition));
    }
    assert_eq!(table.kept_bytes(), 0);
    // An epoch never goes back.
    table.set_epoch(4);
    assert_eq!(open(&mut table, now).expect("room").epoch, 5);
}

#[test]
fn a_session_ends_its_lease_after_its_last_call_and_not_while_one_runs() {
    let (mut table, session, now) = table();
    let this = this(session, 0, 1);
    arrive(&mut table, now, this, 1);
    let late = now + LEASE * 2;
    assert_eq!(arrive(&mut table, late, this, 2), ("waits", 1));
    finish(&mut table, late, this, 10, 10);
    let still = late + LEASE;
    assert_eq!(arrive(&mut table, still, this, 2), ("is answered", 10));
    let over = still + LEASE + Duration::from_millis(1);
    assert_eq!(arrive(&mut table, over, this, 2), refused(Code::FailedPrecondition));
    assert_eq!(table.kept_bytes(), 0);
}

#[test]
fn sessions_are_bounded_and_those_whose_lease_is_over_make_room() {
    let (mut table, _, now) = table();
    open(&mut table, now).expect("the second");
    let status = open(&mut table, now).expect_err("one too many");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("max_sessions of 2"), "{status}");
    open(&mut table, now + LEASE * 2).expect("there is room");
}

#[test]
fn sessions_of_one_connection_are_bounded_too() {
    let limits = SessionLimits { max_sessions: 9, max_sessions_per_connection: 2, ..limits() };
    let (mut table, now, mut next) = (Table::new(limits), Instant::now(), 0);
    let mut open = |now, connection| {
        let draw = || {
            next += 1;
            Ok(next)
        };
        table.open(now, Some(connection), draw)
    };
    for connection in [1, 1, 2] {
        open(now, connection).expect("room");
    }
    let status = open(now, 1).expect_err("one too many");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No));
    assert!(status.message().contains("max_sessions_per_connection of 2"), "{status}");
    open(now, 2).expect("that one has room");
    open(now + LEASE * 2, 1).expect("its sessions are over");
}

#[test]
fn sessions_of_an_earlier_epoch_make_room_when_nothing_of_them_runs() {
    let (mut table, first, now) = table();
    let second = open(&mut table, now).expect("the second").session;
    let (runs, ran) = (this(first, 0, 1), this(second, 0, 1));
    for call in [runs, ran] {
        arrive(&mut table, now, call, 1);
    }
    finish(&mut table, now, ran, 10, 10);
    open(&mut table, now).expect_err("full");
    table.set_epoch(1);
    open(&mut table, now).expect("that of the call that ran is gone");
    assert_eq!(table.kept_bytes(), 0);
    open(&mut table, now).expect_err("the other one has a call that runs");
    finish(&mut table, now, runs, 10, 10);
    open(&mut table, now).expect("it is over");
}

#[test]
fn a_call_that_cannot_begin_is_refused_and_may_run_later() {
    let (mut table, session, now) = table();
    let (first, second) = (this(session, 0, 1), this(session, 0, 2));
    let full = || Err(Status::resource_exhausted("full").with_executed(Executed::No));
    let refused = table.arrive(now, first, METHOD.into(), same(), full);
    assert!(matches!(refused, Arrival::Refuse(_)), "{refused:?}");
    assert_eq!(arrive(&mut table, now, first, 1), ("runs", 1));
    // What runs is not superseded by it.
    let refused = table.arrive(now, second, METHOD.into(), same(), full);
    assert!(matches!(refused, Arrival::Refuse(_)), "{refused:?}");
    assert_eq!(arrive(&mut table, now, first, 2), ("waits", 1));
}

#[test]
fn an_answer_that_is_too_long_is_not_kept_and_its_call_does_not_run_again() {
    let (mut table, session, now) = table();
    let (long, first, second) = (this(session, 0, 1), this(session, 0, 2), this(session, 1, 1));
    arrive(&mut table, now, long, 1);
    table.finish(now, long, Executed::Yes, 101, || unreachable!("too long"));
    let Arrival::Refuse(status) = table.arrive(now, long, METHOD.into(), same(), || Ok(2)) else {
        panic!("it must not run again");
    };
    assert_eq!((status.code(), status.executed()), (Code::DataLoss, Executed::Yes));
    assert!(status.message().contains("101 bytes") && status.message().contains("is 100"));
    // So is one for which the others leave no room.
    for (call, len) in [(first, 100), (second, 51)] {
        arrive(&mut table, now, call, 3);
        finish(&mut table, now, call, 30, len);
    }
    assert_eq!(arrive(&mut table, now, first, 4), ("is answered", 30));
    assert_eq!(arrive(&mut table, now, second, 4), refused(Code::DataLoss));
    assert_eq!(table.kept_bytes(), 100);
}

#[test]
fn what_no_client_may_say_is_refused_in_words() {
    let (mut table, session, now) = table();
    for bad in [this(session, 2, 1), this(session, 0, 0)] {
        assert_eq!(arrive(&mut table, now, bad, 1), refused(Code::InvalidArgument));
    }
    let strange = this(SessionId(999), 0, 1);
    assert_eq!(arrive(&mut table, now, strange, 1), refused(Code::FailedPrecondition));
    let call = this(session, 0, 1);
    arrive(&mut table, now, call, 1);
    let Arrival::Refuse(status) = table.arrive(now, call, "/a.A/B".into(), same(), || Ok(2)) else {
        panic!("another method");
    };
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("/a.A/B"), "{status}");
}

#[test]
fn neither_refusals_nor_debug_tell_the_id_of_a_session() {
    let (mut table, session, now) = table();
    let id = 0x0123_4567_89ab_cdef;
    let secret = this(SessionId(id), 0, 1);
    let Arrival::Refuse(unknown) = table.arrive(now, secret, METHOD.into(), same(), || Ok(1))
    else {
        panic!("there is none");
    };
    let debug = format!("{secret:?}");
    for said in [unknown.message(), no_sessions().message(), &debug] {
        let hidden = !said.contains(&format!("{id:x}")) && !said.contains(&id.to_string());
        assert!(hidden, "{said}");
    }
    assert!(debug.contains("slot: 0, sequence: 1"), "{debug}");
    table.set_epoch(1);
    let Arrival::Refuse(over) =
        table.arrive(now, this(session, 0, 1), METHOD.into(), same(), || Ok(1))
    else {
        panic!("it is over");
    };
    assert!(over.message().starts_with("the session was opened in epoch 0"), "{over}");
}

#[test]
fn a_repeat_with_another_request_is_refused_and_does_not_run() {
    let (mut table, session, now) = table();
    let call = this(session, 0, 1);
    arrive(&mut table, now, call, 1);
    let refuses_another = |table: &mut Table| {
        let other = Fingerprint::of(&Body::from(bytes::Bytes::from_static(b"other")));
        let begin = || unreachable!("it must not run");
        let Arrival::Refuse(status) = table.arrive(now, call, METHOD.into(), other, begin) else {
            panic!("another request");
        };
        assert_eq!((status.code(), status.executed()), (Code::InvalidArgument, Executed::Maybe));
        assert!(status.message().contains("another request, and this one did not run"), "{status}");
    };
    refuses_another(&mut table);
    finish(&mut table, now, call, 10, 10);
    refuses_another(&mut table);
    assert_eq!(arrive(&mut table, now, call, 2), ("is answered", 10));
    // Of what has not run there is no answer to be mistaken for.
    let call = this(session, 1, 1);
    arrive(&mut table, now, call, 3);
    table.finish(now, call, Executed::No, 0, || unreachable!("not kept"));
    let other = Fingerprint::of(&Body::from(bytes::Bytes::from_static(b"other")));
    let arrival = table.arrive(now, call, METHOD.into(), other, || Ok(4));
    assert!(matches!(arrival, Arrival::Run { running: 4, .. }), "{arrival:?}");
    assert_eq!(arrive(&mut table, now, call, 5), refused(Code::InvalidArgument));
}

#[test]
fn refusals_do_not_tell_what_a_slot_has_had() {
    let (mut table, session, now) = table();
    arrive(&mut table, now, this(session, 0, 4711), 1);
    for (sequence, method) in [(3, METHOD), (4711, "/a.A/B")] {
        let Arrival::Refuse(status) =
            table.arrive(now, this(session, 0, sequence), method.into(), same(), || Ok(2))
        else {
            panic!("neither is the call that runs");
        };
        let said = status.message();
        assert!(!said.contains(METHOD) && (sequence == 4711 || !said.contains("4711")), "{said}");
    }
}

/// What may happen, in any order.
#[derive(Debug, Clone)]
enum Event {
    Open,
    Arrive {
        session: usize,
        slot: u32,
        sequence: u64,
    },
    /// The deadline of the call that began so many calls ago has passed, or has not.
    Enter {
        back: usize,
        in_time: bool,
    },
    Finish {
        back: usize,
        len: usize,
    },
    Epoch,
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let back = 0..3_usize;
    let in_time = prop::bool::weighted(0.8);
    let event = prop_oneof![
        3 => Just(Event::Open),
        24 => (0..2_usize, 0..3_u32, 0..4_u64)
            .prop_map(|(session, slot, sequence)| Event::Arrive { session, slot, sequence }),
        16 => (back.clone(), in_time).prop_map(|(back, in_time)| Event::Enter { back, in_time }),
        16 => (back, 0..120_usize).prop_map(|(back, len)| Event::Finish { back, len }),
        1 => Just(Event::Epoch),
        2 => (0..12_u64).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 0..120)
}

/// A call that runs, from its arrival on.
#[derive(Debug, Clone, Copy)]
struct Execution {
    this: SlotUse,
    is_entered: bool,
}

fn is_same_slot(one: SlotUse, other: SlotUse) -> bool {
    (one.session, one.slot) == (other.session, other.slot)
}

proptest! {
    #[test]
    fn no_use_of_a_slot_is_executed_twice_or_late_and_what_is_kept_is_bounded(events in events()) {
        let (mut table, first, mut now) = table();
        let (mut names, mut next, mut epoch) = (vec![first], 1, 0);
        let mut live: Vec<Execution> = Vec::new();
        let mut executed: Vec<SlotUse> = Vec::new();
        let mut answers: BTreeMap<(SessionId, u32, u64), u32> = BTreeMap::new();
        let key = |this: SlotUse| (this.session, this.slot, this.sequence);
        for (event, token) in events.into_iter().zip(0..) {
            match event {
                Event::Open => {
                    let opened = table.open(now, None, || { next += 1; Ok(next) });
                    names.extend(opened.ok().map(|opened| opened.session));
                }
                Event::Arrive { session, slot, sequence } => {
                    // Of the last ones, which are the likeliest to live.
                    let newest = names.len() - 1;
                    let this = this(names[newest.saturating_sub(session)], slot, sequence);
                    match table.arrive(now, this, METHOD.into(), same(), || Ok(token)) {
                        Arrival::Run { running, .. } => {
                            prop_assert_eq!(running, token);
                            prop_assert!(!executed.contains(&this), "{:?} ran before", this);
                            live.push(Execution { this, is_entered: false });
                        }
                        Arrival::Wait(_) => {
                            prop_assert!(live.iter().any(|one| one.this == this));
                        }
                        Arrival::Answer(answer) => {
                            prop_assert_eq!(Some(&answer), answers.get(&key(this)));
                        }
                        Arrival::Refuse(_) => {}
                    }
                }
                Event::Enter { back, in_time } => {
                    let index = live.len().wrapping_sub(1 + back);
                    let Some(one) = live.get_mut(index).filter(|one| !one.is_entered) else {
                        continue;
                    };
                    let deadline = if in_time { now + LEASE } else { now };
                    if table.enter(now, one.this, deadline).is_ok() {
                        prop_assert!(in_time);
                        let before = executed.iter().filter(|before| is_same_slot(**before, one.this));
                        let last = before.map(|before| before.sequence).max();
                        prop_assert!(last < Some(one.this.sequence), "{:?} after {:?}", one.this, last);
                        executed.push(one.this);
                        one.is_entered = true;
                    } else {
                        let gone = live.remove(index);
                        table.finish(now, gone.this, Executed::No, 0, || 0);
                    }
                }
                Event::Finish { back, len } => {
                    let index = live.len().wrapping_sub(1 + back);
                    if live.get(index).is_none_or(|one| !one.is_entered) {
                        continue;
                    }
                    let one = live.remove(index);
                    answers.insert(key(one.this), token);
                    finish(&mut table, now, one.this, token, len);
                }
                Event::Epoch => { epoch += 1; table.set_epoch(epoch); }
                Event::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            let kept: usize = table.sessions.values().flat_map(|session| session.slots.values())
                .map(|slot| slot.state.kept_bytes()).sum();
            prop_assert_eq!(kept, table.kept_bytes());
            prop_assert!(kept <= limits().max_kept_bytes);
            prop_assert!(table.sessions.len() <= limits().max_sessions);
            prop_assert!(table.sessions.values().all(|session| session.slots.len() <= 2));
        }
    }
}
