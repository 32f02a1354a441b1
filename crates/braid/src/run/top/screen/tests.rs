use super::super::draw;
use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

fn latency(reads: u64, below_ns: u64) -> Value {
    json!({"read": {"sum_ns": reads * below_ns / 2, "buckets": [[below_ns, reads]]}})
}

fn path(number: u64, reads: u64, below_ns: u64, state: &str) -> Value {
    json!({
        "path": number, "name": null,
        "uri": format!("nvme-tcp://192.0.2.{number}:4420/nqn.2026-01.org.example:v0"),
        "state": state, "reads": reads, "bytes_read": reads * 4096, "inflight": number * 3,
        "errors": 0, "latency": latency(reads, below_ns), "live_ns": 7_300_000_000_000_u64,
    })
}

/// An answer after so many seconds, with so many reads of the first path.
fn answer(uptime_s: u64, reads: u64) -> Value {
    let mut lost = path(1, 0, 1024, "reconnecting");
    lost["hindrance"] = "it is being connected again: connection refused".into();
    lost["live_ns"] = Value::Null;
    (lost["errors"], lost["errors_by_class"]) = (reads.into(), json!({"path": reads}));
    let volume = json!({
        "name": "v0", "kind": "paths", "leg_of": null, "state": "degraded",
        "policy": "queue-depth",
        "waiting": {
            "held": 2, "held_age_ns": 1_500_000_000_u64, "held_reason": "bound",
            "held_until_in_ns": 3_000_000_000_u64,
        },
        "failover": {"risk": null},
        "paths": [
            path(0, reads, 1 << 20, "live"), lost, path(2, reads / 2, 1 << 27, "live"),
        ],
        "exports": [{
            "uri": "nbd+unix:///v0?socket=/run/v0.sock",
            "connected": [
                {
                    "client": "process 4711 of user 1000", "core": 0, "connections": 1,
                    "for_ns": 90_000_000_000_u64, "requests": reads, "bytes_read": reads * 4096,
                    "bytes_written": 0, "inflight": 6, "errors": 0,
                },
            ],
        }],
    });
    let mirror = json!({
        "name": "m0", "kind": "mirror", "state": "ok", "policy": "soonest", "held_ns": null,
        "legs": [
            {
                "slot": 0, "name": "ssd", "uri": "file:/srv/a.img", "state": "in-sync",
                "reads": 10, "bytes_read": 40_960, "latency": latency(10, 1 << 16),
            },
            {"slot": 1, "name": null, "uri": "file:/srv/b.img", "state": "rebuilding",
             "rebuilt": 0.25, "writes": 10, "bytes_written": 40_960},
        ],
        "exports": [],
    });
    let leg = json!({"name": "m0/ssd", "kind": "paths", "leg_of": "m0", "paths": []});
    json!({
        "uptime_ns": uptime_s * 1_000_000_000,
        "volumes": [volume, leg, mirror],
    })
}

/// After two answers, a second apart.
fn screen() -> Screen {
    let mut screen = Screen::new(answer(100, 1000), 1_000_000_000, false);
    screen.handle_answer(answer(101, 3000));
    screen
}

/// The terminal's text, without trailing spaces.
fn frame(screen: &mut Screen, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let row = |y| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol().to_owned())
            .collect::<String>()
    };
    let rows: Vec<String> = (0..height).map(|y| row(y).trim_end().to_owned()).collect();
    rows.join("\n") + "\n"
}

