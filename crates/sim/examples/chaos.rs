//! Scratch.
use sim::chaos::{
    plan::{Canary, Plan},
    run,
};
fn main() {
    let mut args = std::env::args()
        .skip(1)
        .map(|it| it.parse::<u64>().unwrap());
    let (from, count) = (args.next().unwrap(), args.next().unwrap());
    let canary = args.next();
    let mut found = 0;
    for seed in from..from + count {
        let mut plan = Plan::draw(seed);
        plan.canary = canary.map(|n| {
            [
                Canary::Unfenced,
                Canary::Unmarked,
                Canary::FlushOnOne,
                Canary::ShortBound,
            ][n as usize]
        });
        if count == 1 {
            println!("{:?}", plan.layout);
        }
        match std::panic::catch_unwind(|| run::run(&plan)) {
            Ok(report) => {
                if count < 10 {
                    println!(
                        "{seed}: {} requests {} faults {} events {} s",
                        report.requests,
                        report.faults,
                        report.events,
                        report.time_ns / 1_000_000_000
                    );
                }
                let Some(finding) = report.finding else {
                    continue;
                };
                found += 1;
                println!("SEED {seed}: {finding}");
                if let (run::Finding::Disk(block, _), 1) = (finding, count) {
                    for (at, line) in run::story(&plan, block) {
                        println!("{at} {line}");
                    }
                }
            }
            Err(_) => {
                found += 1;
                println!("SEED {seed}: panic");
            }
        }
    }
    println!("{found} findings in {count}");
}
