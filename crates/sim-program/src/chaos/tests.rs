use super::*;
use crate::SimArgs;
use clap::Parser;
use sim::chaos::plan::Kind;
use sim::chaos::story::Line;
use terminal::output::Style;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: SimArgs,
}

/// Parses the arguments of `sim`.
fn asked(words: &str) -> Result<SimArgs, clap::Error> {
    let parsed = Cli::try_parse_from(["sim"].into_iter().chain(words.split(' ')));
    parsed.map(|it| it.args)
}

/// The first seed whose world has a fault of this kind.
fn seed_with(kind: Kind) -> u64 {
    let has = |seed: &u64| Plan::draw(*seed).faults.iter().any(|it| it.kind == kind);
    (1..).find(has).unwrap()
}

fn found(kind: &str) -> Outcome {
    Outcome {
        found: Some(Found {
            kind: kind.to_owned(),
            text: format!("{kind} was here"),
            block: Some(3),
            seen_ns: None,
        }),
        ..Outcome::default()
    }
}

/// Of a world in which a host is killed, something is found.
fn killed(plan: &Plan) -> Outcome {
    match plan.faults.iter().any(|it| it.kind == Kind::KillHost) {
        true => found("host"),
        false => Outcome::default(),
    }
}

fn course(detail: Detail) -> Course {
    Course {
        wish: Wish {
            seed: 1,
            threads: 2,
            format: Format::Text,
        },
        sums: Sums::default(),
        findings: vec![(detail.seed, detail.found.clone())],
        ended: Ended::All,
        elapsed: Duration::from_secs(1),
        detail: Some(detail),
        kinds: Kind::ALL.to_vec(),
        checks: Check::of(Family::Plain),
    }
}

#[test]
fn a_finding_is_made_small_and_the_last_line_repeats_it() {
    let seed = seed_with(Kind::KillHost);
    let first = found("host").found.unwrap();
    let detail = Detail::of(
        (Plan::draw(seed), &first),
        None,
        (&Interrupt::default(), crew::PATIENCE),
        killed,
    );
    let command = detail.command();
    let text = course(detail).text(false, Style::PLAIN);
    assert_eq!(text.lines().last(), Some(command.as_str()), "{text}");
    assert!(
        text.contains("with 1 of its ") && text.contains("kill-host"),
        "{text}"
    );
    assert!(text.contains("  ends: the read of 0x"), "{text}");
    let words = command.strip_prefix("braid sim ").unwrap();
    let again = asked(words).unwrap();
    let part = again.chaos.cut(again.seed).unwrap().unwrap();
    let plan = part.of(&Plan::draw(again.seed));
    assert_eq!(
        (plan.faults.len(), plan.faults[0].kind),
        (1, Kind::KillHost)
    );
    assert_eq!(part.requests, 1);
    assert!(killed(&plan).found.is_some());
    // A small world stays so, and is repeated by the same command.
    let detail = Detail::of(
        (Plan::draw(seed), &first),
        Some(part),
        (&Interrupt::default(), crew::PATIENCE),
        killed,
    );
    assert_eq!(detail.command(), command);
}

#[test]
fn what_a_finding_rests_on_is_shown_however_long_ago_it_was() {
    let seed = seed_with(Kind::KillHost);
    let first = found("host").found.unwrap();
    let mut detail = Detail::of(
        (Plan::draw(seed), &first),
        None,
        (&Interrupt::raised(), crew::PATIENCE),
        killed,
    );
    let line = |number: u64| Line::new(number, format!("line {number}."));
    detail.lines = (0..1000).map(line).collect();
    detail.lines[7].key = true;
    let course = course(detail);
    let text = course.text(false, Style::PLAIN);
    assert!(
        text.contains(" > line 7.\n") && text.contains("   line 960.\n"),
        "{text}"
    );
    assert!(
        !text.contains("line 8.") && !text.contains("line 959."),
        "{text}"
    );
    let whole = course.text(true, Style::PLAIN);
    assert!(whole.contains("line 8."), "{whole}");
    let json = course.json(false);
    let trace = json["smallest"]["trace"].as_array().unwrap();
    assert_eq!((trace.len(), &trace[0]["key"]), (41, &true.into()));
    let smallest = &json["smallest"];
    let plan = Plan::draw(seed);
    for (name, want) in [
        ("block", 3),
        ("faults_of_seed", plan.faults.len() as u64),
        ("requests_of_seed", plan.layout.habit.total),
    ] {
        assert_eq!(smallest[name], want, "{name}");
    }
    let layout = &smallest["layout"];
    assert_eq!(layout["hosts"], plan.layout.hosts);
    assert_eq!(layout["policy"], plan.layout.policy.to_string());
}

