//! CPUs: lists of them, and those this process may use.
use crate::units::BadQuantity;
use anyhow::Context;

/// CPUs in the order they were named, none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

/// Reads `0,2-3`; only CPUs that this process may use.
///
/// # Errors
/// What is wrong, in words.
pub fn parse(text: &str) -> Result<CpuList, String> {
    let list = read(text)?;
    let allowed = allowed().map_err(|error| format!("{error:#}"))?;
    match list.0.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => Err(format!(
            "CPU {cpu} is not among those this process may use: {allowed:?}"
        )),
        None => Ok(list),
    }
}

/// Two CPUs for two threads that must not disturb each other: on different physical cores, where
/// there are. With a single CPU nothing is pinned.
///
/// # Errors
/// The operating system does not say which CPUs this process may use.
pub fn two_apart() -> anyhow::Result<[Option<usize>; 2]> {
    let allowed = allowed()?;
    let [first, others @ ..] = &allowed[..] else {
        return Ok([None; 2]);
    };
    let siblings = siblings(*first);
    let apart = others
        .iter()
        .find(|cpu| !siblings.contains(cpu))
        .or(others.first());
    Ok(match apart {
        Some(&second) => [Some(*first), Some(second)],
        None => [None; 2],
    })
}

fn allowed() -> anyhow::Result<Vec<usize>> {
    sys::os::cpus().context("cannot read the CPU affinity")
}

/// The CPUs that share a physical core with this one, itself among them; none if nobody says so.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    read(text.trim()).map_or(Vec::new(), |list| list.0)
}

fn read(text: &str) -> Result<CpuList, String> {
    let bad = || BadQuantity::new(text, "a list of CPUs, as in 0,2-3").to_string();
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| bad());
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(bad());
        }
        for cpu in first..=last {
            if list.contains(&usize::from(cpu)) {
                return Err(format!("CPU {cpu} is named twice"));
            }
            list.push(cpu.into());
        }
    }
    Ok(CpuList(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        assert_eq!(read("0,2-3"), Ok(CpuList(vec![0, 2, 3])));
        assert_eq!(read("5"), Ok(CpuList(vec![5])));
        for text in ["", "a", "3-1", "1,", "-1", "70000"] {
            assert!(
                read(text).unwrap_err().contains("is not a list of CPUs"),
                "{text}"
            );
        }
        assert!(read("1,0-2").unwrap_err().contains("twice"));
    }

    #[test]
    fn two_cpus_are_two() {
        let allowed = allowed().unwrap();
        match two_apart().unwrap() {
            [Some(a), Some(b)] => assert!(a != b && allowed.contains(&a) && allowed.contains(&b)),
            pins => assert!(pins == [None; 2] && allowed.len() == 1),
        }
    }

    #[test]
    fn only_allowed_cpus_are_taken() {
        let first = allowed().unwrap()[0];
        assert_eq!(parse(&first.to_string()), Ok(CpuList(vec![first])));
        assert!(parse("65000").unwrap_err().contains("not among those"));
    }
}
