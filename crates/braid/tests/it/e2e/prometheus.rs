//! Prometheus reads the metrics of an engine, and evaluates each query of the dashboard and each
//! alert of contrib/.
use super::common::{have, wait};
use crate::serve::process::{Client, Process, begun, two_ports};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn contrib(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    root.join(name).canonicalize().unwrap()
}

/// An address that is free now.
fn free() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap()
}

/// Data of an answer of Prometheus; `None`: it gives none yet.
fn ask(address: SocketAddr, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let value: Value = serde_json::from_str(body).ok()?;
    // While it starts it has no data; of a wrong query it never has.
    assert_ne!(value["errorType"], "bad_data", "{path}: {value}");
    (value["status"] == "success").then(|| value["data"].clone())
}

/// Whether a query has a result.
fn has_result(address: SocketAddr, query: &str) -> bool {
    let coded: String = query.bytes().map(|it| format!("%{it:02X}")).collect();
    let data = ask(address, &format!("/api/v1/query?query={coded}"));
    data.is_some_and(|it| it["result"].as_array().is_some_and(|it| !it.is_empty()))
}

/// The queries of all panels, as Grafana sends them.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(contrib("grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|it| it["targets"].as_array().into_iter().flatten());
    let queries = targets.map(|it| {
        let query = it["expr"].as_str().unwrap();
        let query = query.replace("$volume", ".*");
        query.replace("$__rate_interval", "30s")
    });
    queries.collect()
}

/// Volume v0 over two paths, and mirror m0, with metrics at that address.
fn configure(directory: &Path, metrics: SocketAddr, uris: &[String; 2]) {
    let at = |name: &str| directory.join(name).display().to_string();
    let legs = [at("a.img"), at("b.img")];
    for leg in &legs {
        let file = std::fs::File::create(leg).unwrap();
        file.set_len(64 << 20).unwrap();
    }
    let mut create = Command::new(env!("CARGO_BIN_EXE_braid"));
    create.args(["mirror", "create", "m0"]);
    create.args(legs.each_ref().map(|leg| format!("file:{leg}")));
    assert!(create.output().unwrap().status.success());
    let text = format!(
        "metrics = \"{metrics}\"\n\
         [[volume]]\nname = \"v0\"\npolicy = \"soonest\"\n\
         [[volume.path]]\nuri = \"{}\"\n[[volume.path]]\nuri = \"{}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n\
         [[volume]]\nname = \"m0\"\nkind = \"mirror\"\n\
         [[volume.leg]]\nuri = \"file:{}\"\n[[volume.leg]]\nuri = \"file:{}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        uris[0],
        uris[1],
        at("v0.sock"),
        legs[0],
        legs[1],
        at("m0.sock")
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
}

/// Prometheus with the alerts, which reads the engine each second.
fn prometheus(directory: &Path, engine: SocketAddr) -> (Process, SocketAddr) {
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\n\
         scrape_configs:\n  - job_name: braid\n    \
         static_configs: [{{ targets: [\"{engine}\"] }}]\n",
        contrib("prometheus-alerts.yml").display()
    );
    let [file, data] = ["prometheus.yml", "data"].map(|name| directory.join(name));
    std::fs::write(&file, config).unwrap();
    let address = free();
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", data.display()));
    command.arg(format!("--web.listen-address={address}"));
    let process = Process::spawn(directory, command, Stdio::null());
    (process, address)
}

#[test]
fn prometheus_evaluates_the_dashboard_and_alerts() {
    let test = "prometheus_evaluates_the_dashboard_and_alerts";
    if !have(test, &["prometheus", "promtool"]) {
        return;
    }
    let mut check = Command::new("promtool");
    check
        .args(["check", "rules"])
        .arg(contrib("prometheus-alerts.yml"));
    let checked = check.output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((_target, uris)) = two_ports(directory, "t") else {
        return;
    };
    let metrics = free();
    configure(directory, metrics, &uris);
    let mut engine = begun(directory);
    for volume in ["v0", "m0"] {
        let ready = format!("{volume}: ready");
        let is_ready = engine.seen.contains(&ready) || engine.says(&ready).is_some();
        assert!(is_ready, "{}", engine.seen);
    }
    let mut clients = ["v0", "m0"].map(|volume| {
        let socket = directory.join(format!("{volume}.sock"));
        Client::open_named(&socket, volume)
    });
    let (_prometheus, address) = prometheus(directory, metrics);
    let queries = queries();
    assert!(queries.len() > 30, "{queries:#?}");
    for query in &queries {
        wait(query, || {
            for client in &mut clients {
                assert_eq!(client.write(4096, 7), 0);
                assert_eq!(client.read(4096), [7; 4096]);
            }
            has_result(address, query).then_some(())
        });
    }
    let rules = wait("rules", || {
        let data = ask(address, "/api/v1/rules")?;
        let rules = data["groups"][0]["rules"].as_array()?.clone();
        rules.iter().all(|it| it["health"] == "ok").then_some(rules)
    });
    assert_eq!(rules.len(), 8);
    let alert = "ALERTS{alertname=\"BraidMirrorDegraded\", volume=\"m0\"}";
    assert!(!has_result(address, alert));
    let mut fail = Command::new(env!("CARGO_BIN_EXE_braid"));
    fail.args(["mirror", "fail", "m0", "1", "--socket"]);
    let failed = fail.arg(directory.join("c.sock")).output().unwrap();
    assert!(failed.status.success(), "{failed:?}");
    wait(alert, || has_result(address, alert).then_some(()));
}
