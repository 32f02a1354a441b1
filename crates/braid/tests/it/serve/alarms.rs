//! Paths that work, but not as they should: alarms in `check`, `stat` and the log, with their end;
//! and maintenance, for which `check` stays ok.
use crate::serve::process::{Client, Process, begun, engine, two_ports, wait_until};
use crate::serve::{metrics, no_io_uring};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Delay of the path that turns slow. On a busy machine all paths are tens of ms late at times,
/// and the engine makes nothing of differences that it may itself be a fourth of.
const DELAY: &str = "delay=500ms";
/// Clients that read one block after the other: enough I/O on the path with that delay.
const READERS: u64 = 16;

/// A volume over two ports of a target, with readers.
struct Pair {
    directory: tempfile::TempDir,
    _target: Process,
    engine: Process,
    metrics: SocketAddr,
    stop: Arc<AtomicBool>,
    readers: Vec<JoinHandle<()>>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.readers.drain(..).for_each(|it| drop(it.join()));
    }
}

impl Pair {
    /// `None`: this machine has no io_uring.
    fn start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let (target, uris) = two_ports(directory.path(), "t")?;
        let paths = uris.iter().zip(["a", "b"]);
        let paths = paths
            .map(|(uri, name)| format!("[[volume.path]]\nuri = \"{uri}\"\nname = \"{name}\"\n"));
        let text = format!(
            "metrics = \"127.0.0.1:0\"\n[alarms]\nflap_window = \"600s\"\n\
             [[volume]]\nname = \"v0\"\npolicy = \"round-robin\"\nreconnect_delay = \"200ms\"\n\
             probation_errors = \"off\"\n{}[[volume.export]]\nnbd = \"unix:{}\"\n",
            paths.collect::<String>(),
            directory.path().join("v0.sock").display()
        );
        std::fs::write(directory.path().join("b.toml"), text).unwrap();
        let mut engine = engine(directory.path());
        Some(Self {
            directory,
            _target: target,
            metrics: metrics::address(&mut engine),
            engine,
            stop: Arc::default(),
            readers: Vec::new(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&mut self) {
        let reader = |n: u64| {
            let (stop, socket) = (Arc::clone(&self.stop), self.path("v0.sock"));
            std::thread::spawn(move || {
                let mut client = Client::open(&socket);
                while !stop.load(Ordering::Relaxed) {
                    client.read(n * 4096);
                    std::thread::sleep(Duration::from_millis(10));
                }
            })
        };
        self.readers = (0..READERS).map(reader).collect();
    }

    fn braid(&self, words: &[&str], socket: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        let command = command.args(words).arg("--socket").arg(self.path(socket));
        command.output().unwrap()
    }

    fn set(&self, port: &str, fault: &str) {
        let words = ["target", "set", "--port", port, fault];
        assert!(self.braid(&words, "t.sock").status.success());
    }

    fn check(&self) -> (Option<i32>, Value) {
        let output = self.braid(&["check", "v0", "-o", "json"], "c.sock");
        let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), json)
    }

    /// Waits until the page of metrics has a sample with this value.
    fn metric(&self, sample: &str, value: f64) {
        wait_until(|| {
            let page = metrics::scrape(self.metrics);
            // So many in a second are refused.
            std::thread::sleep(Duration::from_millis(100));
            (metrics::value(&page, sample) == value).then_some(())
        });
    }

    fn alarm_metric(&self, alarm: &str, value: f64) {
        let labels = format!("{{volume=\"v0\",path=\"b\",alarm=\"{alarm}\"}}");
        self.metric(&format!("braid_path_alarm{labels}"), value);
    }

