//! The kinds of device that a fabric plays: what they can do, and how they differ where verbs leave it open.
//!
//! The values for soft-RoCE and soft-iWARP were observed on Linux 6.1 and 6.12; those for mlx5 are what its
//! driver documents, as far as the software devices leave a choice.

use std::time::Duration;

use crate::nic::{Capabilities, Support, WcStatus, Windows, Wire};

/// A kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Soft-RoCE, the kernel's `rdma_rxe`.
    Rxe,
    /// Soft-iWARP, the kernel's `siw`: reports success of what its peer then refuses.
    Siw,
    /// A hardware device of the ConnectX family.
    Mlx5Like,
}

/// What a device does where verbs leave it open.
#[derive(Debug)]
pub(super) struct Behaviour {
    /// The wire. iWARP runs over a stream: a send completes when it is handed over, any error ends the
    /// stream, and the end of one side reaches the other.
    pub(super) wire: Wire,
    /// What windows it has, whatever it says. Porous ones are not checked for their bounds.
    pub(super) windows: Windows,
    /// Most bytes of a message.
    pub(super) max_message: u64,
    /// Statuses of a receive that is too short, and of the send that it was for.
    pub(super) short_receive: (WcStatus, WcStatus),
    /// What becomes of a send that is posted in the error state. (A receive never completes.)
    pub(super) late_send: LateSend,
    /// What becomes of completions when their queue pair is destroyed.
    pub(super) after_destroy: AfterDestroy,
    /// After what time a request without an answer fails.
    pub(super) retry_timeout: Duration,
}

/// What becomes of a send that is posted in the error state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LateSend {
    Flushed,
    Swallowed,
}

/// What becomes of completions when their queue pair is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterDestroy {
    /// Those in the completion queue stay, no others come.
    NoMore,
    /// Those in the completion queue vanish too.
    Purged,
    /// All that was outstanding still completes.
    StillCome,
}

impl Profile {
    /// What a device of this kind says of itself.
    pub fn capabilities(self, device: impl Into<String>) -> Capabilities {
        let device = device.into();
        let wire = self.behaviour().wire;
        let memory_windows = self.behaviour().windows;
        let (atomics, write_with_immediate) = match self {
            Self::Rxe | Self::Mlx5Like => (Support::Yes, Support::Yes),
            Self::Siw => (Support::No, Support::No),
        };
        let (max_cqe, max_wr, max_sge, max_read_sge, max_inline) = match self {
            Self::Rxe => (32_767, 1_048_576, 32, 32, 512),
            Self::Siw => (3_276_800, 32_768, 6, 1, 80),
            Self::Mlx5Like => (4_194_303, 32_768, 30, 30, 220),
        };
        let max_srq_wr = match self {
            Self::Rxe => 1_048_576,
            Self::Siw => 327_680,
            Self::Mlx5Like => 32_767,
        };
        Capabilities {
            device,
            wire,
            max_cqe,
            max_wr,
            max_srq_wr,
            max_sge,
            max_read_sge,
            max_inline,
            own_sends: 0,
            atomics,
            memory_windows,
            write_with_immediate,
        }
    }

    pub(super) fn behaviour(self) -> &'static Behaviour {
        match self {
            Self::Rxe => &RXE,
            Self::Siw => &SIW,
            Self::Mlx5Like => &MLX5_LIKE,
        }
    }

    /// The first part of a device's name.
    pub(super) fn device(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
            Self::Mlx5Like => "mlx5",
        }
    }
}

/// Seven tries of 268 ms: `timeout` 16 and `retry_count` 6.
const RETRIES: Duration = Duration::from_millis(7 * 268);

static RXE: Behaviour = Behaviour {
    wire: Wire::InfiniBand,
    windows: Windows::Porous,
    max_message: 8 << 20,
    short_receive: (WcStatus::LOCAL_QP_OPERATION, WcStatus::REMOTE_OPERATION),
    late_send: LateSend::Flushed,
    after_destroy: AfterDestroy::NoMore,
    retry_timeout: RETRIES,
};

static SIW: Behaviour = Behaviour {
    wire: Wire::Iwarp,
    windows: Windows::No,
    max_message: u32::MAX as u64,
    // The sender's status is never seen: its send has completed by then.
    short_receive: (WcStatus::LOCAL_LENGTH, WcStatus::REMOTE_OPERATION),
    late_send: LateSend::Swallowed,
    after_destroy: AfterDestroy::StillCome,
    // TCP goes on retransmitting; 40 s and more were seen.
    retry_timeout: Duration::from_secs(40),
};

static MLX5_LIKE: Behaviour = Behaviour {
    wire: Wire::InfiniBand,
    windows: Windows::Isolating,
    max_message: 1 << 30,
    short_receive: (WcStatus::LOCAL_LENGTH, WcStatus::REMOTE_INVALID_REQUEST),
    late_send: LateSend::Flushed,
    after_destroy: AfterDestroy::Purged,
    retry_timeout: RETRIES,
};
