//! Parser of what people write for a status: a value, type and code, a name, or a line of a log.
//!
//! # Contract
//! One reading or an error that says which there are: a number without `0x` or `h` may be decimal
//! or hexadecimal, and counts as what makes a status that has a name, if only one does.
//!
//! # Limits
//! Texts up to [`TEXT_MAX`] bytes.
use nvme::wire::Status;
use nvme::wire::fabrics::connect_status;

/// Longer than a line of the kernel's log.
const TEXT_MAX: usize = 500;
/// Most names that an error lists.
const LISTED_MAX: usize = 12;
/// Names of faults of `braid target`, which aren't the specification's.
const ALIASES: [(&str, Status); 2] = [
    ("media read", Status::UNRECOVERED_READ),
    ("media write", Status::WRITE_FAULT),
];

/// Status that a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// With the retry bits that were given.
    pub status: Status,
    /// Only its meaning in answer to Fabrics commands: so it was called.
    pub fabrics_only: bool,
    /// It was the upper half of a completion's third dword, with this phase tag.
    pub phase: Option<bool>,
}

/// Takes a status from what was written.
///
/// # Errors
/// What is wrong with it, or which readings there are.
pub fn parse(text: &str) -> Result<Asked, String> {
    if text.len() > TEXT_MAX {
        return Err(format!("a status of {} bytes: too long", text.len()));
    }
    let words = Words::of(&text.to_lowercase());
    let mut asked = match (&words.pair, words.numbers.as_slice()) {
        (Some((sct, sc)), _) => pair(sct, sc)?,
        (None, [sct, sc]) if words.name.is_empty() => pair(sct, sc)?,
        (None, [value]) if words.name.is_empty() || is_marked(value) => number(value)?,
        (None, []) if !words.name.is_empty() => named(&words.name.join(" "))?,
        _ => {
            return Err(format!(
                "\"{text}\" is neither one code (0x281, 2h/81h) nor one name; all are listed by \
                 braid status"
            ));
        }
    };
    asked.status = words.with_bits(asked.status);
    Ok(asked)
}

/// A text taken apart.
#[derive(Debug, Default)]
struct Words {
    /// Type and code, where both are there as such.
    pair: Option<(String, String)>,
    /// Other numbers.
    numbers: Vec<String>,
    /// Other words.
    name: Vec<String>,
    dnr: bool,
    more: bool,
    crd: u8,
}

impl Words {
    fn of(text: &str) -> Self {
        let apart = |c: char| c.is_whitespace() || "(),:=\"'".contains(c);
        let mut tokens = text.split(apart).filter(|token| !token.is_empty());
        let mut words = Self::default();
        let (mut sct, mut sc) = (None, None);
        while let Some(token) = tokens.next() {
            match token {
                "sct" => sct = tokens.next(),
                "sc" => sc = tokens.next(),
                "crd" => {
                    let selector = tokens.next().and_then(|it| it.parse().ok());
                    words.crd = selector.filter(|crd| *crd <= 3).unwrap_or(0);
                }
                "dnr" => words.dnr = true,
                "more" => words.more = true,
                "/" => {}
                _ => words.take(token),
            }
        }
        if let (Some(sct), Some(sc)) = (sct, sc) {
            words.pair = Some((sct.into(), sc.into()));
        }
        words
    }

    fn take(&mut self, token: &str) {
        let halves = token.split_once('/');
        match halves.filter(|(a, b)| !values(a).is_empty() && !values(b).is_empty()) {
            Some((sct, sc)) => self.pair = Some((sct.into(), sc.into())),
            None if is_number(token) => self.numbers.push(token.into()),
            None => self.name.push(token.into()),
        }
    }

    fn with_bits(&self, status: Status) -> Status {
        let status = if self.dnr { status.with_dnr() } else { status };
        let status = if self.more {
            status.with_more()
        } else {
            status
        };
        if self.crd > 0 {
            status.with_crd(self.crd)
        } else {
            status
        }
    }
}

/// Whether a word is meant as a number: it begins with a digit, or is hexadecimal by its mark. A
/// word of letters, such as `added`, is a word.
fn is_number(token: &str) -> bool {
    // Half of a pair.
    let token = token.strip_prefix('/').unwrap_or(token);
    token.starts_with(|c: char| c.is_ascii_digit()) || is_marked(token)
}

/// Whether a number says itself that it is hexadecimal.
fn is_marked(token: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    token.strip_prefix("0x").is_some_and(digits) || token.strip_suffix('h').is_some_and(digits)
}

/// Readings of a number: hexadecimal, and decimal where nothing says that it isn't.
fn values(token: &str) -> Vec<u32> {
    let digits = token.strip_prefix("0x").or(token.strip_suffix('h'));
    let hexadecimal = u32::from_str_radix(digits.unwrap_or(token), 16).ok();
    let decimal = token.parse().ok().filter(|_| digits.is_none());
    let mut values: Vec<u32> = hexadecimal.into_iter().chain(decimal).collect();
    values.dedup();
    values
}

