//! The speed of a world: `sim_cost [POLICY [MILLISECONDS]]`.
//!
//! Two noisy paths of 8 servers, 256 reads of 4 KiB in flight from 8 CPUs: the plainest scenario
//! there is. Prints I/Os; who runs it takes the time, or counts instructions.
use policy::{Ana, Policy};
use sim::{DevicePlan, Flash, HostPlan, JobPlan, Noise, PathPlan, Plan, Way};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let policy = arguments.next().unwrap_or("round-robin".to_owned());
    let ms = arguments.next().map_or(Ok(10_000), |text| text.parse());
    let (Ok(policy), Ok(ms)) = (Policy::parse(&policy), ms) else {
        eprintln!("usage: sim_cost [POLICY [MILLISECONDS]]");
        return ExitCode::from(2);
    };
    match sim::run(&plan(ms), &Way::policy(policy), 1) {
        Ok(tally) => println!("{} I/Os, {} events", tally.ios, tally.events),
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn plan(ms: u64) -> Plan {
    let path = |device| PathPlan {
        bytes_per_s: 1_200_000_000,
        delay_ns: 50_000,
        jitter_ns: 2_500,
        large_from: 0,
        large_ns: 0,
        small_ns: 0,
        tail_per_million: 0,
        tail_ns: 0,
        cross_percent: 0,
        device,
        ana: Ana::Optimized,
        node: None,
        loss_per_million: 0,
        line_of: None,
    };
    let device = DevicePlan::Flash(Flash {
        servers: 8,
        read_ns: 200_000,
        write_ns: 160_000,
        read_byte_ps: 50,
        write_byte_ps: 60,
        noise: Noise::Usual,
        busy_run_ns: 0,
        busy_stall_ns: 0,
    });
    Plan {
        paths: vec![path(0), path(1)],
        devices: vec![device; 2],
        hosts: vec![HostPlan {
            cpus: 8,
            nodes: 1,
            io_ns: 0,
            busy_run_ns: 0,
            busy_stall_ns: 0,
        }],
        jobs: vec![JobPlan {
            host: 0,
            count: 32,
            depth: 8,
            sizes: vec![(4096, 1)],
            write_percent: 0,
            sequential: false,
            span: 1 << 40,
            iops: 0,
            move_ns: 0,
        }],
        warm_ns: 0,
        run_ns: ms * 1_000_000,
        ..Plan::default()
    }
}
