//! Every kernel as it is defined, one value at a time, and every path of this processor compared with that.
//!
//! Which NaN an operation gives (its sign and payload) differs between processors and orders of operands, and is not
//! defined. Whether it is one is. So NaN equals NaN here, except where a kernel's output can reach a hash: parameters
//! and moments have one NaN, grid integers and sums of squares none.

use libm::fmaf;
use muster_core::grid::{Dither, power_of_two};
use muster_core::ids::{Digest, Leaf};

use super::dither::dithered;
use super::rows::{self, Rotation, ScoreRows};
use super::update::{self, AdamStep};
use crate::function;
use crate::path::{Kernels, paths};

const WIDTHS: [usize; 9] = [1, 2, 7, 16, 17, 33, 64, 100, 131];

/// Values of all magnitudes, with subnormals and zeros of both signs; `wild` adds infinities, NaN and the largest.
pub(super) fn values(count: usize, seed: u32, wild: bool) -> Vec<f32> {
    let mut word = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        word
    };
    let value = |bits: u32| match bits % 211 {
        0..9 => f32::from_bits(bits & 0x807f_ffff),
        9..14 => -0.0,
        14..17 => 0.0,
        17 if wild => f32::INFINITY,
        18 if wild => f32::NEG_INFINITY,
        19 if wild => f32::NAN,
        20 if wild => f32::MAX,
        _ => f32::from_bits((bits & 0x807f_ffff) | (110 + (bits >> 8) % 24) << 23),
    };
    (0..count).map(|_| value(next())).collect()
}

/// Bits, with one NaN.
pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() }).collect()
}

/// Bits as they are.
fn exact_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Calls `check` with every path, width, and kind of values.
pub(super) fn everywhere(check: impl Fn(Kernels, usize, &dyn Fn(usize, u32) -> Vec<f32>)) {
    for path in paths() {
        for width in WIDTHS {
            for round in 0..8 {
                let draw = |count: usize, seed: u32| {
                    values(count, seed + 100 * round + 7 * width as u32, round % 2 == 1)
                };
                check(Kernels::new(path).unwrap(), width, &draw);
            }
        }
    }
}

/// Lanes by `i mod 16`, then pairs.
pub(super) fn sum(terms: impl Iterator<Item = impl Fn(f32) -> f32>) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (i, term) in terms.enumerate() {
        lanes[i % 16] = term(lanes[i % 16]);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    sum(a.iter().zip(b).map(|(a, b)| move |lane| fmaf(*a, *b, lane)))
}

pub(super) fn exp(x: f32) -> f32 {
    if x.is_nan() || x < -87.0 {
        return if x.is_nan() { x } else { 0.0 };
    }
    let x = x.min(88.0);
    let n = fmaf(x, std::f32::consts::LOG2_E, 12_582_912.0) - 12_582_912.0;
    let r = fmaf(n, 2.121_944_4e-4, fmaf(n, -0.693_359_4, x));
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = fmaf(p, r, coefficient);
    }
    (fmaf(p, r * r, r) + 1.0) * power_of_two(n as i32) as f32
}

/// e^(x − largest) of a row, and its sum.
pub(super) fn exponentials(row: &mut [f32]) -> (f32, f32) {
    let largest =
        row.iter().filter(|x| !x.is_nan()).fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
    row.iter_mut().for_each(|x| *x = exp(*x - largest));
    (largest, sum(row.iter().map(|x| move |lane| lane + x)))
}

/// ARITH-31 and ARITH-32.
#[test]
fn root_mean_square_norm() {
    everywhere(|kernels, width, draw| {
        let (x, gain, d, old) = (draw(3 * width, 1), draw(width, 2), draw(3 * width, 3), draw(3 * width, 4));
        let (mut y, mut scales) = (vec![9.0; 3 * width], vec![9.0; 3]);
        rows::rms_norm(kernels, &x, &gain, 1e-5, &mut y, &mut scales);
        let mut again = vec![9.0; 3 * width];
        rows::rms_norm_again(kernels, &x, &gain, &scales, &mut again);
        assert_eq!(bits(&again), bits(&y), "{kernels:?} {width}");
        let (mut d_found, mut residual) = (d.clone(), old.clone());
        rows::rms_norm_backward(kernels, &x, &gain, &scales, &mut d_found, &mut residual);
        for (row, found_scale) in scales.iter().enumerate() {
            let at = row * width..(row + 1) * width;
            let (x, d) = (&x[at.clone()], &d[at.clone()]);
            let scale = 1.0 / (dot(x, x) / width as f32 + 1e-5).sqrt();
            assert_eq!(bits(&[*found_scale]), bits(&[scale]));
            let gain = &gain;
            let terms = (0..width).map(|i| move |lane| fmaf(d[i] * gain[i], x[i], lane));
            let mean = sum(terms) * scale / width as f32;
            for i in 0..width {
                let unit = x[i] * scale;
                let place = row * width + i;
                let expected =
                    [unit * gain[i], fmaf(scale, fmaf(-unit, mean, d[i] * gain[i]), old[place]), d[i] * unit];
                assert_eq!(
                    bits(&[y[place], residual[place], d_found[place]]),
                    bits(&expected),
                    "{kernels:?} {width}"
                );
            }
        }
    });
}

