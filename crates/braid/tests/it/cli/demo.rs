//! The demo, as short as it can be: what it prints, not how fast this machine is.
use crate::cli::common::{Place, code, stderr, stdout};
use serde_json::Value;
use std::fs;

/// Also on a busy machine.
fn ended_well(output: &std::process::Output) {
    assert_eq!((code(output), stderr(output).as_str()), (0, ""));
}

#[test]
fn programs_get_every_cell() {
    let place = Place::new();
    let page = place.path().join("report.html");
    let output = place
        .command()
        .args([
            "demo",
            "--seconds",
            "0.1",
            "--policies",
            "queue-depth,round-robin",
            "-o",
            "json",
        ])
        .arg("--report")
        .arg(&page)
        .output()
        .unwrap();
    ended_well(&output);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["read_mib_s", "write_mib_s", "mixed_mib_s"] {
        assert!(json["optimum"][key].as_f64().unwrap() > 0.0, "{json}");
    }
    let cells = json["cells"].as_array().unwrap();
    let names = |key: &str| {
        cells
            .iter()
            .map(|cell| cell[key].as_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names("op"),
        ["read", "write", "mixed", "read", "write", "mixed"]
    );
    assert_eq!(names("policy")[2..4], ["queue-depth", "round-robin"]);
    for cell in cells {
        assert_eq!(cell["errors"], 0, "{cell}");
        assert_eq!(cell["rounds_mib_s"].as_array().unwrap().len(), 2, "{cell}");
        for key in ["mib_s", "iops", "p50_us", "p99_us", "p999_us"] {
            assert!(cell[key].as_f64().unwrap() > 0.0, "{key}: {cell}");
        }
        let share = |path: &str| cell["share"][path].as_f64().unwrap();
        assert!((share("fast") + share("slow") - 1.0).abs() < 1e-6, "{cell}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.trim_end().ends_with("</html>"));
}

#[test]
fn people_get_a_table_and_the_reasons() {
    let place = Place::new();
    let output = place.braid(&["demo", "--quick", "--policies", "numa"]);
    ended_well(&output);
    let out = stdout(&output);
    for part in [
        "optimum = C + (N − C",
        "numa",
        "of optimum",
        "numa (the nearest path, here slow)",
    ] {
        assert!(out.contains(part), "no {part:?} in {out}");
    }
    assert!(!out.contains('\x1b'), "no colour in a pipe: {out}");
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    let args = [
        "demo",
        "--seconds",
        "0.05",
        "--policies",
        "numa",
        "--report",
        "/no/such/x.html",
    ];
    let output = place.braid(&args);
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("/no/such/x.html"),
        "{}",
        stderr(&output)
    );
}
