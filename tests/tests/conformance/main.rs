//! The cases of the conformance suite. See `verbwire_tests` for how they run.

mod authentication;
mod calls;
mod cancel;
mod compression;
mod concurrency;
mod deadlines;
mod drops;
mod health;
mod inheritance;
mod interceptors;
mod interop;
mod keep_alive;
mod layers;
mod metadata;
mod open;
mod overload;
mod panics;
mod peer_loss;
mod reconnect;
mod reflection;
mod runtimes;
mod sessions;
mod shutdown;
mod sizes;
mod statuses;
mod stream_ends;
mod stream_layers;
mod streams;
mod tonic_calls;
mod tonic_client;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cases = [
        calls::CASES,
        concurrency::CASES,
        compression::CASES,
        statuses::CASES,
        deadlines::CASES,
        cancel::CASES,
        sizes::CASES,
        inheritance::CASES,
        interceptors::CASES,
        layers::CASES,
        metadata::CASES,
        overload::CASES,
        panics::CASES,
        drops::CASES,
        authentication::CASES,
        shutdown::CASES,
        peer_loss::CASES,
        reconnect::CASES,
        keep_alive::CASES,
        runtimes::CASES,
        sessions::CASES,
        streams::CASES,
        stream_ends::CASES,
        stream_layers::CASES,
        interop::CASES,
        interop::PROXIED,
        interop::TONIC_SERVER,
        tonic_client::CASES,
        tonic_client::BOTH,
        tonic_calls::CASES,
        open::CASES,
        health::CASES,
        reflection::CASES,
    ];
    verbwire_tests::runner::main(&cases.concat())
}
