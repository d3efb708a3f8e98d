//! What a writer does with its window, its turns and its grants.

use super::*;

const CHUNK: u32 = 256 << 10;

fn chunks(writer: &mut Writer<char>) -> Vec<(TransferId, u32, u32)> {
    std::iter::from_fn(|| writer.poll_write())
        .map(|chunk| (chunk.transfer, chunk.start, chunk.len))
        .collect()
}

fn ended(writer: &mut Writer<char>) -> Vec<(char, Outcome)> {
    std::iter::from_fn(|| writer.poll_ended()).map(|ended| (ended.source, ended.outcome)).collect()
}

#[test]
fn two_chunks_are_in_flight_and_a_completion_refills_them() {
    let (mut writer, transfer) = asked(3 * CHUNK + 5);
    writer.handle_cts(Some(RtsNumber(0)), grant(id(0, 0), 'a', 3 * CHUNK + 5)).expect("asked for");
    assert_eq!(chunks(&mut writer), [(transfer, 0, CHUNK), (transfer, CHUNK, CHUNK)]);
    assert!(!writer.has_write() && !writer.has_fin());
    writer.handle_written(transfer);
    assert_eq!(chunks(&mut writer), [(transfer, 2 * CHUNK, CHUNK)]);
    writer.handle_written(transfer);
    assert_eq!(chunks(&mut writer), [(transfer, 3 * CHUNK, 5)]);
    let written = writer.poll_fin().expect("behind the last chunk, complete or not");
    assert_eq!((written.fin.len, written.head), (3 * CHUNK + 5, HeadOf::Before));
    assert_eq!(ended(&mut writer), [], "a FIN does not give the source back");
    writer.handle_written(transfer);
    assert_eq!(ended(&mut writer), []);
    writer.handle_written(transfer);
    assert_eq!(ended(&mut writer), [('x', Outcome::Sent)]);
    writer.handle_written(transfer);
    assert_eq!((writer.transfers(), writer.open_grants()), (0, 0));
}

#[test]
fn bodies_take_turns_and_a_short_one_is_done_first() {
    let mut writer = Writer::new(WRITER);
    for (source, bytes) in [('x', 4 * CHUNK), ('y', CHUNK)] {
        writer.begin(source, body(bytes), Via::Ask);
        let rts = writer.poll_announce().expect("it asks").rts;
        writer.handle_cts(Some(rts), grant(id(rts.0, 0), source, bytes)).expect("asked for");
    }
    let sources: Vec<_> = chunks(&mut writer)
        .into_iter()
        .map(|(transfer, start, _)| (*writer.source(transfer).expect("there"), start))
        .collect();
    assert_eq!(sources, [('x', 0), ('y', 0)]);
    let written = writer.poll_fin().expect("the short one");
    assert_eq!(writer.source(written.transfer), Some(&'y'));
}

#[test]
fn the_longest_segment_is_written_to_a_page() {
    let mut writer = Writer::new(WRITER);
    let body = Body { before_longest: 5000, ..body(CHUNK + 10_000) };
    writer.begin('x', body, Via::Ask);
    writer.poll_announce().expect("it asks");
    let grant = grant(id(0, 0), 'a', CHUNK + 10_000);
    writer.handle_cts(Some(RtsNumber(0)), grant).expect("asked for");
    let places: Vec<_> =
        std::iter::from_fn(|| writer.poll_write()).map(|chunk| chunk.place).collect();
    let first = grant.place.address + 3192;
    assert_eq!((first + 5000) % PAGE, 0);
    let expected = [first, first + u64::from(CHUNK)];
    assert_eq!(places.iter().map(|place| place.address).collect::<Vec<_>>(), expected);
    assert!(places.iter().all(|place| place.rkey == grant.place.rkey));
    assert_eq!(writer.poll_fin().expect("written").fin.offset, 3192);
}

#[test]
fn an_abort_stops_the_writes_and_is_acknowledged_behind_them() {
    let (mut writer, transfer) = asked(3 * CHUNK);
    writer.handle_cts(Some(RtsNumber(0)), grant(id(0, 0), 'a', 3 * CHUNK)).expect("asked for");
    assert_eq!(chunks(&mut writer).len(), 2);
    writer.handle_abort(&names(&[Name::Grant(id(0, 0))])).expect("known");
    writer.handle_written(transfer);
    assert_eq!((writer.poll_write(), writer.poll_fin()), (None, None));
    assert_eq!(abort_of(writer.poll_abort_ack()), [Name::Grant(id(0, 0))]);
    assert_eq!(ended(&mut writer), [], "one Write is in flight");
    writer.handle_written(transfer);
    assert_eq!(ended(&mut writer), [('x', Outcome::Refused)]);
}

