//! Archives that a kernel unpacks as its first file system (cpio, "newc").
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const DIRECTORY: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_000;

/// Writes one archive. Several may follow one another in a file: later files win.
pub struct Archive<W: Write> {
    out: W,
    entries: u32,
}

impl<W: Write> Archive<W> {
    /// An archive into `out`, which stands at a multiple of 4 bytes.
    pub const fn new(out: W) -> Self {
        Self { out, entries: 0 }
    }

    /// A directory; those above it must be there before.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        self.entry(path, DIRECTORY, &[])
    }

    /// A symbolic link to `to`.
    pub fn link(&mut self, path: &str, to: &str) -> Result<()> {
        self.entry(path, LINK, to.as_bytes())
    }

    /// A file of these bytes.
    pub fn bytes(&mut self, path: &str, executable: bool, bytes: &[u8]) -> Result<()> {
        let mode = if executable { 0o755 } else { 0o644 };
        self.entry(path, FILE | mode, bytes)
    }

    /// The file `from`, links followed.
    pub fn file(&mut self, path: &str, executable: bool, from: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        self.bytes(path, executable, &bytes)
    }

    /// Files at these paths, executable, and the directories above them.
    pub fn files(&mut self, files: &[(String, PathBuf)]) -> Result<()> {
        let mut made = BTreeSet::new();
        for (path, from) in files {
            for (at, _) in path.match_indices('/') {
                if made.insert(&path[..at]) {
                    self.directory(&path[..at])?;
                }
            }
            self.file(path, true, from)?;
        }
        Ok(())
    }

    /// Ends the archive; gives back what it was written to.
    pub fn finish(mut self) -> Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush().context("write the archive")?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8]) -> Result<()> {
        self.entries += 1;
        let path = path.trim_start_matches('/');
        let len = u32::try_from(data.len()).context("a file over 4 GiB")?;
        let name_len = path.len() as u32 + 1;
        // ino mode uid gid nlink mtime filesize dev(2) rdev(2) namesize check
        let fields = [self.entries, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name_len, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(path);
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(data)
    }

    fn padded(&mut self, bytes: &[u8]) -> Result<()> {
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.out.write_all(bytes).context("write the archive")?;
        self.out
            .write_all(&[0; 3][..padding])
            .context("write the archive")
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn headers_names_and_data_are_padded_to_four_bytes() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("/a").unwrap();
        archive.bytes("/a/file", true, b"12345").unwrap();
        archive.link("/l", "a").unwrap();
        let bytes = archive.finish().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        // 110 of header and "a\0", without data; then the next header.
        assert_eq!(&text[110..112], "a\0");
        assert_eq!(&text[112..118], "070701");
        assert_eq!(&text[118..134], "00000002000081ed");
        assert_eq!(&text[112 + 110..112 + 110 + 7], "a/file\0");
        // 117 of header and name, padded to 120; five bytes of data, padded to eight.
        assert_eq!(&text[112 + 120..112 + 120 + 8], "12345\0\0\0");
        assert_eq!(bytes.len() % 4, 0);
        assert!(text.contains("TRAILER!!!\0"));
    }
}
