//! What the messages of a stream that wait may hold of the memory in which they came.
//!
//! Short ones share memory with others (`transport::inbound::SmallBodies`) that may be long gone, so that each could keep a
//! multiple of what the window counts. A copy keeps nothing but itself, and costs an allocation. Messages that lie one
//! behind the other, as they do when a stream is alone, keep what they have in common once: only where a run of such begins is
//! there something to decide.
//!
//! Owns where the latest run ends. So what waits holds memory of other messages at most [`ANYWHERE`] times, and once more
//! for each [`LONG`] bytes of its own.

use crate::buf::{BY_REFERENCE, Body};

/// Messages that wait before the one that begins a run, wherever that lies.
const ANYWHERE: usize = 16;

/// Bytes of a run, behind which another one may begin wherever it lies. 4 KiB: a quarter of the memory that short messages
/// share.
const LONG: usize = 4 << 10;

/// The run of messages to which the latest one belongs.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// The address behind it; 0 if there is none.
    end: usize,
    len: usize,
}

/// What waits already.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    /// Messages.
    pub(super) waiting: usize,
    /// Whether one of them waits for an earlier one. Then it may wait on when all of the run is gone.
    pub(super) has_gap: bool,
}

impl Holding {
    /// The body as it is to wait behind `queue`: where it is, or a copy.
    pub(super) fn keep(&mut self, body: Body, queue: Queue) -> Body {
        let len = body.len();
        if len == 0 || len >= BY_REFERENCE {
            return body;
        }
        let start = body.address();
        if start.is_some_and(|start| start == self.end) {
            self.end += len;
            self.len += len;
            return body;
        }
        let may_begin = queue.waiting < ANYWHERE || (self.len >= LONG && !queue.has_gap);
        if may_begin {
            *self = Self { end: start.map_or(0, |start| start + len), len };
            return body;
        }
        *self = Self::default();
        body.detached()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const DEEP: Queue = Queue { waiting: ANYWHERE, has_gap: false };

    /// Whether it waits where it is.
    fn stays(holding: &mut Holding, body: &Bytes, queue: Queue) -> bool {
        let kept = holding.keep(Body::from(body.clone()), queue);
        kept.segments().all(|segment| segment.as_ptr() == body.as_ptr())
    }

    fn memory() -> Bytes {
        Bytes::from(vec![0; 16 << 10])
    }

    #[test]
    fn the_first_ones_wait_wherever_they_are_and_further_ones_are_copied() {
        let (mut holding, memory) = (Holding::default(), memory());
        for waiting in 0..ANYWHERE {
            let queue = Queue { waiting, has_gap: false };
            assert!(stays(&mut holding, &memory.slice(100 * waiting..100 * waiting + 9), queue));
        }
        assert!(!stays(&mut holding, &memory.slice(8000..8009), DEEP));
        assert!(
            !stays(&mut holding, &memory.slice(8009..8010), DEEP),
            "behind one that was copied"
        );
    }

    #[test]
    fn what_lies_behind_the_latest_one_waits_there() {
        let (mut holding, memory) = (Holding::default(), memory());
        assert!(stays(&mut holding, &memory.slice(0..30), Queue { waiting: 0, ..DEEP }));
        for at in (30..3000).step_by(30) {
            assert!(stays(&mut holding, &memory.slice(at..at + 30), DEEP));
        }
        assert!(!stays(&mut holding, &memory.slice(3001..3002), DEEP));
    }

    #[test]
    fn behind_a_long_run_another_may_begin_unless_a_gap_lets_it_outlast_that() {
        for (len, has_gap, begins) in
            [(LONG, false, true), (LONG - 1, false, false), (LONG, true, false)]
        {
            let (mut holding, memory) = (Holding::default(), memory());
            assert!(stays(&mut holding, &memory.slice(0..1), Queue { waiting: 0, has_gap }));
            let rest = memory.slice(1..len);
            assert!(stays(&mut holding, &rest.slice(..2000), DEEP));
            assert!(stays(&mut holding, &rest.slice(2000..), DEEP));
            let next = memory.slice(8000..8001);
            assert_eq!(stays(&mut holding, &next, Queue { has_gap, ..DEEP }), begins, "{len}");
        }
    }

    #[test]
    fn long_and_empty_ones_are_no_part_of_this() {
        let (mut holding, memory) = (Holding::default(), memory());
        assert!(stays(&mut holding, &memory.slice(0..30), Queue { waiting: 0, ..DEEP }));
        assert!(stays(&mut holding, &memory.slice(8000..8000 + BY_REFERENCE), DEEP));
        assert!(stays(&mut holding, &Bytes::new(), DEEP));
        assert!(stays(&mut holding, &memory.slice(30..60), DEEP));
    }
}