/// Compares with a frame that is kept; `BRAID_WRITE_FRAMES=1` writes it.
fn is_frame(name: &str, shown: &str) {
    let file = format!(
        "{}/src/run/top/screen/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("BRAID_WRITE_FRAMES").is_some() {
        std::fs::write(&file, shown).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(shown, kept, "{name}:\n{shown}");
}

#[test]
fn frame_of_a_degraded_volume() {
    let mut screen = screen();
    screen.handle(Command::Down);
    screen.handle(Command::NextPanel);
    screen.handle(Command::Down);
    is_frame("degraded", &frame(&mut screen, (80, 24)));
}

#[test]
fn frame_of_a_mirror() {
    is_frame("mirror", &frame(&mut screen(), (80, 24)));
}

#[test]
fn frame_of_the_help() {
    let mut screen = screen();
    screen.handle(Command::Help);
    is_frame("help", &frame(&mut screen, (80, 24)));
    screen.handle(Command::Help);
    assert!(frame(&mut screen, (80, 24)).contains("VOLUME"));
}

#[test]
fn frame_of_twenty_columns() {
    is_frame("narrow", &frame(&mut screen(), (20, 24)));
}

#[test]
fn every_size_is_drawn() {
    for panel in 0..3 {
        for width in [1, 2, 9, 10, 11, 20, 23, 30, 50, 79, 80, 81, 200] {
            for height in 1..30 {
                let mut screen = screen();
                (0..panel).for_each(|_| assert!(screen.handle(Command::NextPanel)));
                screen.handle(Command::Last);
                let lines = screen.lines(width, height);
                assert_eq!(lines.len(), usize::from(height), "{width}x{height}");
                let widest = lines.iter().map(Line::width).max();
                assert!(widest <= Some(width.into()), "{width}x{height}: {widest:?}");
            }
        }
    }
}

#[test]
fn selected_row_stays_selected_when_rows_move() {
    let mut screen = screen();
    screen.handle(Command::Down);
    assert_eq!(screen.volume(), "v0");
    screen.handle(Command::Reverse);
    assert_eq!(screen.volume(), "v0");
    screen.handle(Command::Up);
    assert_eq!(screen.volume(), "v0", "it is the first one now");
    screen.handle(Command::Last);
    assert_eq!(screen.volume(), "m0");
    let mut without = answer(102, 3000);
    without["volumes"].as_array_mut().unwrap().pop();
    screen.handle_answer(without);
    assert_eq!(screen.volume(), "v0", "the other one is gone");
}

#[test]
fn rows_are_sorted_by_the_chosen_column() {
    let mut screen = screen();
    screen.handle(Command::Down);
    screen.handle(Command::NextPanel);
    let order = |screen: &Screen| -> String {
        screen
            .rows(Panel::Paths)
            .iter()
            .map(|it| it.name[..1].to_owned())
            .collect()
    };
    assert_eq!(order(&screen), "012");
    screen.handle(Command::NextSort);
    assert_eq!(order(&screen), "021", "by I/Os per second");
    (0..3).for_each(|_| assert!(screen.handle(Command::NextSort)));
    assert_eq!(order(&screen), "201", "by p99");
    screen.handle(Command::Reverse);
    assert_eq!(order(&screen), "102");
    (0..4).for_each(|_| assert!(screen.handle(Command::PreviousSort)));
    assert_eq!(order(&screen), "210", "by number, reversed");
}

#[test]
fn paused_figures_stand_still() {
    let mut screen = screen();
    screen.handle(Command::Pause);
    let before = frame(&mut screen, (80, 24));
    assert!(before.contains("paused"), "{before}");
    screen.handle_answer(answer(102, 9000));
    let after = frame(&mut screen, (80, 24));
    let figures = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(figures(&after), figures(&before));
    screen.handle(Command::Pause);
    screen.handle_answer(answer(103, 9500));
    assert_ne!(figures(&frame(&mut screen, (80, 24))), figures(&before));
}

#[test]
fn lost_engine_is_named_until_it_answers() {
    let mut screen = screen();
    let before = frame(&mut screen, (80, 24));
    screen.handle_trouble("no engine answers at /run/b.sock".into(), 5_000_000_000);
    let shown = frame(&mut screen, (80, 24));
    let head = "no answer for 5 s, asking again: no engine answers at /run/b.sock\n";
    assert!(shown.starts_with(head), "{shown}");
    let rest = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!(
        rest(&shown),
        rest(&before),
        "what it answered last is still there"
    );
    screen.handle_answer(answer(1, 10));
    assert!(
        frame(&mut screen, (80, 24)).starts_with("braid top"),
        "it was started again"
    );
}

/// Colours are there where they are wanted, and nothing but emphasis where not.
#[test]
fn colours_only_where_wanted() {
    let colours = |colour| {
        let mut screen = Screen::new(answer(100, 1000), 1_000_000_000, colour);
        let lines = screen.lines(80, 24);
        let spans = lines.into_iter().flat_map(|line| line.spans);
        spans.filter(|span| span.style.fg.is_some()).count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 5);
}

#[test]
fn long_names_keep_both_ends() {
    for (text, width, shown) in [
        ("v0", 6, "v0    "),
        ("12345", 6, "12345 "),
        ("123456", 6, "12~56 "),
        ("0 192.0.2.1:4420", 12, "0 192~:4420 "),
        ("123", 1, "~"),
        ("", 0, ""),
    ] {
        assert_eq!(fit(text, width), shown, "{text} in {width}");
    }
}
