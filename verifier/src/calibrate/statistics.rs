//! What a sample says of what it was drawn from.

/// The share of honest leaves that a tolerance covers.
pub const COVERED: f64 = 0.999;
/// Confidence of [`exceeds_at_most`].
const CONFIDENCE: f64 = 0.95;

/// The least value of a sample that so large a share of it does not exceed; the largest one of a sample too small for
/// that. 0 of nothing.
pub fn quantile(sample: &[f64], share: f64) -> f64 {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).or(sorted.last()).copied().unwrap_or_default()
}

/// The larger one of the two in the middle.
pub fn median(sample: &[f64]) -> f64 {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The largest value; 0 of nothing.
pub fn largest(sample: &[f64]) -> f64 {
    sample.iter().copied().fold(0.0, f64::max)
}

/// With confidence 95 %, at most such a share of all leaves exceeds what so many of a sample exceeded: the p at which
/// a binomial variable is no larger with probability 5 % (Clopper and Pearson). It holds too for a bound that is
/// itself the sample's value of this rank. About 3/n where none exceeded it.
pub fn exceeds_at_most(sample: usize, exceeded: usize) -> f64 {
    if exceeded >= sample {
        return 1.0;
    }
    let [mut low, mut high] = [0.0, 1.0];
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if no_more(sample, exceeded, middle) > 1.0 - CONFIDENCE { low = middle } else { high = middle }
    }
    high
}

/// P(X ≤ most) of a binomial variable.
fn no_more(n: usize, most: usize, p: f64) -> f64 {
    let mut term = (n as f64 * (-p).ln_1p()).exp();
    let mut sum = term;
    for k in 0..most {
        term *= (n - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
        sum += term;
    }
    sum
}

/// The next larger number of two digits.
pub fn rounded_up(value: f64) -> f32 {
    if !value.is_normal() || value < 0.0 {
        return value as f32;
    }
    let unit = 10f64.powi(value.log10().floor() as i32 - 1);
    let digits = (value / unit - 1e-9).ceil();
    let said = format!("{digits}e{}", unit.log10().round());
    said.parse().unwrap_or(value as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_value_of_the_sample() {
        let sample: Vec<f64> = (1..=2000).rev().map(f64::from).collect();
        assert_eq!(quantile(&sample, COVERED), 1998.0);
        assert_eq!(quantile(&sample[..500], COVERED), 2000.0, "too few leaves: the largest");
        assert_eq!(quantile(&sample, 0.5), 1000.0);
        assert_eq!(quantile(&[3.0], COVERED), 3.0);
        assert_eq!(quantile(&[], COVERED), 0.0);
        assert_eq!(quantile(&[2.0, f64::INFINITY], COVERED), f64::INFINITY);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(largest(&[3.0, 1.0]), 3.0);
    }

    #[test]
    fn a_sample_supports_the_published_bounds() {
        // 1 − 0.05^(1/n), and the table of Clopper and Pearson for one and two of a hundred.
        for (n, k, right) in
            [(1, 0, 0.95), (60, 0, 0.0487), (300, 0, 0.00994), (100, 1, 0.0466), (100, 2, 0.0616)]
        {
            let found = exceeds_at_most(n, k);
            assert!((found - right).abs() < 1e-4, "{n} {k}: {found}");
        }
        assert!((exceeds_at_most(3000, 0) * 1000.0 - 1.0).abs() < 2e-3, "the rule of three");
        assert_eq!(exceeds_at_most(0, 0), 1.0);
        assert_eq!(exceeds_at_most(5, 5), 1.0);
    }

    #[test]
    fn tolerances_are_rounded_up_to_two_digits() {
        for (value, said) in [(1.01e-6, 1.1e-6), (9.91e-3, 1e-2), (0.02, 0.02), (1.2e-7, 1.2e-7), (0.0, 0.0)]
        {
            assert_eq!(rounded_up(value), said, "{value}");
        }
    }
}
