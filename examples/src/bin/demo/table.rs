//! The demo's table.

use std::time::Duration;

use crate::measure::Figures;

/// One client's line.
pub(crate) struct Row {
    transport: String,
    figures: Figures,
}

impl Row {
    /// The line of a client that connected to `target`.
    pub(crate) fn new(target: &str, figures: Figures) -> Self {
        let transport = target.split("://").next().unwrap_or(target).to_owned();
        Self { transport, figures }
    }
}

/// Prints the lines under their headings.
pub(crate) fn print(rows: &[Row]) {
    print_line(["transport", "RDMA", "p50", "p99", "calls/s", "upload"]);
    for Row { transport, figures } in rows {
        print_line([
            transport,
            whether_rdma(transport),
            &micros(figures.p50),
            &micros(figures.p99),
            &format!("{:.0}", figures.calls_per_second),
            &upload(transport, figures.mib_per_second),
        ]);
    }
}

fn print_line([transport, rdma, p50, p99, calls, upload]: [&str; 6]) {
    println!("{transport:<9}  {rdma:<28}  {p50:>9}  {p99:>9}  {calls:>9}  {upload:>11}");
}

/// Whether calls go through an RDMA device, and why not.
fn whether_rdma(transport: &str) -> &'static str {
    match transport {
        "rdma" => "yes: verbs on a device",
        "fabric" => "no: a NIC in software",
        "tcp" => "no: a plain socket",
        "unix" => "no: never leaves the host",
        _ => "no: never leaves the process",
    }
}

/// Over `mem://` uploads are handed over by reference, so that their rate is none of bytes.
fn upload(transport: &str, mib_per_second: f64) -> String {
    match transport {
        "mem" => "no copy".to_owned(),
        _ => format!("{mib_per_second:.0} MiB/s"),
    }
}

fn micros(duration: Duration) -> String {
    format!("{:.1} us", duration.as_secs_f64() * 1e6)
}
