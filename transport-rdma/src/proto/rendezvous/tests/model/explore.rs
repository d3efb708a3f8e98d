//! Every action in every state.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;

use super::world::{Link, Qp, Scenario, Standing, World};
use crate::proto::rendezvous::wire::{GrantId, RtsNumber};

/// What can happen.
#[derive(Debug, Clone, Copy)]
enum Action {
    Advertise(usize),
    Stand(u32),
    RevokeStanding(GrantId),
    Begin(usize),
    Decline(usize),
    GiveUp(usize),
    Unwant(usize),
    Grant(RtsNumber),
    PostAnnounce,
    PostWrite,
    PostFin,
    PostAbortAck,
    PostCts,
    PostAbort,
    DeliverUp,
    DeliverDown,
    Complete,
    Expire,
    Break,
    DestroyOwner,
    DestroyWriter,
}

/// What was found.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) states: HashSet<u64>,
    pub(super) ends: usize,
    pub(super) crossings: BTreeSet<&'static str>,
    path: Vec<Action>,
}

/// Takes every action in every state that the scenario can come to.
pub(super) fn explore(scenario: &Scenario) -> Seen {
    let mut seen = Seen::default();
    let outcome = catch_unwind(AssertUnwindSafe(|| visit(World::new(scenario), &mut seen)));
    if let Err(panic) = outcome {
        eprintln!("it happens by {:?}", seen.path);
        resume_unwind(panic);
    }
    assert!(seen.ends > 0, "nothing ever ends");
    eprintln!("{} states, {} ends", seen.states.len(), seen.ends);
    seen
}

/// Takes actions by chance, those that break something rarely, until nothing more can happen.
pub(super) fn walk(scenario: &Scenario, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (mut world, mut path) = (World::new(scenario), Vec::new());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        while let Some(action) = chance(&world, &mut rng) {
            path.push(action);
            take(&mut world, action);
            world.settle();
        }
        world.check_end();
    }));
    if let Err(panic) = outcome {
        eprintln!("it happens with seed {seed} by {path:?}");
        resume_unwind(panic);
    }
}

fn chance(world: &World, rng: &mut Rng) -> Option<Action> {
    let (must, may) = (musts(world), mays(world));
    let actions = if rng.u8(..16) == 0 && !may.is_empty() { &may } else { &must };
    let breaks = |action: &Action| matches!(action, Action::Break | Action::Expire);
    let action = *rng.choice(actions)?;
    if breaks(&action) && rng.u8(..8) > 0 { must.first().copied() } else { Some(action) }
}

fn visit(world: World, seen: &mut Seen) {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    if !seen.states.insert(hasher.finish()) {
        return;
    }
    let (must, may) = (musts(&world), mays(&world));
    if must.is_empty() {
        seen.ends += 1;
        world.check_end();
    }
    for action in must.into_iter().chain(may) {
        seen.path.push(action);
        let mut next = world.clone();
        take(&mut next, action);
        next.settle();
        seen.crossings.append(&mut next.crossings);
        visit(next, seen);
        seen.path.pop();
    }
}

/// What happens sooner or later.
fn musts(world: &World) -> Vec<Action> {
    let mut actions = Vec::new();
    if world.link == Link::Whole {
        intents(world, &mut actions);
        posts(world, &mut actions);
    } else {
        if world.owner_qp == Qp::Alive {
            actions.push(Action::DestroyOwner);
        }
        if world.writer_qp == Qp::Alive {
            actions.push(Action::DestroyWriter);
        }
    }
    if !world.up.is_empty() {
        actions.push(Action::DeliverUp);
    }
    if !world.down.is_empty() {
        actions.push(Action::DeliverDown);
    }
    // A queue pair in the error state flushes what has not landed, and it may land all the same.
    let completes = world.landed_writes > 0 || world.link == Link::Broken;
    if completes && !world.writes.is_empty() {
        actions.push(Action::Complete);
    }
    actions
}

fn intents(world: &World, actions: &mut Vec<Action>) {
    let has_region = world.free_region().is_some();
    for (at, message) in world.messages.iter().enumerate() {
        let is_reply = message.plan.advertised > 0;
        if is_reply && message.grant.is_none() && has_region {
            actions.push(Action::Advertise(at));
        }
        let is_new = message.transfer.is_none() && !message.declined;
        if is_new && (message.offered || !is_reply) {
            actions.push(Action::Begin(at));
        }
        if is_new && message.offered {
            actions.push(Action::Decline(at));
        }
        let waiting = message.known.filter(|rts| has_region && world.owner.is_waiting(*rts));
        actions.extend(waiting.map(Action::Grant));
    }
    match world.standing {
        Standing::ToCome(len) if has_region => actions.push(Action::Stand(len)),
        Standing::Given(grant) => actions.push(Action::RevokeStanding(grant)),
        _ => {}
    }
}

fn posts(world: &World, actions: &mut Vec<Action>) {
    let all = [
        (world.writer.has_announce(), Action::PostAnnounce),
        (world.writer.has_write(), Action::PostWrite),
        (world.writer.has_fin(), Action::PostFin),
        (world.writer.has_abort_ack(), Action::PostAbortAck),
        (world.owner.has_cts(), Action::PostCts),
        (world.owner.has_abort(), Action::PostAbort),
    ];
    actions.extend(all.into_iter().filter(|(is_there, _)| *is_there).map(|(_, action)| action));
}

/// What happens if somebody wants it, or something breaks.
fn mays(world: &World) -> Vec<Action> {
    let mut actions = Vec::new();
    for (at, message) in world.messages.iter().enumerate().take(world.fickle) {
        let is_there = message.transfer.is_some() || (message.offered && !message.declined);
        if is_there && !message.given_up && message.outcome.is_none() {
            actions.push(Action::GiveUp(at));
        }
        let is_awaited = message.known.is_some() || message.grant.is_some();
        if is_awaited && !message.unwanted && world.owner_qp == Qp::Alive {
            actions.push(Action::Unwant(at));
        }
    }
    if world.link == Link::Whole {
        actions.push(Action::Break);
        if world.owner.quarantined() > 0 {
            actions.push(Action::Expire);
        }
    }
    actions
}

fn take(world: &mut World, action: Action) {
    match action {
        Action::Advertise(message) => world.advertise(message),
        Action::Stand(len) => world.stand(len),
        Action::RevokeStanding(grant) => world.revoke_standing(grant),
        Action::Begin(message) => world.begin(message),
        Action::Decline(message) => world.decline(message),
        Action::GiveUp(message) => world.give_up(message),
        Action::Unwant(message) => world.unwant(message),
        Action::Grant(rts) => world.grant(rts),
        Action::PostAnnounce => world.announce(),
        Action::PostWrite => world.write(),
        Action::PostFin => world.fin(),
        Action::PostAbortAck => world.abort_ack(),
        Action::PostCts => world.cts(),
        Action::PostAbort => world.abort(),
        Action::DeliverUp => world.deliver_up(),
        Action::DeliverDown => world.deliver_down(),
        Action::Complete => world.complete(),
        Action::Expire => world.expire(),
        Action::Break => world.link = Link::Broken,
        Action::DestroyOwner => world.destroy_owner(),
        Action::DestroyWriter => world.destroy_writer(),
    }
}
