//! tonic with larger HTTP/2 windows.

use std::process::ExitCode;

fn main() -> ExitCode {
    verbwire_bench_driver::run::<tonic_peer::TonicWithLargerWindows>(None)
}