/// A value of the status field.
fn number(token: &str) -> Result<Asked, String> {
    let readings: Vec<_> = values(token).into_iter().filter_map(value).collect();
    let decimal = token.bytes().all(|byte| byte.is_ascii_digit());
    let wanted = match values(token).is_empty() {
        true if token.contains('/') => {
            "write a type and a code, as in 2h/81h or 2/0x81: 0 to 7, and 0 to 0xff"
        }
        true if !decimal => {
            "write hexadecimal digits behind 0x or before h, as in 0x281 or 281h, or a decimal \
             number"
        }
        _ => "a status has 15 bits, 16 with the phase tag: 0 to 0xffff (65535)",
    };
    one(token, readings, wanted)
}

/// The field by itself, or, where it can't be that, the half of the completion that holds it.
fn value(value: u32) -> Option<Asked> {
    let value = u16::try_from(value).ok()?;
    let half = Asked {
        status: Status(value >> 1),
        fabrics_only: false,
        phase: Some(value & 1 != 0),
    };
    let plain = Asked {
        status: Status(value),
        fabrics_only: false,
        phase: None,
    };
    let reserved = (4..=6).contains(&plain.status.sct()) && half.status.name().is_some();
    Some(if value > 0x7fff || reserved {
        half
    } else {
        plain
    })
}

/// Type and code.
fn pair(sct: &str, sc: &str) -> Result<Asked, String> {
    let mut readings = Vec::new();
    for sct in values(sct).into_iter().filter(|sct| *sct <= 7) {
        for sc in values(sc).into_iter().filter(|sc| *sc <= 0xff) {
            readings.push(Asked {
                status: Status::new(sct as u8, sc as u8),
                fabrics_only: false,
                phase: None,
            });
        }
    }
    readings.dedup();
    let wanted = "a type is 0 to 7, a code 0 to 0xff";
    one(&format!("{sct}/{sc}"), readings, wanted)
}

/// The one reading, or the one that has a name.
fn one(text: &str, mut readings: Vec<Asked>, wanted: &str) -> Result<Asked, String> {
    if readings.len() > 1 && readings.iter().any(|it| is_known(it.status)) {
        readings.retain(|it| is_known(it.status));
    }
    match readings.as_slice() {
        [] => Err(format!("\"{text}\" is no status: {wanted}")),
        [asked] => Ok(*asked),
        _ => {
            let each = readings.iter().map(|it| {
                let status = it.status;
                format!("{:#05x} ({status})", status.0)
            });
            let each: Vec<_> = each.collect();
            Err(format!("\"{text}\" may be {}: which?", each.join(" or ")))
        }
    }
}

fn is_known(status: Status) -> bool {
    status.name().is_some() || fabrics_name(status).is_some()
}

/// Name of a status in answer to Fabrics commands.
pub fn fabrics_name(status: Status) -> Option<&'static str> {
    let mut all = connect_status::ALL.iter();
    all.find(|(it, _)| it.is(status)).map(|(_, name)| *name)
}

/// As `parse`, of names alone, and without what only Fabrics commands get.
pub fn only(text: &str) -> Option<Status> {
    let short = Some(text).filter(|it| it.len() <= TEXT_MAX)?;
    let asked = named(short).ok().filter(|it| !it.fabrics_only)?;
    Some(asked.status)
}

/// A status by its name, or by words that only one name has.
fn named(text: &str) -> Result<Asked, String> {
    let query = plain(text);
    let mut found = by_name(&query);
    if query.split(' ').any(|word| word == "ana") {
        found.extend(by_name(&query.replace("ana", "asymmetric access")));
    }
    match found.as_slice() {
        [] => Err(format!(
            "no status is called \"{text}\"; all are listed by braid status"
        )),
        [(asked, _)] => Ok(*asked),
        _ => {
            let mut names: Vec<_> = found
                .iter()
                .take(LISTED_MAX)
                .map(|(it, name)| format!("{name} ({:#05x})", it.status.0))
                .collect();
            if found.len() > LISTED_MAX {
                names.push(format!("{} more", found.len() - LISTED_MAX));
            }
            Err(format!("\"{text}\" may be {}: which?", names.join(", ")))
        }
    }
}

/// Those of that name; else those whose names have all the words, as beginnings of theirs.
fn by_name(query: &str) -> Vec<(Asked, &'static str)> {
    let asked = |status, fabrics_only| Asked {
        status,
        fabrics_only,
        phase: None,
    };
    if let Some((name, status)) = ALIASES.iter().find(|(name, _)| *name == query) {
        return vec![(asked(*status, false), *name)];
    }
    let usual = Status::ALL.iter().filter_map(|it| Some((*it, it.name()?)));
    let usual = usual.map(|(status, name)| (asked(status, false), name));
    let fabrics = connect_status::ALL.iter();
    let fabrics = fabrics.map(|(status, name)| (asked(*status, true), *name));
    let all: Vec<_> = usual.chain(fabrics).collect();
    let exact: Vec<_> = all
        .iter()
        .filter(|it| plain(it.1) == query)
        .copied()
        .collect();
    if !exact.is_empty() {
        return exact;
    }
    let has = |name: &str| {
        let name = plain(name);
        let begins = |word: &str| name.split(' ').any(|it| it.starts_with(word));
        query.split(' ').all(begins)
    };
    all.into_iter().filter(|it| has(it.1)).collect()
}

/// A name without what people write differently.
fn plain(name: &str) -> String {
    let words = name.split(|c: char| !c.is_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ").to_lowercase()
}

#[cfg(test)]
mod tests;
