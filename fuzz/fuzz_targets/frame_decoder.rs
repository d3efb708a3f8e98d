//! What a peer sends behind HELLO: any bytes, cut into any reads.
//!
//! The corpus is made and replayed by `transport-tcp/tests/corpus.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| verbwire_tcp::fuzzing::decode(data));
