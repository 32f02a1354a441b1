//! System calls that may hang, of a caller that may not (T52).
use std::sync::mpsc;
use std::time::Duration;

/// How long a verb waits for a file, while it keeps other verbs from its mirror.
const VERB_MAX: Duration = Duration::from_secs(5);

/// How long a caller may wait for what it does with a file.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// As long as it takes: it keeps nobody from anything.
    None,
    /// As long as a verb may; the thread that waits for the file ends when this answers.
    Verb,
}

impl Limit {
    /// Returns the result of `does`; it is dropped if that is too late.
    ///
    /// # Errors
    /// It did not end in time, or no thread could be started for it.
    pub fn run<T: Send + 'static>(
        self,
        does: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        match self {
            Self::None => Ok(does()),
            Self::Verb => within(VERB_MAX, does),
        }
    }
}

fn within<T: Send + 'static>(
    limit: Duration,
    does: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (to, from) = mpsc::channel();
    let run = move || {
        let _ = to.send(does()); // the verb may have given up
    };
    // By its caller's name: a list of threads then says who waits.
    let name = std::thread::current().name().unwrap_or("file").to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(run);
    thread.map_err(|error| format!("no thread can be started to look at it: {error}"))?;
    from.recv_timeout(limit).map_err(|_| {
        format!(
            "it did not answer within {} s: its file system hangs; try again when it answers",
            limit.as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t52_what_hangs_is_given_up() {
        assert_eq!(Limit::Verb.run(|| 1), Ok(1));
        let (_hangs, never) = mpsc::channel::<()>();
        let why = within(Duration::ZERO, move || never.recv()).unwrap_err();
        assert!(why.contains("its file system hangs"), "{why}");
    }
}
