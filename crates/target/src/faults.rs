//! The faults of a port as they are written: in the configuration, behind `--listen`, and while it
//! runs.
//!
//! Of errors: one or several rules with `+` between them, each a status and, behind colons, what
//! limits it:
//!
//! ```text
//! error=media-read:0.01
//! error=namespace-not-ready:dnr:crd=1:op=write:op=flush+0x286:lba=100-199:0.5
//! ```
use super::quantity::{Duration, FromText};
use ::status;
use engine::limits::ERROR_RULES_MAX;
use engine::target::{ErrorRule, Faults, Ops, Probability};
use nvme::wire::Status;
use serde::Deserialize;

/// How they are written; for `--help`.
pub const HELP: &str = "\
Faults of a port:
  error=STATUS[:LIMIT…][+STATUS…]  commands fail; the first rule that hits counts; 0 = none
      STATUS  media-read, media-write, a name as in internal-error or namespace-not-ready,
              or status code type and code in hexadecimal, as in 0x281
      LIMIT   0.01 (so many of them), op=read|write|flush|write-zeroes|deallocate|compare (may be
              there several times), lba=FIRST[-LAST]; and bits of the status: dnr, crd=1|2|3
  drop_rate=0.001    that many commands have their connection reset
  hang=0.001         that many commands are not answered until they are aborted
  hold_writes=10s    writes don't begin for so long; 0 lets them go
  late_writes=2s     writes that had not begun are executed so long after their connection is gone,
                     within the command quiesce time (--cqt) or beyond it; 0 = never
  until_kato=on|off  writes outlive their connection until keep-alive expires
  mute=5s            nothing is sent for so long; 0 ends it
  refuse=5s          new connections are closed at once for so long; 0 ends it

Size, write protection and block size are the namespace's, on all ports. A Linux host gives the
disk of all its paths those of the port that it scanned last: a change shrinks or write-protects
that disk at once, also where other ports show the old ones. See `braid target resize --help`.";

/// A change of a port's faults; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSettings {
    /// Commands that fail.
    pub error: Option<Errors>,
    /// Chance of a command to have its connection reset.
    pub drop_rate: Option<Chance>,
    /// Chance of a command to hang.
    pub hang: Option<Chance>,
    /// Writes don't begin for so long from now.
    pub hold_writes: Option<Duration>,
    /// Writes are executed so long after their connection is gone.
    pub late_writes: Option<Duration>,
    /// Writes outlive their connection until keep-alive expires.
    pub until_kato: Option<Switch>,
    /// Nothing is sent for so long from now.
    pub mute: Option<Duration>,
    /// New connections are refused for so long from now.
    pub refuse: Option<Duration>,
}

/// Its keys.
pub const KEYS: [&str; 8] = [
    "error",
    "drop_rate",
    "hang",
    "hold_writes",
    "late_writes",
    "until_kato",
    "mute",
    "refuse",
];

/// Rules of injected errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<ErrorRule>);

/// 0 to 1, in decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chance(pub Probability);

/// `on` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(pub bool);

impl FaultSettings {
    /// A port's faults, changed. Times begin now.
    pub fn apply(&self, faults: &mut Faults, now_ns: u64) {
        let until = |of: &mut u64, to: Option<Duration>| match to {
            None => {}
            Some(Duration(0)) => *of = 0,
            Some(Duration(ns)) => *of = now_ns.saturating_add(ns),
        };
        until(&mut faults.hold_writes_until_ns, self.hold_writes);
        until(&mut faults.mute_until_ns, self.mute);
        until(&mut faults.refuse_until_ns, self.refuse);
        if let Some(Errors(rules)) = &self.error {
            faults.errors.clone_from(rules);
        }
        if let Some(Chance(rate)) = self.drop_rate {
            faults.drop_rate = rate;
        }
        if let Some(Chance(rate)) = self.hang {
            faults.hang_rate = rate;
        }
        if let Some(Duration(ns)) = self.late_writes {
            faults.late_writes_ns = ns;
        }
        if let Some(Switch(on)) = self.until_kato {
            faults.until_keep_alive = on;
        }
    }
}

