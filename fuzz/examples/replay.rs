//! Runs the body of a target over inputs: `replay TARGET DIRECTORY…`. For `cargo xtask fuzz
//! --coverage`, whose instruments libFuzzer's own would disturb.
#[path = "../src/broker/mod.rs"]
#[allow(dead_code, reason = "bodies need a part")]
mod broker;
#[path = "../src/engine/mod.rs"]
#[allow(dead_code, reason = "bodies need a part")]
mod engine;
#[path = "../src/mirror/mod.rs"]
#[allow(dead_code, reason = "bodies need a part")]
mod mirror;
#[path = "../src/nbd/mod.rs"]
#[allow(dead_code, reason = "bodies need a part")]
mod nbd;

use std::fs;

type Body = fn(&[u8]);

fn main() -> Result<(), String> {
    let mut words = std::env::args().skip(1);
    let target = words.next().ok_or("which target?")?;
    let all = [
        &braid_fuzz::TARGETS[..],
        &nbd::TARGETS,
        &crate::engine::TARGETS,
        &mirror::TARGETS,
        &crate::broker::TARGETS,
    ]
    .concat();
    let found: Option<&(&str, Body)> = all.iter().find(|(name, _)| *name == target);
    let (_, body) = found.ok_or(format!("no target {target:?}"))?;
    let mut count = 0;
    for directory in words {
        let entries = fs::read_dir(&directory).map_err(|error| format!("{directory}: {error}"))?;
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            let input = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            body(&input);
            count += 1;
        }
    }
    println!("{target}: {count} inputs");
    Ok(())
}