#[test]
fn a_signal_ends_the_search_for_a_smaller_world() {
    let seed = seed_with(Kind::KillHost);
    let first = found("host").found.unwrap();
    let detail = Detail::of(
        (Plan::draw(seed), &first),
        None,
        (&Interrupt::raised(), crew::PATIENCE),
        killed,
    );
    assert_eq!(
        detail.command(),
        format!("braid sim --chaos --seed {seed} --seeds 1")
    );
}

/// Without a fault this world has no end.
#[test]
fn a_smaller_world_that_hangs_ends_the_search_for_smaller_ones() {
    let seed = seed_with(Kind::KillHost);
    let first = found("host").found.unwrap();
    let (held, never) = std::sync::mpsc::channel::<()>();
    let never = std::sync::Arc::new(std::sync::Mutex::new(never));
    let world = move |plan: &Plan| {
        if plan.faults.len() < 5 {
            let _ = never.lock().unwrap().recv();
        }
        found("host")
    };
    let patience = Duration::from_millis(100);
    let limits = (&Interrupt::default(), patience);
    let detail = Detail::of((Plan::draw(seed), &first), None, limits, world);
    drop(held);
    assert!(detail.cut.faults.len() >= 5, "{:?}", detail.cut);
    let hangs = detail.hangs.as_ref().unwrap();
    assert!(hangs.faults.len() < 5, "{hangs:?}");
    let hangs = detail.command_of(hangs);
    let text = course(detail).text(false, Style::PLAIN);
    assert!(
        text.contains("did not come back") && text.contains(&hangs),
        "{text}"
    );
}

#[test]
fn a_panic_is_a_finding_with_its_place() {
    trial::keep_panics();
    let outcome = trial::attempt(|| panic!("no {}", "more"));
    let found = outcome.found.unwrap();
    assert!(found.text.ends_with(": no more"), "{found:?}");
    assert!(found.kind.contains("chaos/tests.rs:"), "{found:?}");
}

#[test]
fn worlds_are_the_same_on_any_number_of_threads() {
    let text = |threads| {
        let work = Work {
            first: 1,
            count: 6,
            until: None,
            threads,
            patience: crew::PATIENCE,
        };
        let mut sums = Sums::default();
        let world = |seed| trial::outcome(&Plan::draw(seed));
        let ended = crew::run(&work, &Interrupt::default(), world, |seed, outcome| {
            sums.add(seed, &outcome.report);
            outcome.found.is_none()
        });
        assert_eq!((ended.unwrap(), sums.worlds), (Ended::All, 6));
        format!("{sums:?}")
    };
    assert_eq!(text(1), text(3));
}

