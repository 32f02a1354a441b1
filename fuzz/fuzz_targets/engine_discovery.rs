#![no_main]
#[path = "../src/engine/mod.rs"]
#[allow(dead_code, reason = "one of several bodies")]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::discovery::run(data));
