//! The steps of the check, as data: what each checks, in `ci`, in `ci --nightly`, and how long it
//! may take.
//!
//! # Contract
//! A step of the nightly check repeats that of `ci`, or does more in its place. CONTRIBUTING.md has
//! the same table; a test compares them.
use std::fmt::Write as _;

/// One step.
pub struct Step {
    /// Its word for `--only`.
    pub name: &'static str,
    /// The subject of its check.
    pub checks: &'static str,
    /// In `ci`; `None`: in the nightly check only.
    pub ci: Option<Part>,
    /// In the nightly check; `None`: as in `ci`.
    pub nightly: Option<Part>,
    /// A program without which it is skipped.
    pub needs: Option<&'static str>,
    /// It runs beside the others, with the processor time that they leave: it takes much of that
    /// and depends on no clock.
    pub beside: bool,
}

/// Part of a step in one of the checks.
pub struct Part {
    /// Which share of all, for the table; empty: all of it.
    pub share: &'static str,
    /// So many commands run at a time.
    pub jobs: usize,
    /// Its commands; each has a result of its own.
    pub tasks: &'static [Task],
}

/// One command of a step.
pub struct Task {
    /// Its word behind the step's; empty: it is all of the step.
    pub label: &'static str,
    /// It fails if it takes longer, or three times as long in the nightly check. Four times what
    /// it takes on two free cores, or more, and the build before it where it runs by itself: a
    /// limit ends what hangs, and a busy machine is no failure.
    pub limit_s: u64,
    /// Words for bash. `{test}` and `{demo}` are the commands of README.md, `{sim}` runs the
    /// simulator; `$commit` is a number made of the commit's hash.
    pub shell: &'static str,
}

impl Step {
    /// Part that runs.
    pub fn part(&self, nightly: bool) -> Option<&Part> {
        match nightly {
            true => self.nightly.as_ref().or(self.ci.as_ref()),
            false => self.ci.as_ref(),
        }
    }

    /// The name of one of its tasks.
    pub fn name_of(&self, task: &Task) -> String {
        format!("{} {}", self.name, task.label)
            .trim_end()
            .to_owned()
    }
}

const fn both(name: &'static str, checks: &'static str, tasks: &'static [Task]) -> Step {
    Step {
        name,
        checks,
        ci: Some(part("", 1, tasks)),
        nightly: None,
        needs: None,
        beside: false,
    }
}

const fn nightly(
    name: &'static str,
    checks: &'static str,
    tasks: &'static [Task],
    needs: Option<&'static str>,
) -> Step {
    Step {
        name,
        checks,
        ci: None,
        nightly: Some(part("", 1, tasks)),
        needs,
        beside: false,
    }
}

const fn more(name: &'static str, checks: &'static str, ci: Part, nightly: Part) -> Step {
    Step {
        name,
        checks,
        ci: Some(ci),
        nightly: Some(nightly),
        needs: None,
        beside: false,
    }
}

const fn beside(step: Step) -> Step {
    Step {
        beside: true,
        ..step
    }
}

const fn part(share: &'static str, jobs: usize, tasks: &'static [Task]) -> Part {
    Part { share, jobs, tasks }
}

const fn task(label: &'static str, limit_s: u64, shell: &'static str) -> Task {
    Task {
        label,
        limit_s,
        shell,
    }
}

/// Plain worlds of the commit's seeds.
const PLAIN: Task = task(
    "plain",
    1200,
    "{sim} --chaos -j 2 --seed $commit --seeds 1000",
);

/// Worlds with a mirror, of the commit's seeds.
const MIRRORS: Task = task(
    "mirrors",
    1200,
    "{sim} --chaos --mirrors -j 2 --seed $commit --seeds 100",
);

