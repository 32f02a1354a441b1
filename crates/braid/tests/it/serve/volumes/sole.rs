//! Two writers of one file that know nothing of each other.
use crate::serve::process::{Process, begun};
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// The file, and an engine's directory with a volume over it.
fn configured(root: &Path, name: &str, keys: &str) -> PathBuf {
    let [directory, file] = [name, "data"].map(|it| root.join(it));
    std::fs::create_dir(&directory).unwrap();
    let data = std::fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&file);
    data.unwrap().set_len(8 << 20).unwrap();
    let text = format!(
        "[[volume]]\nname = \"v0\"\n{keys}\n[[volume.path]]\nuri = \"file:{}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        file.display(),
        directory.join("v0.sock").display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
    directory
}

fn is_ready(engine: &mut Process) -> bool {
    engine.says("v0: ready").is_some()
}

/// It ends for this reason.
fn is_refused(directory: &Path, why: &str) {
    let mut engine = begun(directory);
    let line = engine.notes("is in use");
    assert!(line.contains(why), "{line}");
    assert_eq!(engine.ended().code(), Some(1));
}

#[test]
fn t48_a_file_is_one_volumes_unless_it_is_said_to_be_shared() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let [one, two] = ["one", "two"].map(|name| configured(root, name, ""));
    let three = configured(root, "three", "shared = true");
    let four = configured(root, "four", "shared = true");
    let mut first = begun(&one);
    assert!(is_ready(&mut first));
    is_refused(&two, "an exclusive lock");
    is_refused(&three, "an exclusive lock");
    // A kill leaves no lock behind.
    first.signal(Signal::KILL);
    first.ended();
    let mut shared = [&three, &four].map(|it| begun(it));
    assert!(shared.iter_mut().all(is_ready));
    is_refused(&two, "shared = true in [[volume]]");
}