#[test]
fn what_is_given_up_is_taken_back_as_far_as_the_peer_knows_of_it() {
    let mut writer = Writer::new(WRITER);
    let unsent = writer.begin('u', body(1), Via::Ask);
    writer.give_up(unsent);
    assert_eq!((writer.poll_announce(), writer.poll_abort_ack()), (None, None));
    let waiting = writer.begin('w', body(1), Via::Ask);
    writer.poll_announce().expect("it asks");
    let granted = writer.begin('g', body(1), Via::Ask);
    let rts = writer.poll_announce().expect("it asks").rts;
    writer.handle_cts(Some(rts), grant(id(0, 0), 'a', 1)).expect("asked for");
    writer.give_up(waiting);
    writer.give_up(granted);
    writer.give_up(granted);
    let acks = abort_of(writer.poll_abort_ack());
    assert_eq!(acks, [Name::Rts(RtsNumber(0)), Name::Grant(id(0, 0))]);
    let outcomes = ['u', 'w', 'g'].map(|source| (source, Outcome::Withdrawn));
    assert_eq!(ended(&mut writer), outcomes);
    writer.handle_cts(Some(RtsNumber(0)), grant(id(1, 0), 'b', 1)).expect("late");
    assert_eq!((writer.open_grants(), writer.poll_abort_ack()), (0, None));
}

#[test]
fn no_more_rtss_are_open_than_the_peer_takes() {
    let mut writer = Writer::new(WRITER);
    let transfers = ['a', 'b', 'c', 'd'].map(|source| writer.begin(source, body(1), Via::Ask));
    for _ in 0..3 {
        writer.poll_announce().expect("within the limit");
    }
    assert_eq!((writer.has_announce(), writer.poll_announce()), (false, None));
    writer.give_up(transfers[0]);
    assert!(!writer.has_announce(), "the peer counts it until it has the ABORT_ACK");
    assert!(writer.poll_abort_ack().is_some());
    assert_eq!(writer.poll_announce().expect("room").rts, RtsNumber(3));
}

#[test]
fn acknowledgements_share_frames() {
    let limits = WriterLimits { rts: 40, ..WRITER };
    let mut writer = Writer::new(limits);
    for _ in 0..20 {
        let transfer = writer.begin('x', body(1), Via::Ask);
        writer.poll_announce().expect("within the limit");
        writer.give_up(transfer);
    }
    assert_eq!(abort_of(writer.poll_abort_ack()).len(), wire::MAX_NAMES);
    assert_eq!(abort_of(writer.poll_abort_ack()).len(), 5);
    assert!(!writer.has_abort_ack());
}

#[test]
fn a_request_takes_the_shortest_standing_grant_that_is_long_enough() {
    let mut writer = Writer::new(WriterLimits { standing: 3, ..WRITER });
    for (index, bytes) in [(0, 900), (1, 500), (2, 100)] {
        writer.handle_cts(None, grant(id(index, 0), 'a', bytes)).expect("standing");
    }
    let sent = |writer: &mut Writer<char>, bytes| {
        let transfer = writer.begin('x', body(bytes), Via::Standing);
        writer.poll_write().map(|_| {
            writer.handle_written(transfer);
            let written = writer.poll_fin().expect("one chunk");
            (written.fin.grant.index, written.head)
        })
    };
    assert_eq!(sent(&mut writer, 101), Some((1, HeadOf::Now)));
    assert_eq!(sent(&mut writer, 101), Some((0, HeadOf::Now)));
    assert_eq!(sent(&mut writer, 101), None, "the third is too short");
    assert!(writer.has_announce());
}

#[test]
fn a_reply_that_does_not_use_its_grant_says_so() {
    let mut writer = Writer::new(WRITER);
    writer.handle_advertised(grant(id(0, 0), 'a', 100)).expect("the first");
    writer.handle_advertised(grant(id(1, 0), 'b', 100)).expect("the second");
    assert_eq!(writer.decline(id(0, 0)), Some(id(0, 0)));
    assert_eq!(writer.decline(id(0, 0)), None, "once");
    writer.begin('x', body(101), Via::Advertised(id(1, 0)));
    let announced = writer.poll_announce().expect("too long, so it asks");
    assert_eq!(announced.unused, Some(id(1, 0)));
    assert_eq!((writer.open_grants(), writer.poll_abort_ack()), (0, None));
}

#[test]
fn the_end_of_the_queue_pair_gives_everything_back_once() {
    let (mut writer, _) = asked(3 * CHUNK);
    writer.handle_cts(Some(RtsNumber(0)), grant(id(0, 0), 'a', 3 * CHUNK)).expect("asked for");
    assert_eq!(chunks(&mut writer).len(), 2);
    writer.begin('y', body(1), Via::Ask);
    let given_up = writer.begin('z', body(1), Via::Ask);
    writer.give_up(given_up);
    writer.handle_destroyed();
    writer.handle_destroyed();
    let expected = [('z', Outcome::Withdrawn), ('x', Outcome::Lost), ('y', Outcome::Lost)];
    assert_eq!(ended(&mut writer), expected);
    assert_eq!((writer.transfers(), writer.open_grants()), (0, 0));
    assert!(!writer.has_write() && !writer.has_announce() && !writer.has_abort_ack());
}