/// All steps, in the order in which they run.
pub const STEPS: [Step; 18] = [
    both(
        "fmt",
        "format",
        &[task(
            "",
            60,
            "cargo fmt --all --check && cargo fmt --manifest-path fuzz/Cargo.toml --check",
        )],
    ),
    both(
        "tidy",
        "the project's own lint",
        &[task("", 300, "cargo xtask tidy")],
    ),
    Step {
        needs: Some("lychee"),
        ..both(
            "links",
            "links of the documents: files and headings",
            &[task(
                "",
                60,
                "lychee --offline --include-fragments --no-progress --extensions md .",
            )],
        )
    },
    Step {
        needs: Some("cargo-deny"),
        ..both(
            "deny",
            "licences, origin and duplicates of foreign crates",
            &[task(
                "",
                120,
                "for manifest in Cargo.toml fuzz/Cargo.toml; do cargo deny --config deny.toml \
                 --manifest-path $manifest check bans licenses sources; done",
            )],
        )
    },
    beside(both(
        "release",
        "the release build",
        &[task("", 1200, "cargo build --release")],
    )),
    beside(both(
        "sim",
        "policies against their bound",
        &[task("", 1200, "{sim} --check scenarios")],
    )),
    beside(more(
        "chaos",
        "worlds of faults, plain ones and those with a mirror",
        // Seeds 1 to 1,400 and 1 to 360 are tests of the simulator.
        part(
            "1,000 plain ones and 100 with a mirror, of the commit's seeds; fixed ones are in \
             `test`",
            1,
            &[PLAIN, MIRRORS],
        ),
        part(
            "20,000 of each of fixed seeds, and the commit's",
            1,
            &[
                PLAIN,
                MIRRORS,
                // In pieces: a night that is cut goes on with the next one.
                task(
                    "plain-5000",
                    3600,
                    "{sim} --chaos -j 2 --seed 1 --seeds 5000",
                ),
                task(
                    "plain-10000",
                    3600,
                    "{sim} --chaos -j 2 --seed 5001 --seeds 5000",
                ),
                task(
                    "plain-15000",
                    3600,
                    "{sim} --chaos -j 2 --seed 10001 --seeds 5000",
                ),
                task(
                    "plain-20000",
                    3600,
                    "{sim} --chaos -j 2 --seed 15001 --seeds 5000",
                ),
                task(
                    "mirrors-5000",
                    2 * 3600,
                    "{sim} --chaos --mirrors -j 2 --seed 1 --seeds 5000",
                ),
                task(
                    "mirrors-10000",
                    2 * 3600,
                    "{sim} --chaos --mirrors -j 2 --seed 5001 --seeds 5000",
                ),
                task(
                    "mirrors-15000",
                    2 * 3600,
                    "{sim} --chaos --mirrors -j 2 --seed 10001 --seeds 5000",
                ),
                task(
                    "mirrors-20000",
                    2 * 3600,
                    "{sim} --chaos --mirrors -j 2 --seed 15001 --seeds 5000",
                ),
            ],
        ),
    )),
    beside(more(
        "canaries",
        "planted bugs",
        part(
            "all of them, each in the world that canaries.md states",
            1,
            &[task("", 1200, "cargo xtask canaries --stated --check")],
        ),
        part(
            "all of them, in all worlds up to that",
            1,
            &[task("", 3600, "cargo xtask canaries --check")],
        ),
    )),
    both(
        "clippy",
        "lints of the compiler and clippy",
        &[task(
            "",
            900,
            "cargo clippy --workspace --all-targets -- -D warnings && \
             cargo clippy -p braid-sim --features canaries --all-targets -- -D warnings",
        )],
    ),
    both(
        "test",
        "tests as README.md has them, with corpora of the fuzz targets and fixed worlds of faults",
        // All that fail are shown by one run.
        &[task("", 3600, "{test} --no-fail-fast")],
    ),
    both(
        "doc",
        "documentation, its links",
        &[task(
            "",
            300,
            "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps",
        )],
    ),
    // Its figures gate nothing.
    both(
        "demo",
        "the demo, for a short time",
        &[task(
            "",
            1200,
            "said=$({demo} --quick 2>&1) || { printf '%s\\n' \"$said\"; exit 1; }; \
             printf '%s\\n' \"$said\"; [[ $said == *weighted-latency*mixed* ]]",
        )],
    ),
    // So many as a busy machine holds too. How fast an honest client is beside them gates nothing.
    both(
        "hostile",
        "memory that a thousand hostile connections take",
        &[task(
            "",
            1200,
            "cargo xtask bench connections --idle 1000 --slow 100 --pairs 1 --least 0",
        )],
    ),
    // Each is an installation of its own, and most of its time a wait: two at a time.
    more(
        "faults",
        "faults of release programs under load",
        // Random faults, kills (over targets, which shares most code with kills over files) and
        // overlapping requests; of the others each is nightly.
        part(
            "8 random faults, 30 kills over targets, requests that overlap, 10 kills with a write \
             under way, no path at all",
            2,
            &[
                task(
                    "random",
                    1200,
                    "cargo xtask faults random --faults 8 --seed $commit --may-skip",
                ),
                task(
                    "kill-targets",
                    1200,
                    "cargo xtask faults kill --rounds 30 --on-targets --seed $commit",
                ),
                task(
                    "history",
                    1200,
                    "cargo xtask faults history --seconds 5 --seed $commit --may-skip",
                ),
                task(
                    "marks",
                    1200,
                    "cargo xtask faults marks --rounds 10 --seed $commit",
                ),
                task(
                    "down",
                    1200,
                    "cargo xtask faults down --seconds 1 --seed 1 --may-skip",
                ),
            ],
        ),
        part(
            "each longer; also 3 legs, kills over NVMe/TCP, losses of power, targets that stand \
             still, late writes, a half-sick path, a heavy tail, changes that race or are cut off, \
             clients of queues that die",
            2,
            &[
                task(
                    "random-200",
                    2 * 3600,
                    "cargo xtask faults random --faults 200 --seed 1 --may-skip",
                ),
                task("sick", 2400, "cargo xtask faults sick --seed 1"),
                task(
                    "marks",
                    2400,
                    "cargo xtask faults marks --rounds 200 --seed 1",
                ),
                task(
                    "random-50",
                    2400,
                    "cargo xtask faults random --faults 50 --seed $commit --may-skip",
                ),
                task(
                    "kill",
                    2400,
                    "cargo xtask faults kill --rounds 100 --seed $commit",
                ),
                task(
                    "kill-legs",
                    2400,
                    "cargo xtask faults kill --rounds 100 --legs 3 --seed 1",
                ),
                task(
                    "kill-targets",
                    2400,
                    "cargo xtask faults kill --rounds 100 --on-targets --seed 1",
                ),
                task(
                    "kill-nvme",
                    2400,
                    "cargo xtask faults kill --rounds 50 --export nvme --seed $commit",
                ),
                task(
                    "kill-nvme-targets",
                    2400,
                    "cargo xtask faults kill --rounds 50 --on-targets --export nvme --seed 1",
                ),
                task(
                    "down",
                    1200,
                    "cargo xtask faults down --seconds 30 --seed 1 --may-skip",
                ),
                task(
                    "freeze",
                    2400,
                    "cargo xtask faults freeze --points 50 --open 10 --random 100 --seed $commit",
                ),
                task("late", 1200, "cargo xtask faults late --seed 1 --may-skip"),
                task("tail", 1200, "cargo xtask faults tail --seed 1"),
                task("clients", 1200, "cargo xtask faults clients --seed $commit"),
                task(
                    "change",
                    2 * 3600,
                    "cargo xtask faults change --seconds 300 --rounds 200 --steps --seed $commit",
                ),
                task(
                    "history",
                    1200,
                    "cargo xtask faults history --seconds 60 --seed $commit --may-skip",
                ),
                task(
                    "prefixes",
                    1200,
                    "cargo xtask faults prefixes --seconds 20 --prefixes 100 --seed $commit \
                     --may-skip",
                ),
            ],
        ),
    ),
    more(
        "vm",
        "programs beside a real kernel, in guests",
        // The three with load and with paths that die: the kernel as host of our target, as target
        // below `braid run`, and as client of an export.
        part(
            "host-io, target-run, nbd-client",
            1,
            &[task(
                "",
                900,
                "cargo xtask vm all --may-skip --only host-io --only target-run --only nbd-client",
            )],
        ),
        part(
            "every script",
            1,
            &[task("", 3600, "cargo xtask vm all --may-skip")],
        ),
    ),
    // In a directory of its own: with other flags everything would be compiled anew each time.
    beside(nightly(
        "loom",
        "every order of memory accesses of rings",
        &[task(
            "",
            3600,
            "RUSTFLAGS='--cfg loom' cargo test -p braid-nvme --test loom --release \
             --target-dir \"${CARGO_TARGET_DIR:-target}/loom\"",
        )],
        None,
    )),
    nightly(
        "fuzz",
        "each fuzz target for a minute",
        &[task("", 3600, "cargo xtask fuzz --seconds 60 --jobs 2")],
        Some("c++"),
    ),
    beside(nightly(
        "cost",
        "instructions per choice of a policy",
        &[task("", 1800, "cargo xtask bench policy")],
        Some("valgrind"),
    )),
];

