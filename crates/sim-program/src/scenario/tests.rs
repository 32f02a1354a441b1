//! Contents and defaults of a scenario, and messages for invalid ones.
use super::*;

const TWO: &str = "title = \"t\"\n[path.a]\n[path.b]\ndelay_us = 80\n[job.j]\ndepth = 4\n";

fn error(text: &str) -> String {
    format!("{:#}", parse("x", text).unwrap_err())
}

#[test]
fn what_is_not_said_is_standard() {
    let scenarios = parse("x", TWO).unwrap();
    let plan = &scenarios[0].plan;
    assert_eq!((scenarios[0].name.as_str(), plan.paths.len()), ("x", 2));
    assert_eq!([0, 1].map(|it| plan.paths[it].delay_ns), [50_000, 80_000]);
    assert_eq!(plan.paths[1].jitter_ns, 4_000);
    assert_eq!(plan.jobs[0].sizes, [(4096, 1)]);
}

#[test]
fn variants_say_what_is_different() {
    let text = format!(
        "{TWO}[[variant]]\nname = \"x-w\"\n[variant.job.j]\nwrite_percent = 100\n\
         [[variant]]\nname = \"x-f\"\n[variant.path.b]\ncopies = 3\n"
    );
    let scenarios = parse("x", &text).unwrap();
    assert_eq!(scenarios[0].name, "x-w");
    assert_eq!(
        (
            scenarios[0].plan.jobs[0].write_percent,
            scenarios[0].plan.jobs[0].depth
        ),
        (100, 4)
    );
    assert_eq!(scenarios[1].plan.paths.len(), 4);
    assert_eq!(scenarios[1].plan.paths[3].delay_ns, 80_000);
}

#[test]
fn what_is_wrong_is_named() {
    assert!(error("x = 1").contains("scenario x"));
    let unknown = error(&format!("{TWO}wight = 3\n"));
    assert!(unknown.contains("wight"), "{unknown}");
    let event = "[[event]]\nat_ms = 1\npath = \"c\"\nup = true\n";
    assert!(error(&format!("{TWO}{event}")).contains("no [path.c]"));
    assert!(error(&format!("{TWO}[[event]]\nat_ms = 1\n")).contains("does nothing"));
    assert!(error(&format!("{TWO}sizes = \"4k/x\"\n")).contains("no weight"));
    let shared = TWO.replace("delay_us = 80", "device = \"d\"");
    assert!(error(&shared).contains("no [device.d]"));
}

#[test]
fn events_can_be_repeated() {
    let event = "[[event]]\nat_ms = 10\npath = \"b\"\ndelay_us = 5\nevery_ms = 4\ntimes = 3\n";
    let scenario = parse("x", &format!("{TWO}{event}")).unwrap().remove(0);
    let at: Vec<u64> = scenario
        .plan
        .events
        .iter()
        .map(|it| it.at_ns / 1_000_000)
        .collect();
    assert_eq!(at, [10, 14, 18]);
    assert_eq!(scenario.plan.events[2].what, Change::Delay(1, 5_000));
}

/// The first moments of a world that is not too deep for that.
fn shortly(plan: Plan) {
    let depth: usize = plan.jobs.iter().map(|it| it.count * it.depth).sum();
    let events = plan.events.clone().into_iter();
    let early = events.map(|it| EventPlan {
        at_ns: it.at_ns.min(100_000),
        ..it
    });
    let plan = Plan {
        warm_ns: 0,
        run_ns: if depth > 256 { 1 } else { 300_000 },
        events: early.collect(),
        ..plan
    };
    let way = sim::Way::Policy(Policy::Soonest, policy::Knobs::default());
    let used = allocation_counter::measure(|| drop(sim::run(&plan, &way, 1).unwrap())).bytes_max;
    let most = (16 << 20) + 256 * depth.min(sim::limits::DEPTH_MAX) as u64;
    assert!(used <= most, "{used} bytes at a depth of {depth}");
}

/// An accepted file can also be run, however large its figures are, in memory that goes by how much
/// is to be under way.
#[test]
fn hostile_files_get_an_error_or_are_worlds() {
    let parser = |text: &str| match parse("x", text) {
        Ok(scenarios) => scenarios,
        Err(error) => {
            assert!(format!("{error:#}").starts_with("scenario "));
            Vec::new()
        }
    };
    let run = |scenarios: Vec<Scenario>| scenarios.into_iter().for_each(|it| shortly(it.plan));
    hostile::attack_and_use("scenario", parser, run);
}

#[test]
fn figures_of_a_document_name_policies() {
    let figures = "[figures]\nnuma = 50\n\"per-numa\" = 70.5\nbound = 9\n";
    let scenario = parse("x", &format!("{TWO}{figures}")).unwrap().remove(0);
    let document = scenario.document.unwrap();
    let policies: Vec<String> = document.policies().map(|it| it.to_string()).collect();
    assert_eq!(policies, ["numa", "weighted-latency:per-numa"]);
    assert_eq!(scenario.bound_elsewhere, Some(9.0));
    let unknown = error(&format!("{TWO}[figures]\nnumb = 5\n"));
    assert!(unknown.contains("\"numb\" is no policy"), "{unknown}");
    let nothing = error(&format!("differs = \"x\"\n{TWO}"));
    assert!(nothing.contains("differs, long, reads"), "{nothing}");
}

#[test]
fn figures_of_hosts_are_added_up() {
    let hosts = "[host]\nhosts = 2\n";
    let each = "[[figures_of_host]]\nnuma = 2.5\n[[figures_of_host]]\nnuma = 4\n";
    let scenario = parse("x", &format!("{TWO}{hosts}{each}"))
        .unwrap()
        .remove(0);
    let document = scenario.document.unwrap();
    assert_eq!(document.figures[0].2, 6.5);
    assert_eq!(document.of_host.len(), 2);
    let alone = error(&format!("{TWO}{each}"));
    assert!(alone.contains("one table for each of 1 hosts"), "{alone}");
}

#[test]
fn a_long_run_has_its_own_times() {
    let text = format!("long = {{ warm_ms = 7, run_ms = 9 }}\n{TWO}[figures]\nnuma = 5\n");
    let scenario = parse("x", &text).unwrap().remove(0);
    let plan = scenario.long.unwrap().of(&scenario.plan);
    assert_eq!((plan.warm_ns, plan.run_ns), (7_000_000, 9_000_000));
    assert_eq!(scenario.plan.run_ns, 2_000_000_000);
    let event = "[[event]]\nat_ms = 1\npath = \"b\"\nup = true\n";
    assert!(error(&format!("{text}{event}")).contains("long and [[event]]"));
    let no_run = error(&text.replace("run_ms = 9", "run_ms = 0"));
    assert!(no_run.contains("long: "), "{no_run}");
}
