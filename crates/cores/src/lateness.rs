//! How long this core's thread waits for its CPU, as the system counts it.
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A wait may be so many times the mean one: for exponential waits 2 % are longer.
const TIMES: u64 = 4;

/// See the module.
#[derive(Default)]
pub struct Lateness {
    /// `/proc/PID/task/TID/schedstat`, once it was asked for; inside `None`: this kernel has none.
    file: Option<Option<File>>,
    /// Time waited, ns, and how often the thread ran, by the last look.
    last: [u64; 2],
}

impl Lateness {
    /// A bound of the waits of the calling thread since the last look, ns; 0 where the system does
    /// not count them. Reads a file of `/proc`, which does not block.
    pub fn look_ns(&mut self) -> u64 {
        let open = || File::open("/proc/thread-self/schedstat").ok();
        let file = self.file.get_or_insert_with(open).as_ref();
        let mut text = [0; 64];
        let read = file.and_then(|file| file.read_at(&mut text, 0).ok());
        let Some(now) = read.and_then(|count| counted(&text[..count])) else {
            return 0;
        };
        let [waited, times] = [0, 1].map(|at| now[at].saturating_sub(self.last[at]));
        self.last = now;
        (waited / times.max(1)).saturating_mul(TIMES)
    }
}

/// The last two of three numbers: time on the CPU, time that it was waited for, how often.
fn counted(schedstat: &[u8]) -> Option<[u64; 2]> {
    let text = str::from_utf8(schedstat).ok()?;
    let mut words = text.split_ascii_whitespace().skip(1);
    let mut next = || words.next()?.parse().ok();
    Some([next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_the_last_two_numbers() {
        assert_eq!(counted(b"71 22 3\n"), Some([22, 3]));
        assert_eq!(counted(b"71 22\n"), None);
    }
}
