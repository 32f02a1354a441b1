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
    /// What it checks.
    pub checks: &'static str,
    /// In `ci`; `None`: in the nightly check only.
    pub ci: Option<Part>,
    /// In the nightly check; `None`: as in `ci`.
    pub nightly: Option<Part>,
    /// A program without which it is skipped.
    pub needs: Option<&'static str>,
}

/// What runs of a step in one of the checks.
pub struct Part {
    /// Which share of all, for the table; empty: all of it.
    pub share: &'static str,
    /// It fails if it takes longer.
    pub limit_s: u64,
    /// Commands for bash. `{test}` and `{demo}` are those of README.md; `$commit` is a number made
    /// of the commit's hash.
    pub shell: &'static str,
}

impl Step {
    /// What of it runs.
    pub fn part(&self, nightly: bool) -> Option<&Part> {
        match nightly {
            true => self.nightly.as_ref().or(self.ci.as_ref()),
            false => self.ci.as_ref(),
        }
    }
}

const fn both(name: &'static str, checks: &'static str, limit_s: u64, shell: &'static str) -> Step {
    Step {
        name,
        checks,
        ci: Some(part("", limit_s, shell)),
        nightly: None,
        needs: None,
    }
}

const fn nightly(
    name: &'static str,
    checks: &'static str,
    limit_s: u64,
    shell: &'static str,
    needs: Option<&'static str>,
) -> Step {
    Step {
        name,
        checks,
        ci: None,
        nightly: Some(part("", limit_s, shell)),
        needs,
    }
}

const fn more(name: &'static str, checks: &'static str, ci: Part, nightly: Part) -> Step {
    Step {
        name,
        checks,
        ci: Some(ci),
        nightly: Some(nightly),
        needs: None,
    }
}

const fn part(share: &'static str, limit_s: u64, shell: &'static str) -> Part {
    Part {
        share,
        limit_s,
        shell,
    }
}