/// Also with the default number.
#[test]
fn seeds_end_with_the_last() {
    for (words, count) in [
        ("--chaos --seed 18446744073709551614 --hours 1", 2),
        ("--chaos --seed 18446744073709551615", 1),
        ("--chaos --seed 18446744073709551516", 100),
        ("--chaos --seed 1 --hours 1", u64::MAX),
        ("--chaos --seed 0 --hours 1", u64::MAX),
    ] {
        let args = asked(words).unwrap();
        let wish = Wish {
            seed: args.seed,
            threads: 1,
            format: Format::Text,
        };
        assert_eq!(args.chaos.work(wish).unwrap().count, count, "{words}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for (words, why) in [
        ("--chaos --seeds 0", "at least one"),
        ("--chaos --seeds 2 --seed 18446744073709551615", "end at"),
        ("--chaos --seeds 2 --faults 1", "of one world"),
        ("--chaos --seeds 2 --requests 1", "of one world"),
        ("--chaos --faults 0", "has faults 1 to"),
        ("--chaos --faults 99", "has faults 1 to"),
        ("--chaos --seeds 1 -j 257", "at most 256"),
    ] {
        let error = crate::run(&asked(words).unwrap()).unwrap_err();
        assert!(
            error.is::<Usage>() && error.to_string().contains(why),
            "{error}"
        );
    }
    for words in [
        "--chaos --hours -1",
        "--chaos --hours 0",
        "--chaos --hours nan",
        "--chaos --faults 1,1",
        "--chaos --faults 1:2",
        "--chaos --faults a",
        "--chaos d30",
        "--chaos --all",
        "--chaos --long",
        "--chaos --policy numa",
        "--chaos --hedge on",
        "--chaos --report x",
        "--chaos --plot x",
        "--chaos --check x",
        "--chaos --snapshot x",
        "--seeds 1",
        "--hours 1",
        "--faults 1",
        "--trace",
    ] {
        assert!(asked(words).is_err(), "{words}");
    }
}

/// Takes so many bytes; then the disk is full.
struct Full(usize);

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        match taken {
            0 => Err(io::ErrorKind::StorageFull.into()),
            taken => Ok(taken),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs 3 worlds from 1 on with a standard output that takes so many bytes: exit code, and the text
/// on standard error.
fn told(room: usize, format: Format, world: fn(&Plan) -> Outcome) -> (u8, String) {
    let words = "--chaos --seeds 3";
    let args = asked(words).unwrap().chaos;
    let (seed, threads) = (1, 1);
    let wish = Wish {
        seed,
        threads,
        format,
    };
    let work = args.work(wish).unwrap();
    let (mut out, mut err) = (Full(room), Vec::new());
    let teller = Teller::new(format, (&mut out, &mut err));
    let args = Asked {
        args: &args,
        wish,
        cut: None,
    };
    let ended = args.drive(&work, &Interrupt::default(), teller, world);
    let code = match ended {
        Ok(()) => 0,
        Err(why) => why.downcast_ref::<terminal::exit::Exit>().unwrap().0,
    };
    (code, String::from_utf8(err).unwrap())
}

/// However full the disk is, and whenever it came to be so.
#[test]
fn a_finding_is_not_lost_with_standard_output() {
    for format in [Format::Text, Format::Json] {
        // Nothing, the seed, the seed and the finding's first line.
        for room in [7, 40, 100] {
            let (code, said) = told(room, format, |_| found("host"));
            assert_eq!(code, 1, "{format:?} {room}: {said}");
            let line = said.lines().any(|it| it == "braid: seed 1: host was here");
            assert!(line, "{format:?} {room}: {said}");
            let repeat = "repeat with: braid sim --chaos --seed 1 --seeds 1";
            assert!(said.contains(repeat), "{format:?} {room}: {said}");
        }
    }
}

#[test]
fn a_full_disk_is_no_finding() {
    for format in [Format::Text, Format::Json] {
        for room in [0, 8] {
            let (code, said) = told(room, format, |_| Outcome::default());
            assert_eq!(code, tell::UNTOLD, "{format:?} {room}: {said}");
            assert!(said.contains("nothing was found in "), "{said}");
        }
        assert_eq!(told(1 << 20, format, |_| Outcome::default()).0, 0);
    }
}

/// Two kinds happen in a form that has a name of its own.
#[test]
fn faults_are_named_by_kind_and_form() {
    let faults: Vec<_> = (1..=100).flat_map(|seed| Plan::draw(seed).faults).collect();
    for name in [
        "forgotten-idle-connection",
        "half-open",
        "one-way-loss-by-size",
        "one-way",
        "kill-host",
    ] {
        assert!(faults.iter().any(|it| it.name() == name), "no {name}");
    }
    for it in faults {
        let (name, kind) = (it.name(), it.kind);
        let form = match &name[..] {
            "forgotten-idle-connection" => kind == Kind::HalfOpen,
            "one-way-loss-by-size" => kind == Kind::OneWay,
            name => name == kind.name(),
        };
        assert!(form, "{name}: {kind:?}");
    }
}
