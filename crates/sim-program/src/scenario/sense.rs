//! Whether what a file says has the effect it names: a reference to nothing is an error, not a
//! table of zeros.
use super::{Event, File, Job, State};
use anyhow::{Context, bail, ensure};

/// Refuses what would be about nothing.
///
/// # Errors
/// The first of them: its table, its key and its value, and what could stand there.
pub fn check(file: &File) -> anyhow::Result<()> {
    ensure!(!file.job.is_empty(), "there is no [job.NAME]");
    for (name, job) in &file.job {
        check_job(job, file.host.hosts).with_context(|| format!("job {name}"))?;
    }
    check_paths(file)?;
    for name in file.device.keys() {
        ensure!(
            file.path
                .values()
                .any(|it| it.device.as_ref() == Some(name)),
            "[device.{name}] is the device of no path; write device = \"{name}\" in one, or leave \
             it out"
        );
    }
    ensure!(
        file.long.is_none() || file.event.is_empty(),
        "long and [[event]] stand together; events have times of a run that is not long"
    );
    let end_ms = file.warm_ms.saturating_add(file.run_ms);
    for event in &file.event {
        check_event(event, end_ms).with_context(|| format!("[[event]] at {} ms", event.at_ms))?;
    }
    Ok(())
}

fn check_job(job: &Job, hosts: usize) -> anyhow::Result<()> {
    ensure!(job.count > 0, "count = 0; at least 1");
    ensure!(job.depth > 0, "depth = 0; at least 1");
    let percent = job.write_percent;
    ensure!(percent <= 100, "write_percent = {percent}; at most 100");
    if let Some(host) = job.host {
        let last = hosts.saturating_sub(1);
        ensure!(
            host < hosts,
            "host = {host}; with hosts = {hosts} they are 0 to {last}"
        );
    }
    Ok(())
}

fn check_paths(file: &File) -> anyhow::Result<()> {
    let nodes = file.host.nodes;
    for (name, path) in &file.path {
        if let Some(node) = path.node {
            let last = nodes.saturating_sub(1);
            ensure!(
                node < nodes,
                "path {name}: node = {node}; with nodes = {nodes} they are 0 to {last}"
            );
        }
    }
    let shut = |state: &State| matches!(state, State::Inaccessible);
    let mut here = file.path.iter().filter(|(_, it)| it.copies > 0);
    let opened = file.event.iter().filter_map(|it| it.state.as_ref());
    let first = here.clone().next();
    if let Some((name, _)) = first
        && here.all(|(_, it)| shut(&it.state))
        && opened.clone().all(shut)
    {
        bail!(
            "path {name}: state = \"inaccessible\", as every path is, and no [[event]] changes it: \
             no I/O can go anywhere"
        );
    }
    Ok(())
}

fn check_event(event: &Event, end_ms: u64) -> anyhow::Result<()> {
    let said = [
        ("delay_us", event.delay_us.is_some()),
        ("bandwidth_mb_s", event.bandwidth_mb_s.is_some()),
        ("stall_ms", event.stall_ms.is_some()),
        ("down_after_ms", event.down_after_ms.is_some()),
        ("up", event.up),
        ("state", event.state.is_some()),
        ("policy", event.policy.is_some()),
    ];
    let said: Vec<&str> = said.iter().filter(|it| it.1).map(|it| it.0).collect();
    ensure!(
        said.len() <= 1,
        "{} stand together; write an [[event]] for each",
        said.join(" and ")
    );
    match (event.times, event.every_ms) {
        (Some(0), _) => bail!("times = 0; at least 1"),
        (Some(times), None) => bail!("times = {times} needs every_ms: how long after one another"),
        (None, Some(every_ms)) => bail!("every_ms = {every_ms} needs times: how often in all"),
        _ => (),
    }
    // Repetitions may go on for longer than the run.
    ensure!(
        event.at_ms < end_ms,
        "at_ms = {}; the run ends at {end_ms} ms (warm_ms + run_ms)",
        event.at_ms
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::scenario::parse;

    const TWO: &str = "title = \"t\"\n[path.a]\n[path.b]\ndelay_us = 80\n[job.j]\ndepth = 4\n";

    #[track_caller]
    fn refused(more: &str, parts: &[&str]) {
        let why = format!("{:#}", parse("x", &format!("{TWO}{more}")).unwrap_err());
        for part in parts {
            assert!(why.contains(part), "{part:?} is not in {why:?}");
        }
    }

    #[test]
    fn jobs_and_paths_name_what_is_there() {
        refused("host = 4\n", &["scenario x: job j: host = 4", "0 to 0"]);
        refused("count = 0\n", &["job j: count = 0"]);
        refused("write_percent = 101\n", &["job j: write_percent = 101"]);
        refused("sizes = \"256\"\n", &["job j: sizes = \"256\"", "512"]);
        refused("sizes = \"4k/0\"\n", &["job j: sizes = \"4k/0\""]);
        refused("[path.c]\nnode = 5\n", &["path c: node = 5", "nodes = 1"]);
        refused("[device.d]\n", &["[device.d]"]);
        let none = "title = \"t\"\n[path.a]\n[job]\n";
        let why = format!("{:#}", parse("x", none).unwrap_err());
        assert!(why.contains("no [job.NAME]"), "{why}");
    }

    #[test]
    fn some_path_can_be_used_at_some_time() {
        let shut = "title = \"t\"\n[path.a]\nstate = \"inaccessible\"\n[job.j]\n";
        let why = format!("{:#}", parse("x", shut).unwrap_err());
        assert!(why.contains("path a: state = \"inaccessible\""), "{why}");
        let opened = "[[event]]\nat_ms = 9\npath = \"a\"\nstate = \"optimized\"\n";
        assert!(parse("x", &format!("{shut}{opened}")).is_ok());
        assert!(parse("x", &format!("{shut}[path.b]\n")).is_ok());
    }

    #[test]
    fn events_do_one_thing_while_the_run_lasts() {
        let event = "[[event]]\nat_ms = 7\npath = \"b\"\ndelay_us = 5\n";
        refused(
            &format!("{event}stall_ms = 3\n"),
            &["[[event]] at 7 ms", "delay_us and stall_ms"],
        );
        refused(&format!("{event}times = 3\n"), &["at 7 ms: times = 3"]);
        refused(&format!("{event}every_ms = 3\n"), &["every_ms = 3"]);
        let late = event.replace("= 7", "= 2500");
        refused(&late, &["at 2500 ms", "ends at 2500 ms"]);
        let repeated = format!("{TWO}{event}times = 3\nevery_ms = 1300\n");
        assert!(parse("x", &repeated).is_ok());
    }
}
