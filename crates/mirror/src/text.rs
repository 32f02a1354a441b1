//! Short texts in a superblock: a name, a label, properties.
//!
//! # Contract
//! A parsed text can be shown as it is: UTF-8 without control characters (properties: but for the
//! end of a line). Encoding: the length (2 bytes, little endian), the text, zeroes.
//!
//! # Limits
//! As many bytes as the type says.
use alloc::format;
use alloc::string::String;
use core::fmt;

/// At most `N` bytes of text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

/// Name of a mirror.
pub type Name = Text<62>;
/// Address at which a leg was last reached, or the name of an owner.
pub type Label = Text<MAX_BYTES>;
/// Bytes of a label.
const MAX_BYTES: usize = 78;

/// Why a text can't stand in a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadText {
    /// Longer than so many bytes.
    Long(usize),
    /// A control character, no UTF-8, or rubbish behind its end.
    Malformed,
}

impl fmt::Display for BadText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Long(most) => write!(f, "longer than {most} bytes"),
            Self::Malformed => f.write_str("has a control character, or is no UTF-8"),
        }
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self {
            len: 0,
            bytes: [0; N],
        }
    }
}

impl<const N: usize> Text<N> {
    /// Returns `text` as one.
    ///
    /// # Errors
    /// [`BadText`]; both.
    pub fn new(text: &str) -> Result<Self, BadText> {
        if text.chars().any(char::is_control) {
            return Err(BadText::Malformed);
        }
        Self::filled(text)
    }

    /// Returns as much of the beginning of `text` as fits, without control characters.
    pub fn cut(text: &str) -> Self {
        let mut cut = Self::default();
        for c in text.chars().filter(|c| !c.is_control()) {
            if cut.append(c.encode_utf8(&mut [0; 4])).is_none() {
                break;
            }
        }
        cut
    }

    fn filled(text: &str) -> Result<Self, BadText> {
        let mut filled = Self::default();
        filled.append(text).ok_or(BadText::Long(N))?;
        Ok(filled)
    }

    /// Appends `text`; `None`: it does not fit.
    fn append(&mut self, text: &str) -> Option<()> {
        let from = usize::from(self.len);
        let room = self.bytes.get_mut(from..from + text.len())?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len() as u16;
        Some(())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let text = core::str::from_utf8(&self.bytes[..self.len.into()]);
        text.unwrap_or_default()
    }

    /// Whether it has no characters.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes it to `out`, which has `N` + 2 bytes.
    pub(super) fn encode(&self, out: &mut [u8]) {
        let (len, bytes) = out.split_at_mut(2);
        len.copy_from_slice(&self.len.to_le_bytes());
        bytes.copy_from_slice(&self.bytes);
    }

    /// Reads it from `N` + 2 bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadText> {
        Self::parse_lines(bytes).and_then(|text| Self::new(text.as_str()))
    }

    fn parse_lines(bytes: &[u8]) -> Result<Self, BadText> {
        let (len, bytes) = bytes.split_first_chunk().ok_or(BadText::Malformed)?;
        let len = usize::from(u16::from_le_bytes(*len));
        let (text, rest) = bytes.split_at_checked(len).ok_or(BadText::Long(N))?;
        if rest.iter().any(|&byte| byte != 0) {
            return Err(BadText::Malformed);
        }
        Self::filled(core::str::from_utf8(text).map_err(|_| BadText::Malformed)?)
    }
}

/// How a label names the URI of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The label stands for the whole URI.
    Whole,
    /// For its first bytes, as older versions wrote it: other URIs may begin with them.
    Beginning,
}

/// Bytes of the beginning of a long URI that its label shows. The rest of the label shows its end.
const HEAD_BYTES: usize = 29;
/// Mark between beginning and end.
const GAP: &str = "...";
/// Hexadecimal digits of a hash, and the mark before them.
const HASH_BYTES: usize = 17;

impl Label {
    /// Returns the label of a leg with this URI: the whole URI, or if that does not fit its
    /// beginning, its end and a hash of the whole. So different URIs have different labels.
    pub fn of_uri(uri: &str) -> Self {
        if let Ok(whole) = Self::new(uri) {
            return whole;
        }
        let clean = |c: &char| !c.is_control();
        let mut label = String::new();
        for c in uri.chars().filter(clean) {
            if label.len() + c.len_utf8() > HEAD_BYTES {
                break;
            }
            label.push(c);
        }
        label.push_str(GAP);
        let room = MAX_BYTES - HASH_BYTES - label.len();
        let mut from = uri.len().saturating_sub(room);
        while !uri.is_char_boundary(from) {
            from += 1;
        }
        label.extend(uri[from..].chars().filter(clean));
        Self::cut(&format!("{label}#{:016x}", fnv1a(uri.as_bytes())))
    }

    /// Returns how this label names `uri`; `None`: it does not.
    pub fn names(&self, uri: &str) -> Option<Named> {
        if *self == Self::of_uri(uri) {
            return Some(Named::Whole);
        }
        (*self == Self::cut(uri)).then_some(Named::Beginning)
    }
}

/// FNV-1a, 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    let begin = 0xcbf2_9ce4_8422_2325_u64;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(begin, step)
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// Properties of a mirror (row B6): `key=value`, one per line. Unknown keys are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties(Text<510>);

