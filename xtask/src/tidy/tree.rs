//! The files of the project, read once.
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Directories that hold nothing written by hand.
const SKIPPED: [&str; 3] = [".git", "corpus", "artifacts"];
/// The file by which Cargo marks a directory of build output. Sources have directories of its usual
/// name too.
const BUILD_OUTPUT: &str = "CACHEDIR.TAG";
/// Files whose text is checked, by extension.
const TEXT: [&str; 8] = ["rs", "toml", "md", "sh", "yml", "html", "svg", "txt"];
/// And by name.
const TEXT_NAMES: [&str; 3] = ["run", "allowed-skips", ".gitignore"];

/// One text file.
pub struct File {
    /// Path from the root, with `/`.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// The project as the rules see it.
#[derive(Default)]
pub struct Tree {
    /// Text files, by path.
    pub files: Vec<File>,
}

impl Tree {
    /// Reads everything below `root` but build output and corpora.
    pub fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.read_directory(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// A tree of the given files.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.files.push(File {
                path: (*path).to_owned(),
                text: (*text).to_owned(),
            });
        }
        tree
    }

    /// The text file at `path`.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The Rust sources.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    fn read_directory(&mut self, root: &Path, below: &str) -> Result<()> {
        let directory = root.join(below);
        let entries =
            fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if below.is_empty() {
                name.clone()
            } else {
                format!("{below}/{name}")
            };
            if entry.file_type()?.is_dir() {
                if !SKIPPED.contains(&name.as_str()) && !entry.path().join(BUILD_OUTPUT).exists() {
                    self.read_directory(root, &path)?;
                }
            } else if is_text(&name) {
                let text = fs::read_to_string(entry.path())
                    .with_context(|| format!("read {path} as UTF-8"))?;
                self.files.push(File { path, text });
            }
        }
        Ok(())
    }
}

fn is_text(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    TEXT.contains(&extension) || TEXT_NAMES.contains(&name)
}
