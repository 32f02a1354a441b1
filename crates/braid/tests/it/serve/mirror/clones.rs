//! Copied legs that get identifiers of their own: interrupted, without others, given twice.
use super::place::{DATA_AT, Place, end, kill, said, verify};
use crate::serve::process::{Client, begun, wait_until};
use mirror::layout::{BITMAP_AT, COPIES_AT};
use mirror::superblock::SUPERBLOCK_BYTES;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Output;

const BLOCKS: u64 = 64;

impl Place {
    /// A mirror of `a` and `b` that was written, and stopped in order if `clean`; `None`: this
    /// machine has no io_uring.
    fn copied(clean: bool) -> Option<Self> {
        let place = Self::new()?;
        let engine = place.start();
        let mut client = place.client();
        for block in 0..BLOCKS {
            assert_eq!(client.write(block << 12, block as u8), 0);
        }
        match clean {
            true => end(engine),
            false => kill(engine),
        }
        place.copy("a", "c");
        place.copy("b", "d");
        Some(place)
    }

    fn copy(&self, from: &str, to: &str) {
        std::fs::copy(self.path(from), self.path(to)).unwrap();
    }

    fn bytes(&self, leg: &str) -> Vec<u8> {
        std::fs::read(self.path(leg)).unwrap()
    }

    fn import(&self, words: &[&str]) -> Output {
        let words = words.iter().map(|word| match word.starts_with('-') {
            true => (*word).to_owned(),
            false => self.leg(word),
        });
        let words: Vec<String> = words.collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.braid(&[&["mirror", "import-clone", "--name=v1"], &words[..]].concat())
    }

    fn imported(&self, words: &[&str]) {
        let made = self.import(words);
        assert!(made.status.success(), "{words:?}: {made:?}");
    }

    /// Messages about legs that are refused, none of which has changed.
    fn not_imported(&self, words: &[&str]) -> String {
        let legs = words.iter().filter(|word| !word.starts_with('-'));
        let legs: Vec<&str> = legs.copied().collect();
        let before: Vec<_> = legs.iter().map(|leg| self.bytes(leg)).collect();
        let refused = self.import(words);
        assert!(!refused.status.success(), "{words:?}: {refused:?}");
        let after = legs.iter().map(|leg| self.bytes(leg));
        assert!(after.eq(before), "{words:?}: they were changed");
        said(&refused)
    }

    /// The clone `v1` runs with these legs, has everything, and takes in `more`.
    fn clone_has_all(&self, legs: &[&str], more: Option<&str>) {
        let socket = self.path("v1.sock");
        let mut text = "[[volume]]\nname = \"v1\"\nkind = \"mirror\"\n".to_owned();
        for leg in legs {
            text += &format!("[[volume.leg]]\nuri = \"{}\"\n", self.leg(leg));
        }
        text += &format!("[[volume.export]]\nnbd = \"unix:{}\"\n", socket.display());
        std::fs::write(self.path("b.toml"), text).unwrap();
        let mut engine = begun(self.0.path());
        engine.says("v1: ready").unwrap();
        if let Some(leg) = more {
            self.told(&["mirror", "add", "v1", &self.leg(leg), "--force"]);
        }
        verify(&mut Client::open_named(&socket, "v1"), BLOCKS);
        wait_until(|| {
            let status = self.told(&["mirror", "status", "v1"]);
            let mut legs = status["legs"].as_array()?.iter();
            legs.all(|leg| leg["state"] == "in-sync").then_some(())
        });
        end(engine);
        for leg in legs.iter().copied().chain(more) {
            assert!(self.data(leg) == self.data("a"), "{leg} differs");
        }
    }

