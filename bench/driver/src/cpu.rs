//! CPU time of a process.
//!
//! Does: reads the scheduler's counters, which are in nanoseconds, where `getrusage` and
//! `/proc/PID/stat` may round to a clock tick. Does not: see threads that have ended; the
//! benchmark's threads live as long as it does.

use std::fs;
use std::io;
use std::time::Duration;

/// CPU time, user and kernel, that the living threads of process `pid` have used so far.
pub(crate) fn time_of(pid: u32) -> io::Result<Duration> {
    let mut total = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let counters = fs::read_to_string(task?.path().join("schedstat"))?;
        let on_cpu = counters.split_whitespace().next().and_then(|word| word.parse().ok());
        let nanoseconds = on_cpu.ok_or_else(|| {
            let message = format!("schedstat of process {pid} reads {counters:?}");
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?;
        total += Duration::from_nanos(nanoseconds);
    }
    Ok(total)
}
