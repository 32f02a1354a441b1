//! A broker turn by turn. See `broker::room` in `fuzz/src`.
#![no_main]
#[path = "../src/broker/mod.rs"]
#[allow(dead_code, reason = "for seeds and tests")]
mod body;
libfuzzer_sys::fuzz_target!(|data: &[u8]| body::TARGETS[0].1(data));