    /// `leg` shows what it was, but for what an import has written until it was interrupted: its
    /// bitmap, and one superblock.
    fn interrupt(&self, leg: &str, before: &[u8], after: &[u8], copy: usize) {
        std::fs::write(self.path(leg), before).unwrap();
        let file = File::options().write(true).open(self.path(leg)).unwrap();
        let at = COPIES_AT[copy];
        for range in [BITMAP_AT..DATA_AT, at..at + SUPERBLOCK_BYTES as u64] {
            let bytes = &after[range.start as usize..range.end as usize];
            file.write_all_at(bytes, range.start).unwrap();
        }
    }
}

/// Of the first leg one superblock is new: the same command goes on, whatever was written first.
#[test]
fn import_interrupted_between_superblocks_goes_on() {
    for (clean, copy) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        let Some(place) = Place::copied(clean) else {
            return;
        };
        let before = place.bytes("c");
        place.imported(&["c", "d"]);
        place.interrupt("c", &before, &place.bytes("c"), copy);
        place.copy("b", "d");
        if !clean {
            // As if it was copied at another moment.
            let file = File::options().write(true).open(place.path("d"));
            file.unwrap().write_all_at(&[0xee; 4096], DATA_AT).unwrap();
        }
        let seen = place.braid(&["mirror", "examine", &place.leg("c")]);
        let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
        assert!(seen.contains("of different legs"), "{seen}");
        place.imported(&["c", "d"]);
        place.clone_has_all(&["c", "d"], None);
    }
}

/// The first leg is done, the second one is not: as the error says.
#[test]
fn import_interrupted_at_second_leg_goes_on_with_first() {
    for clean in [true, false] {
        let Some(place) = Place::copied(clean) else {
            return;
        };
        let before = place.bytes("d");
        place.imported(&["c", "d"]);
        place.interrupt("d", &before, &place.bytes("d"), 1);
        let why = place.not_imported(&["c", "d"]);
        assert!(why.contains("different mirrors"), "{why}");
        place.imported(&["c", "--without-missing"]);
        place.clone_has_all(&["c"], Some("d"));
    }
}

/// Both superblocks were used, each by its mirror: which data these are nobody knows.
#[test]
fn superblocks_of_two_used_mirrors_are_refused() {
    let Some(place) = Place::copied(true) else {
        return;
    };
    place.imported(&["c", "d"]);
    place.clone_has_all(&["c", "d"], None);
    for copy in [0, 1] {
        let (before, after) = (place.bytes("a"), place.bytes("c"));
        place.interrupt("e", &before, &after, copy);
        let why = place.not_imported(&["e", "--without-missing"]);
        assert!(why.contains("of different legs"), "{why}");
    }
}

#[test]
fn one_leg_of_two_is_imported_if_it_was_clean() {
    for leg in ["c", "d"] {
        let Some(place) = Place::copied(true) else {
            return;
        };
        place.imported(&[leg]);
        place.clone_has_all(&[leg], None);
    }
}

#[test]
fn one_leg_of_two_in_use_is_imported_by_word_only() {
    let Some(place) = Place::copied(false) else {
        return;
    };
    let why = place.not_imported(&["d"]);
    assert!(
        why.contains("leg 0") && why.contains("(--without-missing)"),
        "{why}"
    );
    place.imported(&["d", "--without-missing"]);
    place.clone_has_all(&["d"], None);
}

#[test]
fn the_same_leg_twice_is_refused() {
    let Some(place) = Place::copied(true) else {
        return;
    };
    let c = place.path("c");
    std::fs::hard_link(&c, place.path("hard")).unwrap();
    std::os::unix::fs::symlink(&c, place.path("soft")).unwrap();
    for name in ["hard", "soft", "c"] {
        for words in [["c", name], [name, "c"]] {
            let why = place.not_imported(&words);
            assert!(why.contains("the same as"), "{why}");
        }
    }
    // A leg by another name that is no link: its superblock tells.
    place.copy("c", "e");
    let why = place.not_imported(&["c", "e", "--without-missing"]);
    assert!(why.contains("same leg"), "{why}");
}
