//! A whole broker, with its threads. See `broker::threads` in `fuzz/src`.
#![no_main]
#[path = "../src/broker/mod.rs"]
#[allow(dead_code, reason = "for seeds and tests")]
mod body;
libfuzzer_sys::fuzz_target!(|data: &[u8]| body::TARGETS[1].1(data));
