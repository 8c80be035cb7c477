//! The bound on a block of experts: few contributors may feed one, and a single huge gradient would fill its second
//! moments and keep it from learning for long.

use super::strip::LANES;

/// AGG-22: cuts a block's values, in grid units, to a root mean square of `most`; returns what is left of them, 1 for all.
pub fn bound(values: &mut [f32], most: f64) -> f64 {
    let mut sums = [0.0f64; LANES];
    for (place, value) in values.iter().enumerate() {
        let value = f64::from(*value);
        sums[place % LANES] += value * value;
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let total = ((a + e) + (c + g)) + ((b + f) + (d + h));
    let rms = (total / values.len() as f64).sqrt();
    if rms <= most {
        return 1.0;
    }
    let left = most / rms;
    values.iter_mut().for_each(|value| *value = (f64::from(*value) * left) as f32);
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agg_22_only_what_is_beyond_the_bound_is_cut_to_it() {
        let cut = |values: &[f32], most| {
            let mut values = values.to_vec();
            (bound(&mut values, most), values)
        };
        assert_eq!(cut(&[3.0, -4.0, 0.0, 0.0], 2.5), (1.0, vec![3.0, -4.0, 0.0, 0.0]));
        assert_eq!(cut(&[6.0, -8.0, 0.0, 0.0], 2.5), (0.5, vec![3.0, -4.0, 0.0, 0.0]));
        assert_eq!(cut(&[0.0; 17], 1.0), (1.0, vec![0.0; 17]));
        // Squares of the largest values do not overflow.
        assert_eq!(cut(&[f32::MAX; 9], 2.5).1, [2.5; 9]);
    }
}
