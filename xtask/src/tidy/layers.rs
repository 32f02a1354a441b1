//! Allowed imports of crates, read from the manifests.
//!
//! Only `[dependencies]` (and build and target ones) count: tests may wire any machines together.
use super::Finding;
use super::tree::{File, Tree};
use toml::{Table, Value};

/// A crate's place: what it may import of ours and, if it is pure, of others.
struct Layer {
    name: &'static str,
    imports: &'static [&'static str],
    /// `Some`: a pure crate, with the foreign crates it may use (each without std, clock or I/O).
    pure: Option<&'static [&'static str]>,
}

/// The table of ARCHITECTURE.md, lowest first.
const LAYERS: [Layer; 26] = [
    // Without its feature, as all but sim's canaries have it, it is pure as well.
    Layer {
        name: "canary",
        imports: &[],
        pure: None,
    },
    Layer {
        name: "block",
        imports: &[],
        pure: Some(&[]),
    },
    Layer {
        name: "policy",
        imports: &["canary"],
        pure: Some(&[]),
    },
    // Runs what users load. The pure crates know its trait alone, which policy has.
    Layer {
        name: "program",
        imports: &["policy", "canary"],
        pure: None,
    },
    Layer {
        name: "nvme",
        imports: &["canary"],
        pure: Some(&["crc-fast"]),
    },
    Layer {
        name: "nbd",
        imports: &["canary"],
        pure: Some(&[]),
    },
    Layer {
        name: "shape",
        imports: &[],
        pure: Some(&[]),
    },
    Layer {
        name: "sys",
        imports: &[],
        pure: None,
    },
    Layer {
        name: "multipath",
        imports: &["block", "policy", "canary"],
        pure: Some(&[]),
    },
    Layer {
        name: "mirror",
        imports: &["block", "canary"],
        pure: Some(&[]),
    },
    Layer {
        name: "engine",
        imports: &[
            "block",
            "policy",
            "nvme",
            "nbd",
            "multipath",
            "mirror",
            "shape",
            "canary",
        ],
        pure: Some(&[]),
    },
    Layer {
        name: "sim",
        imports: &[
            "policy", "nvme", "nbd", "mirror", "shape", "engine", "canary",
        ],
        pure: Some(&[]),
    },
    Layer {
        name: "runtime",
        imports: &[
            "block",
            "policy",
            "nvme",
            "nbd",
            "multipath",
            "shape",
            "engine",
            "sys",
            "queue",
        ],
        pure: None,
    },
    // The client of hardware queues: applications have it, so nothing of the engine is in it.
    Layer {
        name: "queue",
        imports: &["nvme", "sys"],
        pure: None,
    },
    Layer {
        name: "queue-c",
        imports: &["queue"],
        pure: None,
    },
    Layer {
        name: "broker",
        imports: &["block", "nvme", "engine", "queue", "runtime", "sys"],
        pure: None,
    },
    // Parts that braid's programs have in common with any: output, signals, exit codes.
    Layer {
        name: "terminal",
        imports: &["sys"],
        pure: None,
    },
    // A dependency of tests only.
    Layer {
        name: "hostile",
        imports: &[],
        pure: None,
    },
    Layer {
        name: "sim-program",
        imports: &[
            "policy", "program", "shape", "engine", "sim", "canary", "terminal",
        ],
        pure: None,
    },
    // Paths and their ends: shared by what drives volumes and what offers them.
    Layer {
        name: "paths",
        imports: &[
            "policy",
            "nvme",
            "multipath",
            "mirror",
            "engine",
            "runtime",
            "terminal",
        ],
        pure: None,
    },
    // Sockets, signals, service manager: shared by all that serve.
    Layer {
        name: "service",
        imports: &["runtime", "queue", "terminal"],
        pure: None,
    },
    Layer {
        name: "status",
        imports: &["nvme", "nbd", "multipath", "mirror", "engine", "terminal"],
        pure: None,
    },
    Layer {
        name: "target",
        imports: &[
            "nvme", "shape", "engine", "runtime", "terminal", "paths", "service", "status",
        ],
        pure: None,
    },
    Layer {
        name: "load",
        imports: &[
            "policy",
            "nvme",
            "shape",
            "multipath",
            "engine",
            "runtime",
            "sys",
            "queue",
            "terminal",
            "paths",
            "service",
            "target",
        ],
        pure: None,
    },
    // Optimized, while the program's own crate is not.
    Layer {
        name: "cores",
        imports: &[
            "policy",
            "nbd",
            "multipath",
            "mirror",
            "engine",
            "runtime",
            "broker",
            "paths",
            "sys",
        ],
        pure: None,
    },
    // Nothing of the simulator: that is a program of its own.
    Layer {
        name: "braid",
        imports: &[
            "policy",
            "program",
            "nvme",
            "nbd",
            "multipath",
            "mirror",
            "engine",
            "runtime",
            "sys",
            "canary",
            "queue",
            "broker",
            "terminal",
            "paths",
            "cores",
            "service",
            "status",
            "target",
            "load",
        ],
        pure: None,
    },
];