impl FromText for Switch {
    const WANTED: &'static str = "\"on\" or \"off\"";
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(Switch(true)),
            "off" | "0" => Ok(Switch(false)),
            _ => Err(format!("\"{text}\" is neither on nor off")),
        }
    }
}

impl FromText for Chance {
    const WANTED: &'static str = "a probability in quotes, as in \"0.01\"";
    fn from_text(text: &str) -> Result<Self, String> {
        let chance = text.parse::<f64>().ok();
        let chance = chance.filter(|chance| (0.0..=1.0).contains(chance));
        let found = chance.and_then(|chance| Probability::new((chance * 1e9).round() as u32));
        match found {
            Some(rate) if rate > Probability::default() || chance == Some(0.0) => Ok(Chance(rate)),
            Some(_) => Err(format!("\"{text}\" is less than one in 10⁹")),
            None => Err(format!("\"{text}\" is no probability from 0 to 1")),
        }
    }
}

impl FromText for Errors {
    const WANTED: &'static str = "rules of errors in quotes, as in \"media-read:0.01\"";
    fn from_text(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Errors(Vec::new()));
        }
        let rules: Vec<_> = text.split('+').map(rule).collect::<Result<_, _>>()?;
        match rules.len() {
            0..=ERROR_RULES_MAX => Ok(Errors(rules)),
            count => Err(format!("{count} rules are more than {ERROR_RULES_MAX}")),
        }
    }
}

const OPS: [(&str, Ops); 6] = [
    ("read", Ops::READ),
    ("write", Ops::WRITE),
    ("flush", Ops::FLUSH),
    ("write-zeroes", Ops::WRITE_ZEROES),
    ("deallocate", Ops::DEALLOCATE),
    ("compare", Ops::COMPARE),
];

fn rule(text: &str) -> Result<ErrorRule, String> {
    let mut words = text.split(':');
    let (mut status, usual) = status(words.next().unwrap_or_default())?;
    let (mut ops, mut blocks, mut rate) = (None, None, None);
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "dnr" if value.is_empty() => status = status.with_dnr(),
            "crd" => match value {
                "1" | "2" | "3" => status = status.with_crd(value.as_bytes()[0] - b'0'),
                _ => return Err(format!("\"{word}\" is not crd=1, 2 or 3")),
            },
            "op" => {
                let op = op(value)?;
                ops = Some(ops.map_or(op, |ops| ops | op));
            }
            "lba" if blocks.is_none() => blocks = Some(range(value)?),
            _ if word.starts_with(|c: char| c.is_ascii_digit() || c == '.') && rate.is_none() => {
                rate = Some(Chance::from_text(word)?.0);
            }
            _ => {
                return Err(format!(
                    "\"{word}\" in \"{text}\" is none of a probability, op=…, lba=FIRST-LAST, \
                     dnr and crd=N, each once (op as often as you like)"
                ));
            }
        }
    }
    Ok(ErrorRule {
        status,
        ops: ops.unwrap_or(usual),
        blocks,
        rate: rate.unwrap_or(Probability::ALWAYS),
    })
}

/// A status, and which commands it usually concerns.
fn status(text: &str) -> Result<(Status, Ops), String> {
    match text {
        "media-read" => return Ok((Status::UNRECOVERED_READ, Ops::READ | Ops::COMPARE)),
        "media-write" => return Ok((Status::WRITE_FAULT, Ops::WRITE | Ops::WRITE_ZEROES)),
        _ => {}
    }
    if let Some(digits) = text.strip_prefix("0x") {
        let code = u16::from_str_radix(digits, 16).ok();
        return match code.filter(|code| (1..=0x7ff).contains(code)) {
            Some(code) => Ok((Status(code), Ops::ALL)),
            None => Err(format!(
                "\"{text}\" is no error status from 0x001 to 0x7ff (type and code)"
            )),
        };
    }
    let named = |status: &&Status| word_of(**status) == text && !status.is_success();
    let found = Status::ALL.iter().find(named).copied();
    let found = found.or_else(|| status::by_name(text).filter(|it| !it.is_success()));
    found.map(|status| (status, Ops::ALL)).ok_or_else(|| {
        format!(
            "\"{text}\" is no error status: media-read, media-write, a name such as \
             internal-error (all: `braid status`), or hexadecimal as in 0x281"
        )
    })
}