impl Properties {
    /// All keys and values, in the order in which they were set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.0.as_str().lines();
        lines.filter_map(|line| line.split_once('='))
    }

    /// The value of `key`.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.iter().find(|it| it.0 == key).map(|it| it.1)
    }

    /// Sets `key`. On an error nothing changes.
    ///
    /// # Errors
    /// [`BadText`]: all together are too long; a control character; a key that is empty or has `=`.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), BadText> {
        if key.is_empty() || key.contains('=') || [key, value].iter().any(|it| has_control(it)) {
            return Err(BadText::Malformed);
        }
        let mut next = Text::<510>::default();
        let others = self.iter().filter(|it| it.0 != key);
        for (key, value) in others.chain([(key, value)]) {
            for part in [key, "=", value, "\n"] {
                next.append(part).ok_or(BadText::Long(510))?;
            }
        }
        self.0 = next;
        Ok(())
    }

    pub(super) fn encode(&self, out: &mut [u8]) {
        self.0.encode(out);
    }

    /// Reads 512 bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadText> {
        let text = Text::parse_lines(bytes)?;
        let mut read = Self::default();
        // Setting each line again shows whether each key is there once and each line is valid.
        for line in text.as_str().split_terminator('\n') {
            let (key, value) = line.split_once('=').ok_or(BadText::Malformed)?;
            read.set(key, value)?;
        }
        match read.0 == text {
            true => Ok(read),
            false => Err(BadText::Malformed),
        }
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_text_that_fits_comes_back_and_another_is_refused() {
        let mut bytes = [0; 64];
        for text in ["", "v0", "é".repeat(31).as_str(), "a".repeat(62).as_str()] {
            Name::new(text).unwrap().encode(&mut bytes);
            assert_eq!(Name::parse(&bytes).unwrap().as_str(), text);
        }
        assert_eq!(Name::new(&"a".repeat(63)), Err(BadText::Long(62)));
        assert_eq!(Name::new("a\n"), Err(BadText::Malformed));
        assert_eq!(Name::cut(&"é".repeat(40)).as_str(), "é".repeat(31));
        assert_eq!(Name::cut("a\u{1b}b").as_str(), "ab");
    }

    #[test]
    fn labels_of_unlike_uris_are_unlike() {
        let short = "file:/dev/sda";
        assert_eq!(Label::of_uri(short).as_str(), short);
        assert_eq!(Label::of_uri(short).names(short), Some(Named::Whole));
        let long = |name: &str| alloc::format!("file:/{}/{name}", "kubelet/".repeat(12));
        let nqn = |nsid: u8| {
            let name = "n".repeat(70);
            alloc::format!("nvme-tcp://192.0.2.1:4420/nqn.2026-01.org.example:{name}?nsid={nsid}")
        };
        let middle = |c: char| alloc::format!("{}{c}{}", "a".repeat(60), "b".repeat(60));
        let uris = [
            long("leg-1.img"),
            long("leg-2.img"),
            nqn(1),
            nqn(2),
            middle('x'),
            middle('y'),
            alloc::format!("file:/\u{1}{}", "\u{20ac}".repeat(40)),
            alloc::format!("file:/{}", "\u{20ac}".repeat(40)),
        ];
        for (at, uri) in uris.iter().enumerate() {
            let label = Label::of_uri(uri);
            let mut bytes = [0; 80];
            label.encode(&mut bytes);
            assert_eq!(Label::parse(&bytes), Ok(label), "{label}");
            assert!(label.as_str().len() > 70, "{label}");
            for (other_at, other) in uris.iter().enumerate() {
                let want = (at == other_at).then_some(Named::Whole);
                assert_eq!(label.names(other), want, "{label} {other}");
            }
            assert_eq!(Label::cut(uri).names(uri), Some(Named::Beginning));
        }
        let shown = Label::of_uri(&uris[1]);
        assert!(shown.as_str().contains("/leg-2.img#"), "{shown}");
        assert_eq!(Label::cut(&uris[0]).names(&uris[1]), Some(Named::Beginning));
    }

    #[test]
    fn hostile_bytes_are_no_text() {
        let with = |at: usize, byte: u8| {
            let mut bytes = [0; 64];
            Name::new("v0").unwrap().encode(&mut bytes);
            bytes[at] = byte;
            Name::parse(&bytes)
        };
        assert_eq!(with(0, 63), Err(BadText::Long(62)));
        assert_eq!(with(1, 0xff), Err(BadText::Long(62)));
        for (at, byte) in [(2, 0xff), (3, 0x1b), (3, b'\n'), (63, 1), (0, 1)] {
            assert_eq!(with(at, byte), Err(BadText::Malformed), "{at}");
        }
        assert_eq!(Name::parse(&[7]), Err(BadText::Malformed));
    }

    #[test]
    fn b6_properties_are_set_kept_and_read_again() {
        let mut set = Properties::default();
        set.set("policy", "soonest").unwrap();
        set.set("of tomorrow", "a=b").unwrap();
        set.set("policy", "round-robin:262144").unwrap();
        assert_eq!(set.value("policy"), Some("round-robin:262144"));
        assert_eq!(set.value("of tomorrow"), Some("a=b"));
        assert_eq!(set.iter().count(), 2);
        let mut bytes = [0; 512];
        set.encode(&mut bytes);
        assert_eq!(Properties::parse(&bytes), Ok(set));
        let before = set;
        for (key, value) in [("", "x"), ("a=", "x"), ("a\n", "x"), ("a", "x\ny")] {
            assert_eq!(set.set(key, value), Err(BadText::Malformed), "{key}");
        }
        assert_eq!(set.set("long", &"x".repeat(500)), Err(BadText::Long(510)));
        assert_eq!(set, before);
    }

    #[test]
    fn hostile_properties_are_refused() {
        for text in ["policy", "=x\n", "a=1\na=2\n", "a=1", "a=\u{7}\n", "\n"] {
            let mut bytes = Vec::from((text.len() as u16).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
            bytes.resize(512, 0);
            assert_eq!(
                Properties::parse(&bytes),
                Err(BadText::Malformed),
                "{text:?}"
            );
        }
    }
}