/// A member of the workspace.
pub struct Crate {
    /// Name of its directory.
    pub name: String,
    /// Path of its directory.
    pub directory: String,
    /// Whether it has to be pure.
    pub pure: bool,
}

/// The crates of the tree, in the order of their paths.
pub fn crates(tree: &Tree) -> Vec<Crate> {
    manifests(tree)
        .map(|(name, file)| Crate {
            name: name.to_owned(),
            directory: file.path.trim_end_matches("/Cargo.toml").to_owned(),
            pure: layer(name).is_some_and(|layer| layer.pure.is_some()),
        })
        .collect()
}

/// Checks every crate's manifest.
pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (name, file) in manifests(tree) {
        match file.text.parse::<Table>() {
            Ok(manifest) => check_manifest(name, file, &manifest, findings),
            Err(error) => findings.push(Finding::new(
                &file.path,
                1,
                format!("not TOML: {}", error.message()),
            )),
        }
    }
}

fn check_manifest(name: &str, file: &File, manifest: &Table, findings: &mut Vec<Finding>) {
    let lints = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"));
    if lints != Some(&Value::Boolean(true)) {
        let what = "lacks [lints] workspace = true";
        findings.push(Finding::new(&file.path, 1, what));
    }
    if !file.path.starts_with("crates/") {
        return;
    }
    let Some(layer) = layer(name) else {
        let what = format!("{name} has no layer; give it one in xtask/src/tidy/layers.rs");
        findings.push(Finding::new(&file.path, 1, what));
        return;
    };
    for dependency in dependencies(manifest) {
        let ours = dependency.strip_prefix("braid-").unwrap_or(&dependency);
        let what = if self::layer(ours).is_some() {
            (!layer.imports.contains(&ours)).then(|| format!("{name} may not import {ours}"))
        } else {
            let allowed = layer
                .pure
                .is_none_or(|pure| pure.contains(&dependency.as_str()));
            (!allowed).then(|| format!("{name} is pure: may not import {dependency}"))
        };
        findings
            .extend(what.map(|what| Finding::new(&file.path, line_of(file, &dependency), what)));
    }
}

/// Names of all packages that are compiled into the crate, renamed ones by what they really are.
fn dependencies(manifest: &Table) -> Vec<String> {
    let mut tables: Vec<&Table> = vec![manifest];
    if let Some(Value::Table(targets)) = manifest.get("target") {
        tables.extend(targets.values().filter_map(Value::as_table));
    }
    let mut names = Vec::new();
    for table in tables {
        for kind in ["dependencies", "build-dependencies"] {
            let Some(Value::Table(dependencies)) = table.get(kind) else {
                continue;
            };
            for (key, value) in dependencies {
                let package = value.get("package").and_then(Value::as_str);
                names.push(package.unwrap_or(key).to_owned());
            }
        }
    }
    names
}

fn manifests(tree: &Tree) -> impl Iterator<Item = (&str, &File)> {
    tree.files.iter().filter_map(|file| {
        let directory = file.path.strip_suffix("/Cargo.toml")?;
        match directory.strip_prefix("crates/") {
            Some(name) => (!name.contains('/')).then_some((name, file)),
            None => ["xtask", "tests/bench", "tests/system"]
                .contains(&directory)
                .then_some((directory, file)),
        }
    })
}

fn layer(name: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|layer| layer.name == name)
}

/// Line of the first mention of `dependency` as a key.
fn line_of(file: &File, dependency: &str) -> usize {
    let at = file.text.lines().position(|line| {
        line.starts_with(dependency) || line.contains(&format!("\"{dependency}\""))
    });
    at.map_or(1, |index| index + 1)
}