/// A status's name as one word.
fn word_of(status: Status) -> String {
    let word = |name: &str| name.to_lowercase().replace(' ', "-");
    status
        .name()
        .map_or(format!("{:#05x}", status.code().0), word)
}

fn op(text: &str) -> Result<Ops, String> {
    let found = OPS.iter().find(|(name, _)| *name == text);
    found.map(|(_, op)| *op).ok_or_else(|| {
        let names: Vec<_> = OPS.iter().map(|(name, _)| *name).collect();
        format!("op \"{text}\" is none of {}", names.join(", "))
    })
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err(format!(
            "lba \"{text}\" is not FIRST-LAST, two numbers of blocks in order"
        )),
    }
}

/// A rule as it would be written.
pub fn show_rule(rule: &ErrorRule) -> String {
    let status = rule.status;
    let mut text = word_of(status);
    if status.dnr() {
        text += ":dnr";
    }
    if let Some(index) = status.crd() {
        text += &format!(":crd={}", index + 1);
    }
    if rule.ops != Ops::ALL {
        for (name, _) in OPS.iter().filter(|(_, op)| rule.ops.contains(*op)) {
            text += &format!(":op={name}");
        }
    }
    if let Some((first, last)) = rule.blocks {
        text += &format!(":lba={first}-{last}");
    }
    if rule.rate != Probability::ALWAYS {
        text += &format!(":{}", show_chance(rule.rate));
    }
    text
}

/// 0 to 1.
pub fn show_chance(rate: Probability) -> f64 {
    f64::from(rate.parts_per_billion()) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_back_as_they_were_written() {
        let text = "namespace-not-ready:dnr:crd=2:op=write:op=flush+0x6c5:lba=100-199:0.5+\
                    unrecovered-read-error:op=read:op=compare:0.01";
        let Errors(rules) = Errors::from_text(text).unwrap();
        let shown: Vec<_> = rules.iter().map(show_rule).collect();
        assert_eq!(shown.join("+"), text);
        let status = Status::NAMESPACE_NOT_READY.with_crd(2).with_dnr();
        assert_eq!(rules[0].status, status);
        assert_eq!(Errors::from_text("media-read:0.01").unwrap().0, rules[2..]);
        let Errors(as_status_takes_it) = Errors::from_text("host-path:0.05").unwrap();
        assert_eq!(as_status_takes_it[0].status, Status::HOST_PATH);
        assert_eq!(Errors::from_text("0").unwrap().0, []);
    }

    #[test]
    fn every_status_can_be_named_and_written_as_a_number() {
        for status in Status::ALL.iter().filter(|status| !status.is_success()) {
            for text in [word_of(*status), format!("{:#x}", status.0)] {
                let Errors(rules) = Errors::from_text(&text).unwrap();
                assert_eq!(rules[0].status, *status, "{text}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_rule_is_said() {
        for (text, part) in [
            ("", "\"\" is no error status"),
            ("successful-completion", "is no error status"),
            ("success", "is no error status"),
            ("pathing", "is no error status"),
            ("0x0", "0x001 to 0x7ff"),
            ("0x800", "0x001 to 0x7ff"),
            ("0xzz", "0x001 to 0x7ff"),
            ("media-read:2", "\"2\" is no probability from 0 to 1"),
            ("media-read:0.00000000001", "less than one in 10⁹"),
            ("media-read:crd=4", "crd=1, 2 or 3"),
            ("media-read:op=trim", "op \"trim\" is none of read, write"),
            (
                "media-read:op=read:op=trim",
                "op \"trim\" is none of read, write",
            ),
            ("media-read:lba=9-3", "lba \"9-3\" is not FIRST-LAST"),
            ("media-read:lba=1:lba=2", "\"lba=2\" in"),
            ("media-read:0.1:0.2", "\"0.2\" in"),
            ("media-read:dnr=1", "\"dnr=1\" in"),
            ("media-read+", "is no error status"),
            (
                &["busy"; 17].map(|_| "0x281").join("+"),
                "17 rules are more than 16",
            ),
        ] {
            let error = Errors::from_text(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
