//! Programs as policies of a running engine (rows B6, B9): loaded, replaced, kept, refused, and
//! taken out.
use crate::serve::process::{Client, Process, engine, two_ports, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/modules");

fn ask(root: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).arg("--socket").arg(root.join("c.sock"));
    command.output().unwrap()
}

fn json(root: &Path, words: &[&str]) -> Value {
    let output = ask(root, &[words, &["-o", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{words:?}: {output:?}"))
}

fn text(root: &Path, words: &[&str]) -> String {
    String::from_utf8(ask(root, words).stdout).unwrap()
}

/// Exit code and what was said.
fn refused(root: &Path, words: &[&str]) -> (Option<i32>, String) {
    let output = ask(root, words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// Two paths to a target, an engine on two cores with this policy in its file, and a client.
struct Bed {
    directory: tempfile::TempDir,
    _target: Process,
    engine: Option<Process>,
    uris: [String; 2],
}

impl Bed {
    fn start(policy: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let (target, uris) = two_ports(directory.path(), "t")?;
        let mut it = Self {
            directory,
            _target: target,
            engine: None,
            uris,
        };
        it.configure(policy);
        it.run();
        Some(it)
    }

    fn root(&self) -> &Path {
        self.directory.path()
    }

    fn configure(&self, policy: &str) {
        let [one, two] = &self.uris;
        let socket = self.root().join("v0.sock");
        let text = format!(
            "cores = 2\n[[volume]]\nname = \"v0\"\npolicy = \"{policy}\"\n[[volume.path]]\n\
             uri = \"{one}\"\n[[volume.path]]\nuri = \"{two}\"\n[[volume.export]]\n\
             nbd = \"unix:{}\"\n",
            socket.display()
        );
        fs::write(self.root().join("b.toml"), text).unwrap();
    }

    fn run(&mut self) {
        self.engine = Some(engine(self.root()));
        wait_until(|| {
            let stat = self.volume();
            let paths = stat["paths"].as_array().unwrap();
            paths.iter().all(|it| it["state"] == "live").then_some(())
        });
    }

    fn stop(&mut self) {
        let mut engine = self.engine.take().unwrap();
        engine.signal(Signal::TERM);
        assert_eq!(engine.ended().code(), Some(0));
    }

    fn volume(&self) -> Value {
        json(self.root(), &["stat"])["volumes"][0].clone()
    }

    fn client(&self) -> Client {
        Client::open(&self.root().join("v0.sock"))
    }

    /// A file with a module whose choice is this body, with the addresses `$r` and `$p`.
    fn module(&self, name: &str, body: &str) -> String {
        self.file(
            name,
            &format!(
                "(memory (export \"memory\") 1)
                 (global (export \"braid_context\") i32 (i32.const 1024))
                 (func (export \"braid_select\") (param $r i32) (param $p i32) (result i32) {body})"
            ),
        )
    }

    fn file(&self, name: &str, parts: &str) -> String {
        let path = self.root().join(name);
        let module = wat::parse_str(format!("(module {parts})")).unwrap();
        fs::write(&path, module).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Files of programs that are kept.
    fn kept(&self) -> usize {
        let kept = fs::read_dir(self.root().join("state/braid/programs"));
        kept.map_or(0, Iterator::count)
    }
}

/// Reads that each path has had.
fn reads(volume: &Value) -> [u64; 2] {
    let paths = &volume["paths"];
    [0, 1].map(|it| paths[it]["reads"].as_u64().unwrap_or(0))
}

/// Loaded, it chooses at once, is kept over a restart with its hash, and goes without a trace.
#[test]
fn program_chooses_is_kept_and_unloaded() {
    let Some(mut bed) = Bed::start("round-robin") else {
        return;
    };
    let root = bed.directory.path().to_owned();
    assert_eq!(
        text(&root, &["policy", "list"]),
        "no volume has a program\n"
    );
    let second = bed.module("second.wasm", "(i32.const 1)");
    let loaded = json(&root, &["policy", "load", "v0", &second]);
    let hash = loaded["program"]["sha256"].as_str().unwrap().to_owned();
    let id = format!("program:second@{}", &hash[..16]);
    assert_eq!(loaded["program"]["program"], id);
    let mut client = bed.client();
    let before = reads(&bed.volume());
    client.write_blocks(256);
    client.read_blocks(256, |number, data| assert_eq!(data[0], number as u8));
    let volume = bed.volume();
    let after = reads(&volume);
    assert_eq!((after[0], after[1] - before[1]), (before[0], 256));
    assert_eq!(volume["program"]["state"], "running");
    assert!(volume["program"]["choices"].as_u64().unwrap() >= 512);
    assert_eq!(volume["program"]["fuel_max"], 2);
    let shown = text(&root, &["stat"]);
    assert!(
        shown.contains(&hash) && shown.contains("no faults"),
        "{shown}"
    );
    let shown = text(&root, &["policy", "show", "v0"]);
    assert!(
        shown.contains(" round-robin ") && shown.contains(&format!("[{id}]")),
        "{shown}"
    );
    // The file of the user is not needed again.
    fs::remove_file(&second).unwrap();
    drop(client);
    bed.stop();
    bed.run();
    wait_until(|| (bed.volume()["program"]["state"] == "running").then_some(()));
    let listed = json(&root, &["policy", "list"])["programs"][0].clone();
    assert_eq!(
        (&listed["sha256"], &listed["volume"]),
        (&json!(hash), &json!("v0"))
    );
    let mut client = bed.client();
    let before = reads(&bed.volume());
    client.read_blocks(256, |number, data| assert_eq!(data[0], number as u8));
    assert_eq!(reads(&bed.volume())[0], before[0]);
    let diff = text(&root, &["diff"]);
    assert!(diff.contains(&id), "{diff}");
    drop(client);
    // A lost file is named, and found once it is there again.
    bed.stop();
    let kept = root.join("state/braid/programs");
    let away = root.join("away");
    fs::rename(&kept, &away).unwrap();
    // Nothing names these: the new one may be that of another engine.
    fs::create_dir(&kept).unwrap();
    let orphans = [
        "a@0000000000000000.wasm",
        "b@0000000000000000.new",
        "c@0000000000000000.wasm",
    ]
    .map(|it| kept.join(it));
    for (path, age) in orphans.iter().zip([100, 100, 0]) {
        let file = fs::File::create(path).unwrap();
        let then = SystemTime::now() - Duration::from_secs(age);
        file.set_modified(then).unwrap();
    }
    bed.run();
    wait_until(|| {
        (orphans
            .iter()
            .all(|it| it.exists() == it.ends_with(&orphans[2])))
        .then_some(())
    });
    fs::remove_dir_all(&kept).unwrap();
    wait_until(|| (bed.volume()["program"]["state"] == "failed").then_some(()));
    let said = text(&root, &["check", "v0"]);
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("braid policy load brings it again"),
        "{said}"
    );
    fs::rename(&away, &kept).unwrap();
    wait_until(|| (bed.volume()["program"]["state"] == "running").then_some(()));
    let mut client = bed.client();
    // Another of the same name replaces it, and its file.
    let first = bed.module("second.wasm", "(i32.const 0)");
    json(&root, &["policy", "set", "v0", &format!("program:{first}")]);
    assert_eq!(bed.kept(), 1);
    let before = reads(&bed.volume());
    client.read_blocks(256, |number, data| assert_eq!(data[0], number as u8));
    assert_eq!(reads(&bed.volume())[1], before[1]);
    // With WASI or without it: one file is kept.
    for (options, kind) in [(&["--wasi"][..], ".wasi.wasm"), (&[], ".wasm")] {
        let words = [&["policy", "load", "v0", &first], options].concat();
        let loaded = json(&root, &words);
        assert_eq!(loaded["program"]["wasi"], !options.is_empty());
        let entry = fs::read_dir(&kept).unwrap().next().unwrap().unwrap();
        let name = entry.file_name().into_string().unwrap();
        let rest = name.strip_prefix("second@").unwrap();
        assert_eq!((bed.kept(), &rest[16..]), (1, kind));
    }
    let unloaded = text(&root, &["policy", "unload", "v0"]);
    assert_eq!(unloaded, "v0: round-robin\n");
    assert_eq!((bed.kept(), bed.volume()["program"].is_null()), (0, true));
    let (code, said) = refused(&root, &["policy", "unload", "v0"]);
    assert!(code == Some(1) && said.contains("is no program"), "{said}");
    bed.stop();
}

/// A program in the configuration: its content counts, so a changed file is a changed policy.
#[test]
fn configured_program_changes_with_its_file() {
    let Some(mut bed) = Bed::start("round-robin") else {
        return;
    };
    let root = bed.directory.path().to_owned();
    let file = bed.module("p.wasm", "(i32.const 1)");
    bed.configure(&format!("program:{file}"));
    let changed = json(&root, &["reload"]);
    assert!(
        changed["changed"]
            .as_str()
            .unwrap()
            .contains("policy program:p@"),
        "{changed}"
    );
    let state = || bed.volume()["program"]["state"].as_str().map(str::to_owned);
    wait_until(|| (state()? == "running").then_some(()));
    let before = bed.volume()["policy"].clone();
    let (code, said) = refused(&root, &["policy", "unload", "v0"]);
    assert!(
        code == Some(1) && said.contains("of its configuration"),
        "{said}"
    );
    bed.module("p.wasm", "(i32.const 0)");
    json(&root, &["reload"]);
    wait_until(|| (state()? == "running").then_some(()));
    assert_ne!(bed.volume()["policy"], before);
    assert_eq!(bed.kept(), 0, "the configuration has it");
    let mut client = bed.client();
    client.write_blocks(64);
    let shown = bed.volume();
    assert!(
        shown["program"]["choices"].as_u64().unwrap() >= 64,
        "{shown}"
    );
    // One that is none changes nothing, and the place of the key is named.
    fs::write(&file, "no module").unwrap();
    let (code, said) = refused(&root, &["reload"]);
    assert_ne!(code, Some(0));
    let place = "policy = ";
    assert!(
        said.contains("not a WebAssembly module") && said.contains(place),
        "{said}"
    );
    assert_eq!(bed.volume()["policy"], shown["policy"]);
    drop(client);
    bed.stop();
}

#[test]
fn programs_that_are_none_are_refused_with_a_reason() {
    let Some(mut bed) = Bed::start("queue-depth") else {
        return;
    };
    let root = bed.directory.path().to_owned();
    let select = "(func (export \"braid_select\") (param i32 i32) (result i32) (i32.const 0))";
    let context = "(global (export \"braid_context\") i32 (i32.const 0))";
    let memory = "(memory (export \"memory\") 1)";
    let text = root.join("text.wasm");
    fs::write(&text, "(module)").unwrap();
    let version = root.join("version.wasm");
    fs::write(&version, b"\0asm\x09\0\0\0").unwrap();
    let fifo = root.join("fifo.wasm");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let files = [text, version, fifo, root.join("none.wasm"), root.clone()];
    let [text, version, fifo, none, directory] = files.map(|it| it.to_str().unwrap().to_owned());
    let import = "(import \"braid\" \"clock\" (func))";
    let loops = "(func $s (loop $l (br $l))) (start $s)";
    for (file, why) in [
        (text, "not a WebAssembly module"),
        (version, "not a WebAssembly module"),
        (fifo, "not a regular file"),
        (directory, "not a regular file"),
        (none, "No such file"),
        (
            bed.file("i", &[import, memory, context, select].concat()),
            "braid.clock",
        ),
        (
            bed.file(
                "m",
                &format!("(memory (export \"memory\") 1600) {context} {select}"),
            ),
            "start",
        ),
        (
            bed.file("l", &[loops, memory, context, select].concat()),
            "fuel",
        ),
        (
            bed.file("n", &[memory, context].concat()),
            "exports no \"braid_select\"",
        ),
    ] {
        let (code, said) = refused(&root, &["policy", "load", "v0", &file]);
        assert_eq!(code, Some(1), "{file}: {said}");
        assert!(said.contains(why) && said.contains(&file), "{file}: {said}");
    }
    let (code, said) = refused(&root, &["policy", "load", "v7", "text.wasm"]);
    assert!(code == Some(2) && said.contains("v7"), "{said}");
    for words in [["load", "v0", ""], ["set", "v0", "program:"]] {
        let (code, said) = refused(&root, &[&["policy"], &words[..]].concat());
        assert!(
            code == Some(2) && said.to_lowercase().contains("file"),
            "{said}"
        );
    }
    assert_eq!(
        (bed.volume()["policy"].clone(), bed.kept()),
        (json!("queue-depth"), 0)
    );
    bed.stop();
}

/// One that picks a path whatever its state, and one that picks none: no I/O fails, `soonest`
/// takes over, and everything says so until it is loaded again.
#[test]
fn bad_choices_take_a_program_out() {
    let Some(mut bed) = Bed::start("queue-depth") else {
        return;
    };
    let root = bed.directory.path().to_owned();
    json(&root, &["path", "fail", "v0", "0"]);
    let warm = "(if (i32.load offset=4 (local.get $r)) (then (return (i32.const 0))))";
    for (name, body, reason) in [
        ("dead", "(i32.const 0)".to_owned(), "unusable-path"),
        ("minus", "(i32.const -1)".to_owned(), "no-such-path"),
        ("trap", format!("{warm} unreachable"), "trap"),
        (
            "loop",
            format!("{warm} (loop $l (br $l)) (i32.const 0)"),
            "out-of-fuel",
        ),
    ] {
        let file = bed.module(&format!("{name}.wasm"), &body);
        let loaded = json(&root, &["policy", "load", "v0", &file]);
        assert_eq!(loaded["program"]["state"], "running");
        let mut client = bed.client();
        wait_until(|| {
            client.write_blocks(1024);
            client.read_blocks(1024, |number, data| assert_eq!(data[0], number as u8));
            (bed.volume()["program"]["state"] == "taken-out").then_some(())
        });
        let engine = bed.engine.as_mut().unwrap();
        let line = engine.notes("is taken out");
        assert!(line.contains(name) && line.contains(reason), "{line}");
        let program = bed.volume()["program"].clone();
        assert_eq!(program["state"], "taken-out");
        assert!(
            program["faults"][reason].as_u64().unwrap() > 10,
            "{program}"
        );
        let check = ask(&root, &["check", "v0"]);
        let said = String::from_utf8_lossy(&check.stdout);
        assert_eq!(check.status.code(), Some(1), "{said}");
        assert!(
            said.contains("was taken out") && said.contains(reason),
            "{said}"
        );
        // A knob does not bring it back.
        json(&root, &["knob", "set", "v0", "ewma_shift", "4"]);
        client.write_blocks(64);
        let choices = &bed.volume()["program"]["choices"];
        assert_eq!(*choices, program["choices"], "it chooses no more");
        json(&root, &["knob", "set", "v0", "ewma_shift", "3"]);
    }
    json(&root, &["path", "restore", "v0", "0"]);
    json(
        &root,
        &[
            "policy",
            "load",
            "v0",
            &format!("{MODULES}/queue_depth.wasm"),
        ],
    );
    assert_eq!(ask(&root, &["check", "v0"]).status.code(), Some(0));
    bed.stop();
}

/// Resident memory, KiB.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

/// T41: 1,000 programs come and go under I/O; all of it is answered, with its data, and memory
/// does not grow.
#[test]
fn t41_a_thousand_loads_under_load_leave_nothing() {
    let Some(mut bed) = Bed::start("round-robin") else {
        return;
    };
    let root = bed.directory.path().to_owned();
    let files = [
        format!("{MODULES}/round_robin.wasm"),
        format!("{MODULES}/weighted_latency.wasm"),
        format!("{MODULES}/near_small.wasm"),
    ];
    let id = bed.engine.as_ref().unwrap().child.id();
    let stream = UnixStream::connect(root.join("c.sock")).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut call = |method: &str, params: Value| {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        (&stream).write_all(format!("{call}\n").as_bytes()).unwrap();
        let answer: Value = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
        assert!(answer["result"].is_object(), "{answer}");
    };
    let mut client = bed.client();
    client.write_blocks(4096);
    let mut early = 0;
    std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let reader = scope.spawn(move || {
            use std::sync::mpsc::TryRecvError;
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                client.read_blocks(512, |number, data| assert_eq!(data[0], number as u8));
            }
        });
        for round in 0..1000 {
            call(
                "policy.load",
                json!({"volume": "v0", "file": files[round % 3]}),
            );
            if round % 10 == 9 {
                call("policy.unload", json!({"volume": "v0"}));
            }
            if round == 99 {
                early = resident(id);
            }
        }
        drop(stop);
        reader.join().unwrap();
    });
    let late = resident(id);
    assert!(late * 10 <= early * 11, "{early} KiB, then {late} KiB");
    let volume = bed.volume();
    let paths = volume["paths"].as_array().unwrap();
    assert!(paths.iter().all(|it| it["inflight"] == 0), "{volume}");
    assert_eq!((bed.kept(), &volume["policy"]), (0, &json!("round-robin")));
    bed.stop();
}
