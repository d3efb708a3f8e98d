//! tonic with its defaults.

use std::process::ExitCode;

fn main() -> ExitCode {
    verbwire_bench_driver::run::<tonic_peer::Tonic>(None)
}