/// The table of CONTRIBUTING.md.
pub fn table() -> String {
    let words = |part: &Part| match part.share {
        "" => "all".to_owned(),
        share => share.to_owned(),
    };
    let beside = STEPS.iter().filter(|it| it.beside);
    let beside: Vec<String> = beside.map(|it| format!("`{}`", it.name)).collect();
    let mut text = format!(
        "With the processor time that the others leave, beside them: {}.\n\n\
         | step | checks | in `ci` | in `ci --nightly` |\n|---|---|---|---|\n",
        beside.join(", ")
    );
    for step in &STEPS {
        let ci = step.ci.as_ref().map_or("–".to_owned(), words);
        let nightly = step.nightly.as_ref().map_or("the same".to_owned(), words);
        let _ = writeln!(
            text,
            "| `{}` | {} | {ci} | {nightly} |",
            step.name, step.checks
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{STEPS, Step, Task, table};
    use std::collections::BTreeSet;

    fn tasks(nightly: bool) -> impl Iterator<Item = (&'static Step, &'static Task)> {
        let parts = STEPS
            .iter()
            .filter_map(move |step| Some((step, step.part(nightly)?)));
        parts.flat_map(|(step, part)| part.tasks.iter().map(move |task| (step, task)))
    }

    /// All shell of one of the checks.
    fn shell(nightly: bool) -> String {
        let tasks = tasks(nightly).map(|(_, task)| task.shell);
        tasks.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_step_is_nightly_and_has_a_name_of_its_own() {
        let names: BTreeSet<_> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
        assert!(STEPS.iter().all(|step| step.part(true).is_some()));
        for nightly in [false, true] {
            let names: Vec<_> = tasks(nightly).map(|(step, it)| step.name_of(it)).collect();
            let unlike: BTreeSet<_> = names.iter().collect();
            assert_eq!(unlike.len(), names.len(), "{names:?}");
        }
        let limit = |nightly| tasks(nightly).map(|(_, it)| it.limit_s).sum::<u64>();
        assert!(limit(false) < limit(true));
    }

    #[test]
    fn contributing_says_where_each_step_is() {
        let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../CONTRIBUTING.md");
        let text = std::fs::read_to_string(place).unwrap();
        let table = table();
        assert!(
            text.contains(&table),
            "cargo xtask ci --table prints:\n{table}"
        );
    }

    #[test]
    fn no_kind_of_check_is_in_neither() {
        let nightly = shell(true);
        let parts = [
            "random", "down", "late", "sick", "history", "prefixes", "kill", "marks", "freeze",
            "tail",
        ];
        for part in parts {
            assert!(nightly.contains(&format!("faults {part} ")), "{part}");
        }
        let all = [
            "xtask tidy",
            "lychee --offline",
            "bans licenses sources",
            "xtask canaries --check",
            "xtask vm all --may-skip\n",
        ];
        let all = all
            .into_iter()
            .chain(["xtask fuzz", "--cfg loom", "bench policy"]);
        for words in all.chain(["--check scenarios", "{test}", "{demo}", "bench connections"]) {
            assert!(nightly.contains(words), "{words}");
        }
        for (kind, seeds) in [("plain", 20_000), ("mirrors", 20_000)] {
            assert_eq!(fixed_worlds(kind), seeds, "{kind}");
        }
    }

    /// Up to which seed the tasks of a kind go, without a gap.
    fn fixed_worlds(kind: &str) -> u64 {
        let mut last = 0;
        for (_, task) in tasks(true).filter(|(step, _)| step.name == "chaos") {
            let number = |key: &str| -> Option<u64> {
                let (_, rest) = task.shell.split_once(key)?;
                rest.split(' ').next()?.parse().ok()
            };
            // Those of the commit have no number.
            let first = number("--seed ").filter(|_| task.label.starts_with(kind));
            if let Some(first) = first {
                assert_eq!(first, last + 1, "{}", task.shell);
                last += number("--seeds ").unwrap();
            }
            assert_eq!(
                task.shell.contains("--mirrors"),
                task.label.contains("mirrors")
            );
        }
        last
    }

    #[test]
    fn guests_of_the_short_check_exist() {
        let shell = shell(false);
        let mut words = shell.split_whitespace();
        let mut count = 0;
        while words.by_ref().any(|word| word == "--only") {
            let script = words.next().unwrap().trim_end_matches(';');
            let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/guest/");
            let place = format!("{place}{script}.sh");
            assert!(std::path::Path::new(&place).is_file(), "{place}");
            count += 1;
        }
        assert!(count > 0);
    }
}