/// ARITH-43.
#[test]
fn sums_of_rows() {
    everywhere(|kernels, width, draw| {
        let (rows, old) = (draw(3 * width, 1), draw(width, 2));
        let mut found = old.clone();
        rows::add_rows(kernels, &rows, &mut found);
        let expected: Vec<f32> =
            (0..width).map(|i| ((old[i] + rows[i]) + rows[width + i]) + rows[2 * width + i]).collect();
        assert_eq!(bits(&found), bits(&expected), "{kernels:?} {width}");
    });
}

/// ARITH-34.
#[test]
fn rotary_positions() {
    everywhere(|kernels, half, draw| {
        let (heads, stride) = (2, 4 * half + 3);
        let (old, cosines, sines) = (draw(3 * stride, 1), draw(3 * half, 2), draw(3 * half, 3));
        for (direction, scale) in [(1.0, 0.3), (-1.0, 1.0)] {
            let (mut found, mut expected) = (old.clone(), old.clone());
            let at = Rotation { stride, heads, half, cosines: &cosines, sines: &sines, direction, scale };
            rows::rotate(kernels, &mut found, &at);
            for (row, head, i) in
                (0..3 * heads * half).map(|n| (n / (heads * half), n / half % heads, n % half))
            {
                let low = row * stride + head * 2 * half + i;
                let (x, y) = (old[low], old[low + half]);
                let (cosine, sine) = (cosines[row * half + i], sines[row * half + i] * direction);
                expected[low] = fmaf(x, cosine, -(y * sine)) * scale;
                expected[low + half] = fmaf(y, cosine, x * sine) * scale;
            }
            assert_eq!(bits(&found), bits(&expected), "{kernels:?} {half}");
        }
    });
}

/// ARITH-35 and ARITH-36.
#[test]
fn softmax_and_its_gradient() {
    everywhere(|kernels, keys, draw| {
        let rows = keys.min(3);
        let at = ScoreRows { first: keys - rows, rows, keys, stride: keys + 5 };
        let (old, d_old) = (draw(rows * at.stride, 1), draw(rows * at.stride, 2));
        let (output, d_output) = (draw(rows * 9, 3), draw(rows * 9, 4));
        let (mut found, mut d_found) = (old.clone(), d_old.clone());
        rows::softmax(kernels, &mut found, at);
        let (mut expected, mut d_expected) = (old.clone(), d_old.clone());
        for row in 0..rows {
            let line = &mut expected[row * at.stride..][..keys];
            line[at.first + row + 1..].fill(f32::NEG_INFINITY);
            let (_, sum) = exponentials(line);
            line.iter_mut().for_each(|p| *p *= 1.0 / sum);
        }
        assert_eq!(bits(&found), bits(&expected), "{kernels:?} {keys}");
        rows::softmax_backward(kernels, &mut d_found, &expected, at, [&output, &d_output], [9, 7]);
        for row in 0..rows {
            let mean = dot(&output[row * 9..][..7], &d_output[row * 9..][..7]);
            for key in row * at.stride..row * at.stride + keys {
                d_expected[key] = expected[key] * (d_old[key] - mean);
            }
        }
        assert_eq!(bits(&d_found), bits(&d_expected), "{kernels:?} {keys}");
    });
}

/// ARITH-38 and ARITH-39.
#[test]
fn gated_linear_unit() {
    everywhere(|kernels, hidden, draw| {
        let (gate_up, d) = (draw(6 * hidden, 1), draw(3 * hidden, 2));
        let (mut sigmoid, mut product, mut d_gate_up) =
            (vec![9.0; 3 * hidden], vec![9.0; 3 * hidden], vec![9.0; 6 * hidden]);
        rows::swiglu(kernels, &gate_up, hidden, &mut sigmoid, &mut product);
        let mut again = d.clone();
        rows::swiglu_backward(kernels, &gate_up, hidden, &sigmoid, &mut again, &mut d_gate_up);
        assert_eq!(bits(&again), bits(&product), "{kernels:?} {hidden}");
        for place in 0..3 * hidden {
            let at = place / hidden * 2 * hidden + place % hidden;
            let (gate, up, d) = (gate_up[at], gate_up[at + hidden], d[place]);
            let s = 1.0 / (1.0 + exp(-gate));
            let expected = [s, gate * s * up, d * up * (s * fmaf(gate, 1.0 - s, 1.0)), d * (gate * s)];
            let found = [sigmoid[place], product[place], d_gate_up[at], d_gate_up[at + hidden]];
            assert_eq!(bits(&found), bits(&expected), "{kernels:?} {hidden}");
        }
    });
}

