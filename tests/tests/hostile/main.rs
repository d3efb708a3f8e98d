//! Peers that break the rules, over real sockets.
//!
//! * `handshake`: bytes before and instead of HELLO.
//! * `frames`: frames that are cut, too long, or do not fit together.
//! * `calls`: proper frames that say what no caller may say.
//! * `compression`: messages that say that they are compressed.
//! * `floods`: streams without end, and peers that take nothing of them.
//! * `half_open`: handshakes that nobody finishes, by the thousand.
//! * `greed`: peers that want too much and give nothing.
//! * `servers`: the same from the other side.
//! * `streams`: streams, from either side.
//! * `tls`: handshakes of TLS that nobody finishes.
//!
//! After each of them the server still answers a good client, and its log says what was wrong.

mod bad;
mod calls;
mod compression;
mod floods;
mod frames;
mod greed;
mod half_open;
mod handshake;
mod servers;
mod streams;
mod tls;

/// Makes each test run over TCP and over Unix sockets.
macro_rules! over_sockets {
    ($($name:ident),* $(,)?) => {
        mod tcp {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::bad::fixture("tcp")).await;
                }
            )*
        }
        mod unix {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::bad::fixture("unix")).await;
                }
            )*
        }
    };
}
pub(crate) use over_sockets;
