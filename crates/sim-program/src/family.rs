//! Random worlds: a family from which training, validation and test sets are drawn.
//!
//! # Contract
//! The sets never share a world: each has its own sequence. A design is tried on `train`, chosen
//! on `validation`, and run once on `test`. `wide@SEED` is a set for each seed, of [worlds nearer
//! to real machines](wide): any seed that was not used before gives fresh ones.
use super::scenario::Scenario;
use policy::Ana;
use shape::Random;
use sim::{DevicePlan, Flash, HostPlan, JobPlan, Noise, PathPlan, Plan};
use terminal::exit::Usage;

mod wide;

/// How the names of the sets of wide worlds begin.
const WIDE: &str = "wide@";

/// Most worlds of one set.
const COUNT_MAX: usize = 1000;

/// The world that tables call `name`, as `train-29`; `None` if that is none of theirs.
///
/// # Errors
/// Usage: its number is too high.
pub fn one(name: &str) -> Option<anyhow::Result<Vec<Scenario>>> {
    let (set, number) = name.split_once('-')?;
    let first = first(set).ok()?;
    let number: usize = number.parse().ok()?;
    Some(if number < COUNT_MAX {
        Ok(vec![nth(set, first, number)])
    } else {
        let text = format!("{name}: the worlds of {set} are 0 to {}", COUNT_MAX - 1);
        Err(Usage::error(text))
    })
}

fn nth(set: &str, first: u64, number: usize) -> Scenario {
    let random = &mut Random::new(first.wrapping_add(number as u64 * 7919));
    let plan = match set.starts_with(WIDE) {
        true => wide::plan(random),
        false => plan(random),
    };
    Scenario {
        name: format!("{set}-{number}"),
        title: format!("{} random paths", plan.paths.len()),
        plan,
        step_ns: None,
        also: Vec::new(),
        hedge: false,
        long: None,
        document: None,
        bound_elsewhere: None,
    }
}

/// Where the sequence of a set begins.
fn first(set: &str) -> anyhow::Result<u64> {
    match set {
        "train" => Ok(0x7261_1000_0000),
        "validation" => Ok(0x7661_2000_0000),
        "test" => Ok(0x7465_3000_0000),
        _ => {
            let seed = set
                .strip_prefix(WIDE)
                .and_then(|seed| seed.parse::<u64>().ok());
            let first = seed.map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            first.ok_or_else(|| {
                let text = format!(
                    "{set:?} is no family; there are train, validation, test and {WIDE}SEED"
                );
                Usage::error(text)
            })
        }
    }
}

/// `count` worlds of `set`.
///
/// # Errors
/// Usage: no such set, or no number.
pub fn draw(set: &str, count: &str) -> anyhow::Result<Vec<Scenario>> {
    let first = first(set)?;
    let count = match count.parse() {
        Ok(count @ 1..=COUNT_MAX) => count,
        _ => {
            let text = format!("{set}:{count}: a number from 1 to {COUNT_MAX} after the colon");
            return Err(Usage::error(text));
        }
    };
    let world = |number: usize| nth(set, first, number);
    Ok((0..count).map(world).collect())
}

fn plan(random: &mut Random) -> Plan {
    let paths = [2, 2, 2, 3, 4, 6][random.up_to(5) as usize];
    let mut plan = Plan {
        warm_ns: 500_000_000,
        run_ns: 1_000_000_000,
        ..Plan::default()
    };
    for device in 0..paths {
        plan.paths.push(path(random, device));
        plan.devices.push(device_plan(random));
    }
    let busy = random.up_to(5) == 0;
    let cpus = 1 << random.up_to(4);
    let [busy_run_ns, busy_stall_ns] = match busy {
        true => [500_000, between(random, 500_000, 3_000_000)],
        false => [0; 2],
    };
    plan.hosts.push(HostPlan {
        cpus,
        nodes: 1,
        io_ns: 0,
        busy_run_ns,
        busy_stall_ns,
    });
    plan.jobs.push(job(random, &plan));
    plan
}