/// All steps, in the order in which they run.
pub const STEPS: [Step; 16] = [
    both(
        "fmt",
        "format",
        60,
        "cargo fmt --all --check && cargo fmt --manifest-path fuzz/Cargo.toml --check",
    ),
    both("tidy", "the project's own lint", 300, "cargo xtask tidy"),
    both(
        "clippy",
        "lints of the compiler and clippy",
        600,
        "cargo clippy --workspace --all-targets -- -D warnings && \
         cargo clippy -p braid-sim --features canaries --all-targets -- -D warnings",
    ),
    both(
        "test",
        "tests as README.md has them, with corpora of the fuzz targets and fixed worlds of faults",
        1800,
        // All that fail are shown by one run.
        "{test} --no-fail-fast",
    ),
    both(
        "doc",
        "documentation, its links",
        300,
        "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps",
    ),
    both(
        "release",
        "the release build",
        1200,
        "cargo build --release",
    ),
    both(
        "sim",
        "policies against their bound",
        300,
        "cargo run --release -q --bin braid-sim -- --check scenarios",
    ),
    more(
        "chaos",
        "worlds of faults, plain ones and those with a mirror",
        // Seeds 1 to 1,400 and 1 to 360 are tests of the simulator.
        part(
            "1,000 plain ones and 100 with a mirror, of the commit's seeds; fixed ones are in \
             `test`",
            360,
            "sim='cargo run --release -q --bin braid-sim --'; \
             $sim --chaos -j 2 --seed $commit --seeds 1000; \
             $sim --chaos --mirrors -j 2 --seed $commit --seeds 100",
        ),
        part(
            "20,000 of each of fixed seeds, and the commit's",
            4 * 3600,
            "sim='cargo run --release -q --bin braid-sim --'; \
             $sim --chaos -j 2 --seed 1 --seeds 20000; \
             $sim --chaos -j 2 --seed $commit --seeds 1000; \
             $sim --chaos --mirrors -j 2 --seed 1 --seeds 20000; \
             $sim --chaos --mirrors -j 2 --seed $commit --seeds 100",
        ),
    ),
    more(
        "canaries",
        "planted bugs",
        part(
            "all of them, each in the world that canaries.md states",
            600,
            "cargo xtask canaries --stated --check",
        ),
        part(
            "all of them, in all worlds up to that",
            1800,
            "cargo xtask canaries --check",
        ),
    ),
    // Its figures gate nothing: that the machine is too busy for them is well too.
    both(
        "demo",
        "the demo, for a short time",
        180,
        "code=0; said=$({demo} --seconds 0.3 2>&1) || code=$?; printf '%s\\n' \"$said\"; \
         [[ $said == *weighted-latency*mixed* ]] && [[ $code == 0 || $said == *'too busy'* ]]",
    ),
    // So many as a busy machine holds too. How fast an honest client is beside them gates nothing.
    both(
        "hostile",
        "memory that a thousand hostile connections take",
        120,
        "cargo xtask bench connections --idle 1000 --slow 100 --pairs 1 --least 0",
    ),
    more(
        "faults",
        "faults of release programs under load",
        // Random faults, kills (over targets, which shares most code with kills over files) and
        // overlapping requests; of the others each is nightly.
        part(
            "8 random faults, 30 kills over targets, requests that overlap, 10 kills with a write \
             under way, no path at all",
            360,
            "cargo xtask faults random --faults 8 --seed $commit --may-skip; \
             cargo xtask faults kill --rounds 30 --on-targets --seed $commit; \
             cargo xtask faults history --seconds 5 --seed $commit --may-skip; \
             cargo xtask faults marks --rounds 10 --seed $commit; \
             cargo xtask faults down --seconds 1 --seed 1 --may-skip",
        ),
        part(
            "each longer; also 3 legs, losses of power, targets that stand still, late writes, a \
             half-sick path, a heavy tail",
            2 * 3600,
            "cargo xtask faults random --faults 200 --seed 1 --may-skip; \
             cargo xtask faults random --faults 50 --seed $commit --may-skip; \
             cargo xtask faults kill --rounds 100 --seed $commit; \
             cargo xtask faults kill --rounds 100 --legs 3 --seed 1; \
             cargo xtask faults kill --rounds 100 --on-targets --seed 1; \
             cargo xtask faults history --seconds 60 --seed $commit --may-skip; \
             cargo xtask faults prefixes --seconds 20 --prefixes 100 --seed $commit --may-skip; \
             cargo xtask faults marks --rounds 200 --seed 1; \
             cargo xtask faults freeze --points 50 --open 10 --random 100 --seed $commit; \
             cargo xtask faults down --seconds 30 --seed 1 --may-skip; \
             cargo xtask faults late --seed 1 --may-skip; \
             cargo xtask faults sick --seed 1; \
             cargo xtask faults tail --seed 1",
        ),
    ),
    more(
        "vm",
        "programs beside a real kernel, in guests",
        // The three with load and with paths that die: the kernel as host of our target, as target
        // below `braid run`, and as client of an export.
        part(
            "host-io, target-run, nbd-client",
            900,
            "cargo xtask vm all --may-skip --only host-io --only target-run --only nbd-client",
        ),
        part("every script", 3600, "cargo xtask vm all --may-skip"),
    ),
    // In a directory of its own: with other flags everything would be compiled anew each time.
    nightly(
        "loom",
        "every order of memory accesses of rings",
        600,
        "RUSTFLAGS='--cfg loom' cargo test -p braid-nvme --test loom --release \
         --target-dir \"${CARGO_TARGET_DIR:-target}/loom\"",
        None,
    ),
    nightly(
        "fuzz",
        "each fuzz target for a minute",
        3600,
        "cargo xtask fuzz --seconds 60",
        Some("c++"),
    ),
    nightly(
        "cost",
        "instructions per choice of a policy",
        600,
        "cargo xtask bench policy",
        Some("valgrind"),
    ),
];

/// The table of CONTRIBUTING.md.
pub fn table() -> String {
    let words = |part: &Part| match part.share {
        "" => "all".to_owned(),
        share => share.to_owned(),
    };
    let mut text =
        "| step | checks | in `ci` | in `ci --nightly` |\n|---|---|---|---|\n".to_owned();
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
    use super::{STEPS, table};
    use std::collections::BTreeSet;

    /// All shell of one of the checks.
    fn shell(nightly: bool) -> String {
        let parts = STEPS.iter().filter_map(|step| step.part(nightly));
        parts.map(|part| part.shell).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_step_is_nightly_and_has_a_name_of_its_own() {
        let names: BTreeSet<_> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
        assert!(STEPS.iter().all(|step| step.part(true).is_some()));
        let limit = |nightly| -> u64 {
            let parts = STEPS.iter().filter_map(|step| step.part(nightly));
            parts.map(|part| part.limit_s).sum()
        };
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
            "xtask canaries --check",
            "xtask vm all --may-skip\n",
        ];
        let all = all
            .into_iter()
            .chain(["xtask fuzz", "--cfg loom", "bench policy"]);
        for words in all.chain(["--check scenarios", "{test}", "{demo}", "bench connections"]) {
            assert!(nightly.contains(words), "{words}");
        }
        for chaos in ["--chaos -j 2", "--chaos --mirrors -j 2"] {
            assert!(nightly.contains(&format!("{chaos} --seed 1 --seeds 20000")));
        }
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
