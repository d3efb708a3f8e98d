//! tarpc with an allocator that counts.

use std::alloc::System;
use std::process::ExitCode;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    verbwire_bench_driver::run::<tarpc_peer::Tarpc>(Some(|| {
        let so_far = ALLOCATOR.stats();
        so_far.allocations + so_far.reallocations
    }))
}