    /// Asks `check` until there is an answer, for longer than for what a user waits for: on a busy
    /// machine each verb takes seconds, and some alarms end after a minute.
    fn ask<T>(&self, mut ask: impl FnMut(&Value) -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(240);
        loop {
            let (_, check) = self.check();
            if let Some(answer) = ask(&check) {
                return answer;
            }
            assert!(Instant::now() < end, "it never came: {check}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until `check` says that path b has this alarm, while something is done for it.
    fn begins(&self, alarm: &str, mut provoke: impl FnMut(&Value)) -> Value {
        self.ask(|check| {
            provoke(&check["volumes"][0]["paths"][1]);
            alarm_in(alarm, check)
        })
    }

    /// Makes path b slow until that is noticed. On a busy machine, which is no path's fault, the
    /// engine may not have learnt what is usual: then it gets more time for that.
    fn turns_slow(&self) -> Value {
        for _ in 0..8 {
            self.set("2", DELAY);
            let end = Instant::now() + Duration::from_secs(15);
            while Instant::now() < end {
                if let Some(found) = alarm_in("slow", &self.check().1) {
                    return found;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            self.set("2", "delay=0");
            std::thread::sleep(Duration::from_secs(15));
        }
        panic!("a path that is much slower is not noticed");
    }

    /// Waits until `check` says that path b had this alarm, and does not have it.
    fn ends(&self, alarm: &str) {
        self.ask(|check| {
            let path = &check["volumes"][0]["paths"][1];
            let has = |list: &str| {
                let mut all = path[list].as_array()?.iter();
                Some(all.any(|it| it["alarm"] == alarm))
            };
            (has("ended")? && !has("alarms")?).then_some(())
        });
    }

    /// Other thresholds.
    fn set_alarms(&self, before: &str, after: &str) {
        let file = self.path("b.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(before), "{text}");
        std::fs::write(&file, text.replace(before, after)).unwrap();
        let output = self.braid(&["reload"], "c.sock");
        assert!(output.status.success(), "{output:?}");
    }
}

/// An alarm of path b; then `check` says *degraded*.
fn alarm_in(alarm: &str, check: &Value) -> Option<Value> {
    let alarms = check["volumes"][0]["paths"][1]["alarms"].as_array()?;
    let found = alarms.iter().find(|it| it["alarm"] == alarm)?;
    assert_eq!(check["volumes"][0]["state"], "degraded", "{check}");
    Some(found.clone())
}

#[test]
fn slow_failing_and_flapping_path_is_alarmed_and_well_again() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    pair.read();
    // The usual latency has to be known.
    pair.ask(|_| {
        let output = pair.braid(&["stat", "v0", "-o", "json"], "c.sock");
        let stat: Value = serde_json::from_slice(&output.stdout).ok()?;
        let reads = stat["volumes"][0]["paths"][1]["reads"].as_u64()?;
        (reads > 1000).then_some(())
    });
    let slow = pair.turns_slow();
    let why = slow["why"].as_str().unwrap();
    assert!(
        why.starts_with("p90 of reads is ") && why.contains(", was "),
        "{why}"
    );
    pair.alarm_metric("slow", 1.0);
    let text = pair.braid(&["check", "v0"], "c.sock");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("slow since 20"), "{text}");
    pair.set("2", "delay=0");
    pair.ends("slow");
    pair.alarm_metric("slow", 0.0);

    pair.set("2", "error=internal-error:0.2");
    let errors = pair.begins("errors", |_| {});
    assert!(
        errors["why"].as_str().unwrap().contains("I/Os within 4 s"),
        "{errors}"
    );
    pair.alarm_metric("errors", 1.0);
    // It ends a minute later.
    pair.set("2", "error=0");

    // Each loss counts of a path that was live.
    pair.begins("flapping", |path| {
        if path["usable"] == true {
            let drop = ["target", "drop", "--port", "2"];
            assert!(pair.braid(&drop, "t.sock").status.success());
        }
    });
    pair.alarm_metric("flapping", 1.0);
    pair.set_alarms("flap_window = \"600s\"", "flap_window = \"1s\"");
    pair.ends("flapping");
    pair.alarm_metric("flapping", 0.0);
    pair.ends("errors");
    pair.alarm_metric("errors", 0.0);
    for line in [
        " is slow: p90 of reads is ",
        " is no longer slow, after ",
        " is answering with errors: ",
        " is flapping: lost ",
        " is no longer flapping, after ",
    ] {
        let found = pair.engine.notes(line);
        assert!(found.contains("v0: path b ("), "{found}");
    }

    let events = pair.braid(&["events", "-o", "json"], "c.sock");
    let events = String::from_utf8(events.stdout).unwrap();
    let events = events.lines().map(|it| serde_json::from_str(it).unwrap());
    let health = events.filter(|it: &Value| it["kind"] == "health" && it["path"] == "b");
    let health: Vec<String> = health
        .map(|it| {
            format!(
                "{} {}",
                it["from"].as_str().unwrap(),
                it["to"].as_str().unwrap()
            )
        })
        .collect();
    for alarm in ["slow", "errors", "flapping"] {
        let changes = [format!("ok {alarm}"), format!("{alarm} ok")];
        assert!(changes.iter().all(|it| health.contains(it)), "{health:?}");
    }
    let stat = pair.braid(&["stat", "v0", "-o", "json"], "c.sock");
    let stat: Value = serde_json::from_slice(&stat.stdout).unwrap();
    let history = stat["volumes"][0]["paths"][1]["history"]
        .as_array()
        .unwrap();
    let states: Vec<&str> = history
        .iter()
        .filter_map(|it| it["state"].as_str())
        .collect();
    assert!(states.len() <= 16, "{states:?}");
    for state in ["reconnecting", "live", "flapping", "no longer flapping"] {
        assert!(states.contains(&state), "{states:?}");
    }
}

/// A path that is away, and the engine anew; then the volume.
#[test]
fn maintenance_keeps_check_ok_until_it_ends() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    let comes = |pair: &Pair, code| wait_until(|| (pair.check().0 == Some(code)).then_some(()));
    comes(&pair, 0);
    for (words, part) in [
        (&["on", "v1", "b"][..], "there is no volume"),
        (&["on", "v0", "c"], "there is no path \"c\", only a, b"),
        (&["on", "v0", "b", "--note", ""], "one line"),
        (&["on", "v0", "b", "--for", "0s"], "above 0"),
        (&["off", "v0", "b"], "is not under maintenance"),
    ] {
        let output = pair.braid(&[&["maintenance"], words].concat(), "c.sock");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(part), "{said}");
    }
    pair.set("2", "ana=inaccessible");
    comes(&pair, 1);
    let on = [
        "maintenance",
        "on",
        "v0",
        "b",
        "--for",
        "2h",
        "--note",
        "new switch",
    ];
    assert!(pair.braid(&on, "c.sock").status.success());
    comes(&pair, 0);
    pair.engine.signal(rustix::process::Signal::TERM);
    pair.engine.ended();
    pair.engine = engine(pair.directory.path());
    pair.metrics = metrics::address(&mut pair.engine);
    comes(&pair, 0);
    for (verb, part) in [
        (&["check", "v0"][..], "under maintenance since 20"),
        (&["stat", "v0"], "new switch"),
        (&["maintenance", "list"], "new switch"),
    ] {
        let output = pair.braid(verb, "c.sock");
        let said = String::from_utf8(output.stdout).unwrap();
        // However lines are broken.
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(part), "{said}");
    }
    let on = ["maintenance", "on", "v0", "b", "--for", "300ms"];
    assert!(pair.braid(&on, "c.sock").status.success());
    comes(&pair, 1);
    pair.engine.notes("its maintenance is over");
    // Nothing serves: only the maintenance of the whole volume says that this is expected.
    pair.set("1", "ana=inaccessible");
    comes(&pair, 2);
    let maintenance = |words: &[&str]| {
        let output = pair.braid(&[&["maintenance"], words].concat(), "c.sock");
        assert!(output.status.success(), "{output:?}");
    };
    maintenance(&["on", "v0", "a"]);
    maintenance(&["on", "v0", "b"]);
    assert_eq!(pair.check().0, Some(2));
    maintenance(&["on", "v0"]);
    comes(&pair, 0);
    for verb in ["list", "stat"] {
        let output = pair.braid(&[verb, "-o", "json"], "c.sock");
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = &shown["volumes"][0];
        assert_eq!(
            (&of["state"], &of["actual"]),
            (&"ok".into(), &"down".into())
        );
        let text = pair.braid(&[verb], "c.sock").stdout;
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("ok (down but for maintenance)"), "{text}");
    }
    pair.metric("braid_volume_state{volume=\"v0\",state=\"ok\"}", 1.0);
    pair.metric(
        "braid_volume_actual_state{volume=\"v0\",state=\"down\"}",
        1.0,
    );
    maintenance(&["off", "v0"]);
    comes(&pair, 2);
}

/// A limit that every file system exceeds.
#[test]
fn full_file_system_is_alarmed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.img");
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    let text = format!(
        "[alarms]\nspace = \"1%\"\n[[volume]]\nname = \"v0\"\n[[volume.path]]\n\
         uri = \"file:{}\"\n",
        file.display()
    );
    std::fs::write(directory.path().join("b.toml"), text).unwrap();
    let mut engine = begun(directory.path());
    if engine.says("v0: ready").is_none() {
        engine.notes("io_uring");
        return no_io_uring::skip(&engine.seen);
    }
    engine.notes(" % full, ");
}
