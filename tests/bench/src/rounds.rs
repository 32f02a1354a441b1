//! Figures of several rounds, in each of which all that is compared ran in turn.
use super::program::median;

/// A figure of each round.
pub fn each<T>(rounds: &[T], what: impl Fn(&T) -> f64) -> Vec<f64> {
    rounds.iter().map(what).collect()
}

/// Its median.
pub fn middle<T>(rounds: &[T], what: impl Fn(&T) -> f64) -> f64 {
    median(each(rounds, what))
}

/// A figure as a part of another one of the same round.
pub fn parts(figures: &[f64], of: &[f64]) -> Vec<f64> {
    figures.iter().zip(of).map(|(it, of)| it / of).collect()
}

/// The same figure of two that were compared; of the first as a part of the second.
pub fn ratios<T>(rounds: &[T], of: &[T], what: impl Fn(&T) -> f64) -> Vec<f64> {
    parts(&each(rounds, &what), &each(of, &what))
}

#[cfg(test)]
mod tests {
    use super::{middle, ratios};

    #[test]
    fn a_ratio_is_that_of_one_round() {
        let ratios = ratios(&[10.0, 30.0, 5.0], &[20.0, 20.0, 50.0], |it| *it);
        assert_eq!(ratios, [0.5, 1.5, 0.1]);
        assert_eq!(middle(&ratios, |it| *it), 0.5);
        assert!(middle(&[], |it: &f64| *it).is_nan(), "shown as none");
    }
}
