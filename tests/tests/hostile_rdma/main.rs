//! Peers that break the rules, over queue pairs.
//!
//! Each case runs over the software NIC as three kinds of device, and in the device lab over real ones. After each
//! attack another connection of the same transport goes on as before, and all memory is back.
//!
//! * `frames`: frames that are cut, too long, or do not fit together; false credits.
//! * `hello`: what comes instead of a connect request or HELLO.
//! * `isolation`: peers that write where they were not, or are no longer, granted anything.
//! * `writers`: peers that write, or say that they did.
//! * `strangers`: peers that write where nobody granted them anything.
//! * `owners`: peers that grant; `offers`: grants for replies; `standing`: grants for requests to come.
//! * `honest`: what looks like an attack and is none.
//! * `knocks`: who comes by the thousand and shakes no hands, or drops them.
//! * `tickets`: peers that come to a listener for second paths without a good one.
//! * `reuse`: memory that is used again at once, after a call that has timed out.
//! * `site`, `end`: where a case runs, and what it does with the product's side.

mod end;
mod frames;
mod hello;
mod honest;
mod isolation;
mod knocks;
mod offers;
mod owners;
mod reuse;
mod site;
mod standing;
mod strangers;
mod tickets;
mod writers;

/// Makes a test of each case over each NIC, or over the software ones.
macro_rules! over_nics {
    (software $($name:ident),* $(,)?) => {
        $crate::over_nics!(@ rxe_profile, Rxe, [$($name),*]);
        $crate::over_nics!(@ siw_profile, Siw, [$($name),*]);
        $crate::over_nics!(@ mlx5_profile, Mlx5Like, [$($name),*]);
    };
    ($($name:ident),* $(,)?) => {
        $crate::over_nics!(software $($name),*);
        #[cfg(feature = "device")]
        mod device {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[ignore = "needs an RDMA device: run it in the device lab"]
                async fn $name() {
                    super::$name($crate::site::Over::Device).await;
                }
            )*
        }
    };
    (@ $module:ident, $profile:ident, [$($name:ident),*]) => {
        mod $module {
            use verbwire_rdma::fabric::Profile::$profile;
            $(
                #[tokio::test(start_paused = true)]
                async fn $name() {
                    super::$name($crate::site::Over::Fabric($profile)).await;
                }
            )*
        }
    };
}
pub(crate) use over_nics;
