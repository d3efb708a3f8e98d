//! The post queue: many tasks hand work to one device or socket, and none waits while another posts.
//!
//! Two locks. `staged` is held for pushing and taking only. `post` is held while work is handed to the
//! device, system calls included, and is only ever tried: who does not get it leaves the work to who
//! has it. The winner drains `staged` and looks again after it let `post` go.
//!
//! The race that the second look closes: a loser pushes after the winner's last drain and fails to get
//! `post` just before the winner lets it go. Without the second look that work would lie there until the
//! next push. With it, either the loser's push came before the winner's look, which then sees it, or it
//! came after; then `post` was free already when the loser tried it. `tests::loom` runs all
//! interleavings.

use crate::sync::{Mutex, lock, try_lock};

/// Work that is collected, then handed over in batches.
///
/// `S` is what tasks push into, `P` the poster: what hands a batch to the device.
#[derive(Debug)]
pub struct PostQueue<S, P> {
    staged: Mutex<S>,
    post: Mutex<P>,
}

/// How a poster left the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// Everything that was staged is handed over, or another task does it.
    All,
    /// The device takes no more now; the driver posts again when it does.
    Blocked,
}

/// What [`PostQueue::post`] drains.
pub trait Staged {
    /// Whether there is work to hand over.
    fn is_empty(&self) -> bool;
}

impl<S: Staged, P> PostQueue<S, P> {
    /// A queue over an empty stage and a poster.
    pub fn new(staged: S, poster: P) -> Self {
        Self { staged: Mutex::new(staged), post: Mutex::new(poster) }
    }

    /// Works on the stage under its lock. Keep it short: pushing, taking, counting.
    pub fn with_staged<R>(&self, work: impl FnOnce(&mut S) -> R) -> R {
        work(&mut lock(&self.staged))
    }

    /// Hands over what is staged, unless another task is doing so.
    ///
    /// `hand_over` gets the poster and this queue's stage by [`with_staged`](Self::with_staged); it takes
    /// work until the stage is empty or the device is full.
    pub fn post(&self, mut hand_over: impl FnMut(&mut P, &Self) -> Posted) -> Posted {
        loop {
            // A poster that panicked left its work where it was; the next one goes on with it.
            let Some(mut poster) = try_lock(&self.post) else { return Posted::All };
            let posted = hand_over(&mut poster, self);
            drop(poster);
            if posted == Posted::Blocked || self.with_staged(|staged| staged.is_empty()) {
                return posted;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    impl Staged for Vec<u32> {
        fn is_empty(&self) -> bool {
            self.is_empty()
        }
    }

    #[test]
    fn work_pushed_while_another_posts_is_handed_over_by_it() {
        let queue = PostQueue::new(vec![1], Vec::new());
        let mut rounds = 0;
        queue.post(|done: &mut Vec<u32>, queue| {
            done.append(&mut queue.with_staged(std::mem::take));
            if rounds == 0 {
                queue.with_staged(|staged| staged.push(2));
                assert_eq!(queue.post(|_, _| panic!("two posters")), Posted::All);
            }
            rounds += 1;
            Posted::All
        });
        assert_eq!(rounds, 2);
        queue.post(|done, _| {
            assert_eq!(*done, [1, 2]);
            Posted::All
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    impl Staged for Vec<u32> {
        fn is_empty(&self) -> bool {
            self.is_empty()
        }
    }

    fn push_and_post(queue: &PostQueue<Vec<u32>, Vec<u32>>, item: u32) {
        queue.with_staged(|staged| staged.push(item));
        queue.post(|done, queue| {
            done.append(&mut queue.with_staged(std::mem::take));
            Posted::All
        });
    }

    #[test]
    fn loom_nothing_pushed_is_left_behind() {
        loom::model(|| {
            let queue = Arc::new(PostQueue::new(Vec::new(), Vec::new()));
            let threads: Vec<_> = (0..2)
                .map(|item| {
                    let queue = Arc::clone(&queue);
                    thread::spawn(move || push_and_post(&queue, item))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            assert!(queue.with_staged(|staged| staged.is_empty()));
            queue.post(|done, _| {
                done.sort_unstable();
                assert_eq!(*done, [0, 1]);
                Posted::All
            });
        });
    }
}