/// ARITH-40.
#[test]
fn cross_entropy() {
    everywhere(|kernels, vocabulary, draw| {
        let logits = draw(3 * vocabulary, 1);
        let targets = [0, vocabulary / 2, vocabulary - 1];
        let (mut found, mut expected) = (logits.clone(), logits);
        let found_loss = rows::cross_entropy(kernels, &mut found, vocabulary, &targets, 0.01);
        let mut loss = 0.0;
        for (row, target) in expected.chunks_exact_mut(vocabulary).zip(targets) {
            let chosen = row[target];
            let (largest, sum) = exponentials(row);
            loss += function::ln(f64::from(sum)) - f64::from(chosen - largest);
            row.iter_mut().for_each(|p| *p *= 0.01 / sum);
            row[target] -= 0.01;
        }
        assert_eq!(bits(&found), bits(&expected), "{kernels:?} {vocabulary}");
        assert!(found_loss.to_bits() == loss.to_bits() || (found_loss.is_nan() && loss.is_nan()));
    });
}

/// ARITH-22.
#[test]
fn sums_of_squares() {
    everywhere(|kernels, width, draw| {
        let values = draw(width, 1);
        let mut lanes = [0.0f64; 8];
        for (i, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            lanes[i % 8] += f64::from(*value) * f64::from(*value);
        }
        let [a, b, c, d] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 4]);
        let expected = (a + c) + (b + d);
        assert_eq!(
            update::sum_of_squares(kernels, &values).to_bits(),
            expected.to_bits(),
            "{kernels:?} {width}"
        );
    });
}

/// GRID-2.
#[test]
fn grid_integers() {
    everywhere(|kernels, width, draw| {
        let gradient = draw(width, 1);
        let (seed, leaf) = (Digest([gradient.len() as u8; 32]), Leaf(5));
        let mut words = vec![0; width];
        Dither::new(&seed, leaf).fill(&mut words);
        for exponent in [-149, -30, -8, 0, 40, 120] {
            let step = power_of_two(exponent);
            let mut found = vec![9; width];
            dithered(kernels, &gradient, step, &Dither::key(&seed, leaf), 0, &mut found);
            for i in 0..width {
                let grid = f64::from(gradient[i]) * step + f64::from(words[i] >> 8) / 16_777_216.0;
                let limited = grid.floor().clamp(-4_194_304.0, 4_194_304.0) as i32;
                let integer = if gradient[i].is_finite() { limited } else { 0 };
                assert_eq!(found[i], integer, "{kernels:?} {} {exponent}", gradient[i]);
            }
        }
    });
}

/// ARITH-7 and ARITH-20.
#[test]
fn adamw_with_one_nan() {
    let step = AdamStep {
        unit: 0.25,
        beta1: 0.9,
        beta2: 0.95,
        first_share: 0.1,
        second_share: 0.05,
        rate: 0.01,
        second_scale: 1.7,
        epsilon: 1e-8,
        keep: 0.999,
    };
    let one_nan = |value: f32| if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value };
    everywhere(|kernels, width, draw| {
        let values = draw(width, 1);
        let old = [draw(width, 2), draw(width, 3), draw(width, 4)];
        let [mut parameters, mut first, mut second] = old.clone();
        update::adamw(kernels, &values, &mut parameters, &mut first, &mut second, &step);
        for i in 0..width {
            let gradient = if values[i].is_finite() { values[i] * step.unit } else { 0.0 };
            let m = fmaf(step.beta1, old[1][i], step.first_share * gradient);
            let v = fmaf(step.beta2, old[2][i], step.second_share * (gradient * gradient));
            let direction = m / fmaf(v.sqrt(), step.second_scale, step.epsilon);
            let parameter = fmaf(-step.rate, direction, old[0][i] * step.keep);
            let expected = [parameter, m, v].map(one_nan);
            assert_eq!(
                exact_bits(&[parameters[i], first[i], second[i]]),
                exact_bits(&expected),
                "{kernels:?}"
            );
        }
    });
}
