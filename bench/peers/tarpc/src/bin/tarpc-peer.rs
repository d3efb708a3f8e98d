//! tarpc over TCP.

use std::process::ExitCode;

fn main() -> ExitCode {
    verbwire_bench_driver::run::<tarpc_peer::Tarpc>(None)
}
