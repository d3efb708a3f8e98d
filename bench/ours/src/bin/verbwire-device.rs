//! verbwire over an RDMA device.
//!
//! | command | prints |
//! |---|---|
//! | those of the driver | see there |
//! | `frame BYTES` | how long a frame with that payload is on the wire |
//! | `chunk` | how long a Write is at most |
//! | `bulk-serve` | the bound address on the first line, then serves large payloads until killed |
//! | `bulk-load ADDRESS put\|fetch BYTES CALLERS CALLS` | throughput, latency, copies and registrations |

use std::process::ExitCode;

use bytes::Bytes;
use verbwire_bench::bulk;
use verbwire_bench_driver::Outcome;

const USAGE: &str =
    "usage: frame BYTES | chunk | bulk-serve | bulk-load ADDRESS put|fetch BYTES CALLERS CALLS";

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["frame", size] => frame(size),
        ["chunk"] => chunk(),
        ["bulk-serve"] => serve(),
        ["bulk-load", target, way, size, callers, calls] => {
            load(target, [way, size, callers, calls])
        }
        ["frame" | "chunk" | "bulk-serve" | "bulk-load", ..] => Err(USAGE.into()),
        _ => return verbwire_bench_driver::run::<verbwire_bench::OverRdma>(None),
    };
    done.map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn frame(size: &str) -> Outcome<()> {
    println!("{}", verbwire_bench::frame_len(&Bytes::from(vec![0; size.parse()?])));
    Ok(())
}

fn chunk() -> Outcome<()> {
    println!("{}", bulk::chunk());
    Ok(())
}

fn serve() -> Outcome<()> {
    runtime()?.block_on(bulk::serve())
}

fn load(target: &str, [way, size, callers, calls]: [&str; 4]) -> Outcome<()> {
    let (way, size) = (way.parse()?, size.parse()?);
    let load = bulk::Load { way, size, callers: callers.parse()?, calls: calls.parse()? };
    println!("{}", runtime()?.block_on(bulk::load(target, load))?);
    Ok(())
}

fn runtime() -> Outcome<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
