//! verbwire over an RDMA device. `frame BYTES` prints how long a frame with that payload is on the wire.

use std::process::ExitCode;

use bytes::Bytes;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("frame") => frame(words.get(1).and_then(|word| word.parse().ok())),
        _ => verbwire_bench_driver::run::<verbwire_bench::OverRdma>(None),
    }
}

fn frame(size: Option<usize>) -> ExitCode {
    let Some(size) = size else {
        eprintln!("usage: frame BYTES");
        return ExitCode::FAILURE;
    };
    println!("{}", verbwire_bench::frame_len(&Bytes::from(vec![0; size])));
    ExitCode::SUCCESS
}
