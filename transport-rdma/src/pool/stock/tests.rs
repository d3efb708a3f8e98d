use std::collections::BTreeMap;

use super::super::classes::PAGE;
use super::*;

/// A buffer, by its slab and its place there.
type Chunk = (u64, usize);

/// The stock with what its user knows: buffers taken, who waits, the slab being made.
#[derive(Default)]
struct Model {
    taken: Vec<(Place, Chunk)>,
    waiting: BTreeMap<u32, (Class, Ticket)>,
    asked: u32,
    order: Option<Order>,
    pinned: usize,
    /// What the device gives at most.
    device: usize,
}

struct Rig {
    stock: Stock<Chunk, u32>,
    model: Model,
}

/// What can happen.
#[derive(Debug, Clone, Copy)]
enum Step {
    Ask(Class),
    /// The oldest taken buffer comes back.
    PutFirst,
    /// The newest taken buffer comes back.
    PutLast,
    /// The one who waits longest gives up.
    LeaveFirst,
    /// The one who asked last gives up.
    LeaveLast,
    /// The slab being made is there, or the device refuses it.
    Make,
    Pin,
    Unpin,
    Trim,
}

const STEPS: [Step; 10] = [
    Step::Ask(Class(0)),
    Step::Ask(Class(1)),
    Step::PutFirst,
    Step::PutLast,
    Step::LeaveFirst,
    Step::LeaveLast,
    Step::Make,
    Step::Pin,
    Step::Unpin,
    Step::Trim,
];

fn rig(cap: usize, device: usize) -> Rig {
    let classes = Classes::new(PAGE, 0, 2 * PAGE);
    let limits = Limits { cap, slab_len: 2 * PAGE, pinned: 2 * PAGE };
    Rig { stock: Stock::new(classes, limits), model: Model { device, ..Model::default() } }
}

impl Rig {
    /// Does a step and all that follows from it; `false` where it cannot happen.
    fn step(&mut self, step: Step) -> bool {
        let model = &mut self.model;
        match step {
            Step::Ask(class) => self.ask(class),
            Step::PutFirst | Step::PutLast => {
                let at = if matches!(step, Step::PutFirst) {
                    Some(0)
                } else {
                    model.taken.len().checked_sub(1)
                };
                let Some(at) = at.filter(|at| *at < model.taken.len()) else { return false };
                let (place, chunk) = model.taken.remove(at);
                self.stock.put(place, chunk);
            }
            Step::LeaveFirst | Step::LeaveLast => {
                let first = matches!(step, Step::LeaveFirst);
                let left = if first { model.waiting.pop_first() } else { model.waiting.pop_last() };
                let Some((_, (class, ticket))) = left else { return false };
                self.stock.leave(class, ticket);
            }
            Step::Make => return self.make(),
            Step::Pin if model.taken.is_empty() || model.pinned > 0 => return false,
            Step::Pin => {
                model.pinned = 2 * PAGE;
                self.stock.pin(2 * PAGE);
            }
            Step::Unpin if model.pinned == 0 => return false,
            Step::Unpin => {
                model.pinned = 0;
                self.stock.unpin(2 * PAGE);
            }
            Step::Trim => drop(self.stock.trim()),
        }
        self.settle();
        true
    }

    fn ask(&mut self, class: Class) {
        let number = self.model.asked;
        self.model.asked += 1;
        let nobody_waits = self.model.waiting.values().all(|(other, _)| *other != class);
        match self.stock.take(class, |_| true) {
            Some(taken) => {
                assert!(nobody_waits, "overtaken");
                assert_eq!(self.model.pinned, 0, "the budget is used up");
                self.model.taken.push(taken);
            }
            None if self.stock.is_possible(class) => {
                let ticket = self.stock.wait(class, number);
                self.model.waiting.insert(number, (class, ticket));
            }
            None => {}
        }
    }

    fn make(&mut self) -> bool {
        let Some(order) = self.model.order.take() else { return false };
        let slabs = self.stock.amounts().slabs;
        if slabs + order.bytes() <= self.model.device {
            let SlabNumber(slab) = order.place.slab;
            self.stock.grown(order, (0..order.chunks).map(|chunk| (slab, chunk)).collect());
        } else {
            match self.stock.refused(order) {
                Refused::Again(order) => self.model.order = Some(order),
                Refused::Final(hopeless) => {
                    for waiter in hopeless {
                        self.model.waiting.remove(&waiter).expect("told once, and waited");
                    }
                }
            }
        }
        self.settle();
        true
    }

    fn settle(&mut self) {
        while let Some((waiter, place, chunk)) = self.stock.serve() {
            let (class, _) = self.model.waiting.remove(&waiter).expect("served once, and waited");
            assert_eq!(self.model.pinned, 0, "the budget is used up");
            assert_eq!(class, place.class);
            let before = self.model.waiting.iter().find(|(_, (other, _))| *other == class);
            assert!(before.is_none_or(|(other, _)| *other > waiter), "{waiter} was overtaken");
            self.model.taken.push((place, chunk));
        }
        if let Plan::Make(order, _given_up) = self.stock.plan(usize::MAX) {
            assert!(self.model.order.is_none(), "one at a time");
            self.model.order = Some(order);
        }
        self.check();
    }

