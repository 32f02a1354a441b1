//! Choices among some paths only.
use super::Head;
use policy::{Explained, PathIndex, Request};

impl Head {
    /// As [`Head::select`], but `path`, if the policy may choose that now.
    pub fn select_by(&mut self, request: &Request, path: PathIndex) -> Option<PathIndex> {
        let usable = self.usable();
        self.trials.begun = false;
        self.show_only(usable & 1_u64.checked_shl(path.0.into())?);
        let chosen = self.selector.select(request, &self.views);
        self.show_only(usable);
        chosen
    }

    /// As [`Head::select`], among the paths for which `allow` holds, as if there were no others;
    /// writes down why, if asked to.
    #[cold]
    pub fn select_among(
        &mut self,
        request: &Request,
        allow: impl Fn(PathIndex) -> bool,
        why: Option<&mut Explained>,
    ) -> Option<PathIndex> {
        let all = (0..self.views.len() as u8).map(PathIndex);
        let allowed = all.filter(|&path| allow(path));
        let allowed = allowed.fold(0, |bits, path| bits | 1 << path.0);
        self.select_of(request, self.usable_among(allowed), why)
    }

    fn select_of(
        &mut self,
        request: &Request,
        usable: u64,
        why: Option<&mut Explained>,
    ) -> Option<PathIndex> {
        self.trials.begun = false;
        self.show_only(usable);
        let chosen = match why {
            Some(why) => self.selector.select_explained(request, &self.views, why),
            None => self.selector.select(request, &self.views),
        };
        self.show();
        chosen
    }

    /// As [`Head::select`], but `path` if it is enabled and its ANA state allows I/O at all, also
    /// while it drains. For what is about a controller and no blocks: so also where another path
    /// showed another size (T33).
    #[cold]
    pub fn select_only(&mut self, request: &Request, path: PathIndex) -> Option<PathIndex> {
        let at = usize::from(path.0);
        let usable = self.standing[at].is_known() && self.is_open(path);
        self.trials.begun = false;
        self.show_only(u64::from(usable) << at);
        let chosen = self.selector.select_only(request, &self.views);
        self.show();
        chosen
    }
}
