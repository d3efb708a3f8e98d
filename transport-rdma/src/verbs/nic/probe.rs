//! What a device can do: what it says, and what only trying tells.
//!
//! Does: reads attributes, and makes what has to be made to know, which is gone again when it returns. Does not: keep
//! anything of a device.

use std::sync::Arc;

use rdma_sys::{ibv_atomic_cap, ibv_device_attr, ibv_device_cap_flags as Caps};

use crate::nic::{Capabilities, Depths, MAX_SGE, NicError, Support, Windows, Wire};
use crate::verbs::context::Context;
use crate::verbs::cq::RawCq;
use crate::verbs::pd::Pd;
use crate::verbs::qp::{NUDGES, QpSizes, RawQp};

/// What a queue pair is asked to take inline, the most first: devices refuse what is too much, and round up
/// what they take. soft-iWARP takes 80.
const INLINE: [u32; 5] = [220, 128, 80, 64, 0];

/// soft-RoCE's `vendor_id`: `RXE_VENDOR_ID` of the kernel.
const SOFT_ROCE: u32 = 0x00ff_ffff;

/// Reads that may be outstanding in each direction, at most; devices allow from 1 to 128, and this transport
/// does not read yet.
const MAX_READS: i32 = 16;

/// Outstanding reads that a device allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Reads {
    /// Of peers.
    pub(in super::super) responder_resources: u8,
    /// Of this side.
    pub(in super::super) initiator_depth: u8,
}

/// Whether the device has windows as it says: virtual functions of some do not.
pub(super) fn can_allocate_window(pd: &Arc<Pd>) -> bool {
    let window = pd.alloc_window();
    if let Err(error) = &window {
        tracing::info!(%error, "the device says that it has memory windows, and has none");
    }
    window.is_ok()
}

/// What queue pairs of a device take inline, as asked for and as granted. Only making one tells.
pub(super) fn probe_inline(
    context: &Arc<Context>,
    pd: &Arc<Pd>,
    max_sge: usize,
) -> Result<(u32, u32), NicError> {
    let queue = RawCq::create(context, 2, None)?;
    let send_sges = u32::try_from(max_sge).unwrap_or(1);
    let mut refused = None;
    for inline in INLINE {
        let sizes = QpSizes { depths: Depths { send: 1, recv: 1 }, send_sges, inline };
        match RawQp::create(pd, [&queue, &queue], None, sizes) {
            Ok((_qp, granted)) => return Ok((inline, granted)),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.map_or_else(
        || NicError { verb: "ibv_create_qp", reason: "no size was tried".into() },
        |error| error.advise("the device has no queue pair left, or this process no right to it"),
    ))
}

/// The outstanding reads that connections ask for.
pub(super) fn reads(attributes: &ibv_device_attr) -> Reads {
    let limited = |limit: i32| u8::try_from(limit.clamp(0, MAX_READS)).unwrap_or(0);
    Reads {
        responder_resources: limited(attributes.max_qp_rd_atom),
        initiator_depth: limited(attributes.max_qp_init_rd_atom),
    }
}

/// Scatter/gather entries that this transport uses of what the device has.
pub(super) fn max_sge(attributes: &ibv_device_attr) -> usize {
    usize::try_from(attributes.max_sge).unwrap_or(1).clamp(1, MAX_SGE)
}

/// What the device can do, as it says itself, cut to what this transport uses.
pub(super) fn capabilities(
    name: &str,
    wire: Wire,
    attributes: &ibv_device_attr,
    inline: u32,
) -> Capabilities {
    let number = |number: i32| u32::try_from(number).unwrap_or(0);
    let flag = |flags: Caps| {
        if attributes.device_cap_flags & flags.0 == 0 { Support::No } else { Support::Yes }
    };
    Capabilities {
        device: name.to_owned(),
        wire,
        max_cqe: number(attributes.max_cqe),
        max_wr: number(attributes.max_qp_wr).saturating_sub(NUDGES),
        max_srq_wr: if attributes.max_srq > 0 { number(attributes.max_srq_wr) } else { 0 },
        max_sge: max_sge(attributes),
        max_read_sge: usize::try_from(attributes.max_sge_rd).unwrap_or(0),
        max_inline: inline as usize,
        // On iWARP only: there the connecting side may have to say something twice.
        own_sends: match wire {
            Wire::Iwarp => NUDGES,
            Wire::InfiniBand => 0,
        },
        atomics: match attributes.atomic_cap {
            ibv_atomic_cap::IBV_ATOMIC_NONE => Support::No,
            _ => Support::Yes,
        },
        memory_windows: match (
            flag(Caps::IBV_DEVICE_MEM_WINDOW_TYPE_2A),
            flag(Caps::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
        ) {
            (Support::No, Support::No) => Windows::No,
            // Type 2B alone is bound to a queue pair; soft-RoCE's is, and not to its bounds.
            (_, Support::Yes) if attributes.vendor_id != SOFT_ROCE => Windows::Isolating,
            _ => Windows::Porous,
        },
        write_with_immediate: match wire {
            Wire::InfiniBand => Support::Yes,
            Wire::Iwarp => Support::No,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> ibv_device_attr {
        // SAFETY: the struct is plain numbers, for which zeros are a value.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn numbers_that_make_no_sense_become_the_least() {
        let mut odd = attributes();
        (odd.max_cqe, odd.max_sge, odd.max_qp_rd_atom, odd.max_sge_rd) = (-1, -5, -1, -1);
        let found = capabilities("odd0", Wire::Iwarp, &odd, 64);
        assert_eq!((found.max_cqe, found.max_sge, found.max_read_sge, found.max_wr), (0, 1, 0, 0));
        assert_eq!(found.write_with_immediate, Support::No);
        assert_eq!(reads(&odd), Reads { responder_resources: 0, initiator_depth: 0 });
    }

    #[test]
    fn limits_are_cut_to_what_the_transport_uses() {
        let mut rich = attributes();
        (rich.max_sge, rich.max_qp_rd_atom, rich.max_qp_init_rd_atom) = (32, 128, 4);
        let found = capabilities("rich0", Wire::InfiniBand, &rich, 512);
        assert_eq!(found.max_sge, MAX_SGE);
        assert_eq!(reads(&rich), Reads { responder_resources: 16, initiator_depth: 4 });
    }
}
