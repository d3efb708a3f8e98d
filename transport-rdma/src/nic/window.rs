//! Memory windows of type 2: a part of registered memory that one queue pair's peer may write to, until it is
//! invalidated.

use crate::memory::Rkey;

/// A memory window. Dropping it frees it, and ends whatever rights it gave. May take as long as a command of the device.
///
/// It is bound by a work request ([`SendOp::Bind`](super::SendOp)) on the queue pair whose peer may use it, under a key
/// of its own, and invalidated by another ([`SendOp::Invalidate`](super::SendOp)) on that queue pair. Only the
/// successful completion of that proves that nothing is written through it any more. Between the two it must not be
/// bound again, and the memory stays registered.
///
/// Where the queue pair was destroyed instead, it is not to be bound again: it may still name the number of that queue
/// pair, which another one gets.
pub trait Window: Send + Sync + 'static {
    /// The key that it was allocated with, under which it gives no rights.
    fn key(&self) -> Rkey;
}

impl Rkey {
    /// The next key of the same window. The low 8 bits are its owner's to choose, the others name the window
    /// (`ibv_inc_rkey`).
    pub fn following(self) -> Self {
        let tag = self.0.wrapping_add(1) & 0xff;
        Self(self.0 & !0xff | tag)
    }

    /// The window that it is a key of.
    pub(crate) fn window(self) -> u32 {
        self.0 >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_window_follow_each_other_and_name_it() {
        assert_eq!(Rkey(0x0102_03fe).following(), Rkey(0x0102_03ff));
        let wrapped = Rkey(0x0102_03ff).following();
        assert_eq!((wrapped, wrapped.window()), (Rkey(0x0102_0300), 0x0001_0203));
    }
}