    fn check(&self) {
        let (amounts, model) = (self.stock.amounts(), &self.model);
        let taken: usize = model.taken.iter().map(|(place, _)| PAGE << place.class.0).sum();
        assert_eq!(amounts.slabs - amounts.free, taken, "every buffer is free or taken");
        let ordered = model.order.map_or(0, |order| order.bytes());
        assert!(amounts.slabs + ordered <= self.stock.limits.cap, "beyond the cap");
        assert_eq!(amounts.waiting, model.waiting.len());
        let mut chunks: Vec<_> = model.taken.iter().map(|(_, chunk)| *chunk).collect();
        chunks.sort_unstable();
        assert!(chunks.windows(2).all(|pair| pair[0] != pair[1]), "given twice");
        if model.pinned == 0 {
            self.check_nobody_waits_in_vain();
        }
    }

    /// Who waits has no free buffer; and the one who waits longest waits for a slab that is being made, or for
    /// something that is taken.
    fn check_nobody_waits_in_vain(&self) {
        for (class, _) in self.model.waiting.values() {
            assert_eq!(
                self.stock.shelves[class.0].free(),
                0,
                "a buffer is free and somebody waits"
            );
        }
        if !self.model.waiting.is_empty() {
            assert!(self.model.order.is_some() || !self.model.taken.is_empty(), "waits for ever");
        }
    }
}

/// Every sequence of steps up to a length, from its beginning each: the stock cannot be cloned and needs not be.
fn exhaust(cap: usize, device: usize, depth: usize) -> usize {
    let mut runs = 0;
    let mut sequence = vec![0; depth];
    loop {
        let mut rig = rig(cap, device);
        // A step that cannot happen ends the run: what follows is another sequence.
        let done = sequence.iter().take_while(|step| rig.step(STEPS[**step])).count();
        runs += 1;
        let mut at = done.min(depth - 1);
        sequence[at + 1..].fill(0);
        while sequence[at] == STEPS.len() - 1 {
            sequence[at] = 0;
            if at == 0 {
                return runs;
            }
            at -= 1;
        }
        sequence[at] += 1;
    }
}

#[test]
fn no_sequence_of_steps_loses_a_buffer_or_forgets_a_waiter() {
    let runs = exhaust(3 * PAGE, usize::MAX, 6);
    assert!(runs > 10_000, "{runs}");
}

#[test]
fn no_sequence_of_steps_does_so_where_the_device_gives_less_than_the_cap() {
    for device in [0, PAGE, 2 * PAGE] {
        let runs = exhaust(4 * PAGE, device, 5);
        assert!(runs > 500, "{runs}");
    }
}

#[test]
fn long_random_sequences_keep_the_same_rules() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = random.usize(1..12) * PAGE;
        let mut rig = rig(random.usize(2..12) * PAGE, device);
        for _ in 0..400 {
            rig.step(STEPS[random.usize(..STEPS.len())]);
        }
    }
}

#[test]
fn the_one_who_waits_longest_gets_the_room_though_a_shorter_buffer_would_fit_sooner() {
    let mut rig = rig(3 * PAGE, usize::MAX);
    for step in [Step::Ask(Class(0)), Step::Make, Step::Ask(Class(0))] {
        assert!(rig.step(step));
    }
    // Two short ones are taken; a page is left. The long one has to wait, and so has a short one behind it.
    assert!(rig.step(Step::Ask(Class(1))) && rig.step(Step::Ask(Class(0))));
    assert_eq!(rig.model.order, None);
    assert!(rig.step(Step::PutFirst));
    assert_eq!(rig.model.waiting.len(), 1, "the short one got what came back in its class");
    assert!(rig.step(Step::PutFirst) && rig.step(Step::PutFirst));
    let order = rig.model.order.expect("an idle slab was given up for it");
    assert_eq!((order.place.class, order.chunks), (Class(1), 1));
}

#[test]
fn a_buffer_that_came_back_is_not_for_who_asks_before_it_was_handed_over() {
    let mut rig = rig(2 * PAGE, usize::MAX);
    for step in [Step::Ask(Class(1)), Step::Make, Step::Ask(Class(1))] {
        assert!(rig.step(step));
    }
    let (place, chunk) = rig.model.taken.pop().expect("made");
    rig.stock.put(place, chunk);
    assert_eq!(rig.stock.take(Class(1), |_| true), None);
    assert_eq!(rig.stock.serve(), Some((1, place, chunk)));
}

#[test]
fn a_refused_slab_is_halved_and_a_refused_buffer_lowers_the_limit() {
    let classes = Classes::new(PAGE, 0, PAGE);
    let limits = Limits { cap: 64 * PAGE, slab_len: 8 * PAGE, pinned: usize::MAX };
    let mut stock: Stock<Chunk, u32> = Stock::new(classes, limits);
    stock.wait(Class(0), 1);
    let Plan::Make(mut order, _) = stock.plan(usize::MAX) else { panic!("somebody waits") };
    for chunks in [8, 4, 2] {
        assert_eq!(order.chunks, chunks);
        let Refused::Again(smaller) = stock.refused(order) else {
            panic!("{chunks} can be halved")
        };
        order = smaller;
    }
    assert_eq!(stock.refused(order), Refused::Final(vec![1]));
    assert!(!stock.is_possible(Class(0)));
    stock.forget_refusals();
    assert!(stock.is_possible(Class(0)));
}

#[test]
fn a_refusal_of_long_buffers_leaves_the_short_ones() {
    let mut rig = rig(64 * PAGE, PAGE);
    assert!(rig.step(Step::Ask(Class(1))) && rig.step(Step::Make));
    assert!(rig.model.waiting.is_empty(), "told");
    assert!(rig.step(Step::Ask(Class(0))) && rig.step(Step::Make));
    assert_eq!(rig.model.taken.len(), 1);
}
