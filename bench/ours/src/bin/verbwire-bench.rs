//! verbwire over TCP and in process.

use std::process::ExitCode;

fn main() -> ExitCode {
    verbwire_bench_driver::run::<verbwire_bench::Verbwire>(None)
}