/// A number between two, each factor as likely as the others.
fn between(random: &mut Random, least: u64, most: u64) -> u64 {
    let ratio = (most / least.max(1)).max(1);
    let doublings = ratio.ilog2();
    let shift = random.up_to(u64::from(doublings)) as u32;
    let low = least << shift;
    (low + random.up_to(low)).min(most)
}

fn path(random: &mut Random, device: usize) -> PathPlan {
    let delay_ns = between(random, 10_000, 20_000_000);
    let one_of = |random: &mut Random, n: u64| random.up_to(n - 1) == 0;
    let sized = one_of(random, 6);
    let tailed = one_of(random, 8);
    PathPlan {
        bytes_per_s: between(random, 100_000_000, 3_200_000_000),
        delay_ns,
        jitter_ns: delay_ns / 20,
        large_from: if sized { 32_768 } else { 0 },
        large_ns: match sized {
            true => between(random, 200_000, 5_000_000),
            false => 0,
        },
        small_ns: 0,
        tail_per_million: if tailed { 10_000 } else { 0 },
        tail_ns: if tailed { 2_000_000 } else { 0 },
        cross_percent: if one_of(random, 6) { 50 } else { 0 },
        device,
        ana: Ana::Optimized,
        node: None,
        loss_per_million: 0,
        line_of: None,
    }
}

fn device_plan(random: &mut Random) -> DevicePlan {
    let read_ns = between(random, 40_000, 1_200_000);
    DevicePlan::Flash(Flash {
        servers: 1 << between(random, 1, 4),
        read_ns,
        write_ns: read_ns * (2 + random.up_to(6)) / 4,
        read_byte_ps: 20 + random.up_to(200),
        write_byte_ps: 20 + random.up_to(300),
        noise: Noise::Usual,
        busy_run_ns: 0,
        busy_stall_ns: 0,
    })
}

fn job(random: &mut Random, plan: &Plan) -> JobPlan {
    const SIZES: [&[(u32, u32)]; 5] = [
        &[(4096, 1)],
        &[(4096, 1)],
        &[
            (4096, 10),
            (32_768, 10),
            (65_536, 10),
            (131_072, 30),
            (262_144, 10),
            (524_288, 30),
        ],
        &[(16_384, 75), (65_536, 25)],
        &[
            (512, 20),
            (4096, 25),
            (32_768, 25),
            (65_536, 20),
            (131_072, 5),
            (262_144, 5),
        ],
    ];
    let sizes = SIZES[random.up_to(4) as usize].to_vec();
    let mut job = JobPlan {
        host: 0,
        count: 1 << random.up_to(5),
        depth: 1 << random.up_to(5),
        sizes,
        write_percent: [0, 0, 30, 50, 100][random.up_to(4) as usize],
        sequential: false,
        span: 1 << 40,
        iops: 0,
        move_ns: 0,
    };
    if random.up_to(3) == 0 {
        // Open: so much of what all paths together can do.
        let percent = [30, 60, 80][random.up_to(2) as usize];
        let all = sim::bound::capacity_of_all(plan, &job);
        job.count = 4;
        job.depth = 4096;
        job.iops = (all * percent / 400).max(1);
    }
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_the_same_every_time_and_share_nothing() {
        let plans = |set: &str| -> Vec<Plan> {
            let worlds = draw(set, "40").unwrap();
            worlds.into_iter().map(|it| it.plan).collect()
        };
        let (train, test) = (plans("train"), plans("test"));
        assert_eq!(train, plans("train"));
        assert!(
            train
                .iter()
                .all(|plan| plan.check().is_ok() && !test.contains(plan))
        );
        let seeds = ["wide@1", "wide@2"].map(plans);
        assert!(seeds[0].iter().all(|plan| !seeds[1].contains(plan)));
        let one = one("train-29").unwrap().unwrap();
        assert_eq!(
            (one[0].name.as_str(), &one[0].plan),
            ("train-29", &train[29])
        );
        assert!(super::one("train-1000").unwrap().is_err());
        assert!(super::one("d30-qd1").is_none() && super::one("test-x").is_none());
        assert!(draw("tain", "3").is_err() && draw("wide@x", "3").is_err());
        assert!(draw("train", "0").is_err());
    }
}
