//! Verbs that change which legs the mirror has, or how large it is, shortly before the kill; and
//! what it has afterwards.
//!
//! # Contract
//! Whether a verb was answered or not, each leg either is one after the kill or is none, and the
//! others go on. A leg whose removal was answered says nothing any more; a size that was answered
//! stays. A change without an answer may have happened.
use super::super::target::call;
use super::kind::Kind;
use super::legs::{Legs, uri};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

/// The request.
pub struct Change {
    method: &'static str,
    params: Value,
    /// A file that may be a leg then.
    new: Option<PathBuf>,
    /// The leg that may be none then.
    old: Option<usize>,
    grows: bool,
}

/// It was asked; the answer comes, or the engine dies before.
pub struct Asked(JoinHandle<Result<Value>>);

impl Change {
    /// Request of a round of this kind, of leg `leg` if it is of one; `None`: nothing.
    ///
    /// # Errors
    /// A new file can't be made, or one can't be enlarged.
    pub fn draw(kind: Kind, leg: usize, legs: &mut Legs) -> Result<Option<Self>> {
        let leg_uri = legs.uris(None)[leg].clone();
        let adds = matches!(kind, Kind::Adding | Kind::Replacing);
        let new = adds.then(|| legs.new_file()).transpose()?;
        let new_uri = new.as_deref().map(uri);
        let (method, params) = match kind {
            Kind::Leaving => ("mirror.fail", json!({"leg": leg_uri})),
            Kind::Adding => ("mirror.add", json!({"leg": new_uri, "force": true})),
            Kind::Removing => ("mirror.remove", json!({"leg": leg_uri})),
            Kind::Replacing => {
                let params = json!({"leg": leg_uri, "by": new_uri, "force": true});
                ("mirror.replace", params)
            }
            Kind::Growing => ("mirror.grow", json!({})),
            _ => return Ok(None),
        };
        let mut params = params;
        params["volume"] = "v0".into();
        if kind == Kind::Growing {
            legs.enlarge()?;
        }
        Ok(Some(Self {
            method,
            params,
            new,
            old: matches!(kind, Kind::Removing | Kind::Replacing).then_some(leg),
            grows: kind == Kind::Growing,
        }))
    }

    /// Asks, and goes on.
    pub fn ask(&self, socket: &Path) -> Asked {
        let (socket, method, params) = (socket.to_owned(), self.method, self.params.clone());
        Asked(thread::spawn(move || call(&socket, method, &params)))
    }

    /// After the kill: which files are legs now; how many have come or gone, or whether it has more
    /// than `bytes` bytes.
    ///
    /// # Errors
    /// One says what it may not.
    pub fn settle(self, legs: &mut Legs, bytes: u64, answer: Option<&Value>) -> Result<u32> {
        let mut changed = 0;
        if self.grows {
            let shown = legs.examine()?;
            let all = shown["legs"].as_array().into_iter().flatten();
            let mut sizes = all.filter_map(|leg| leg["mirror"]["bytes"].as_u64());
            return Ok(u32::from(sizes.any(|it| it > bytes)));
        }
        if let Some(file) = self.new {
            legs.admit(file);
            let at = legs.count() - 1;
            match legs.examine()?["legs"][at]["error"].is_string() {
                true => legs.dismiss(at)?,
                false => changed += 1,
            }
        }
        let Some(old) = self.old else {
            return Ok(changed);
        };
        let shown = legs.examine()?;
        let says_nothing = shown["legs"][old]["error"].is_string();
        // Its superblock stays until it is overwritten, and the others say that it is none.
        let removed = shown["together"]["roles"][old]["removed"] == true;
        if says_nothing || removed {
            legs.dismiss(old)?;
            changed += 1;
        }
        let answered = self.method == "mirror.remove" && answer.is_some();
        ensure!(
            says_nothing || !answered,
            "it was answered that leg {old} is none any more, and it is: {shown}"
        );
        Ok(changed)
    }

    /// How large the mirror is for certain.
    ///
    /// # Errors
    /// The answer says nothing of it.
    pub fn told_bytes(&self, answer: Option<&Value>) -> Result<u64> {
        let Some(answer) = answer.filter(|_| self.grows) else {
            return Ok(0);
        };
        let told = answer["bytes"].as_u64();
        told.with_context(|| format!("mirror.grow: {answer}"))
    }
}

impl Asked {
    /// Whether it was answered.
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Answer before the kill; `None`: nothing, or a refusal.
    ///
    /// # Errors
    /// Who waited for the answer panicked.
    pub fn answer(self) -> Result<Option<Value>> {
        match self.0.join() {
            Ok(answer) => Ok(answer.ok()),
            Err(_) => bail!("who asked panicked"),
        }
    }
}
