//! The inputs of a block as rows, a strip of coefficients at a time, and what is added up of them.

use super::input::Input;
use super::mixing::Mixing;
use super::runner::{CoefficientPass, Runner};
use super::strip::{STRIP, StripRow, TILE};

/// Inputs of one length, at least one, in order of slot: the x_i, or what nearest-neighbour mixing makes of them.
#[derive(Clone, Copy)]
pub(super) struct InputRows<'a> {
    pub(super) inputs: &'a [Input<'a>],
    pub(super) mixing: Option<&'a Mixing>,
}

/// Room for a strip of all rows.
pub(super) struct Strip {
    /// The rows, padded with zeros to a multiple of [`TILE`]; columns past the vector's end are 0.
    pub(super) rows: Vec<StripRow>,
    unmixed: Vec<StripRow>,
}

impl InputRows<'_> {
    pub(super) fn count(&self) -> usize {
        self.inputs.len()
    }

    pub(super) fn length(&self) -> usize {
        self.inputs.first().map_or(0, |input| input.q.len())
    }

    pub(super) fn strip(&self) -> Strip {
        let rows = vec![StripRow::ZERO; self.count().next_multiple_of(TILE)];
        Strip { unmixed: if self.mixing.is_some() { rows.clone() } else { Vec::new() }, rows }
    }

    /// Fills the strip from coefficient `start` on; returns how many columns are no padding.
    #[inline(always)]
    pub(super) fn read(&self, start: usize, strip: &mut Strip) -> usize {
        let length = STRIP.min(self.length() - start);
        let into = if self.mixing.is_some() { &mut strip.unmixed } else { &mut strip.rows };
        for (row, input) in into.iter_mut().zip(self.inputs) {
            read_input(input, start, length, row);
        }
        if let Some(mixing) = self.mixing {
            mixing.mix(&strip.unmixed[..self.inputs.len()], &mut strip.rows);
        }
        length
    }
}

/// x = q/m of one strip.
#[inline(always)]
fn read_input(input: &Input<'_>, start: usize, length: usize, row: &mut StripRow) {
    let q = &input.q[start..start + length];
    let m = f64::from(input.m);
    if input.m.is_power_of_two() {
        // The reciprocal is exact, and so are product and quotient: the product takes less time.
        let scale = 1.0 / m;
        for (x, q) in row.0.iter_mut().zip(q) {
            *x = f64::from(*q) * scale;
        }
    } else {
        for (x, q) in row.0.iter_mut().zip(q) {
            *x = f64::from(*q) / m;
        }
    }
    row.0[length..].fill(0.0);
}

/// What a combination starts from.
#[derive(Clone, Copy)]
pub(super) enum Base<'a> {
    /// 0.
    Zero,
    /// The row of one input.
    Row(usize),
    /// Given values, as many as there are coefficients.
    Given(&'a [f64]),
}

/// `base + Σ k_j (x_j − base)`, the sum from 0 in order of slot, rounded to f32, into a slice of the rows' length.
pub(super) fn combine(
    runner: &impl Runner,
    rows: InputRows<'_>,
    base: Base<'_>,
    k: &[f64],
    into: &mut [f32],
) {
    if rows.mixing.is_some() {
        return runner.pass(Combine { rows, base, k, into });
    }
    // What counts nothing is not read: adding 0 or −0 to a sum from +0 leaves its bits. So with the base itself, whose
    // difference from itself is 0.
    let counts = |(index, k): (usize, &f64)| *k != 0.0 && !matches!(base, Base::Row(row) if row == index);
    let indices: Vec<usize> =
        k.iter().enumerate().filter(|one| counts(*one)).map(|(index, _)| index).collect();
    let inputs: Vec<Input<'_>> =
        indices.iter().filter_map(|index| rows.inputs.get(*index).copied()).collect();
    let k: Vec<f64> = indices.iter().map(|index| k[*index]).collect();
    runner.pass(Add { all: rows.inputs, inputs: &inputs, base, k: &k, into });
}

/// Strips that are combined at once: an input is read in stretches that a processor sees coming.
const STRIPS: usize = 4;
/// Inputs that are added at once, in their order: base and sum are read once for them.
const GROUP: usize = 4;

/// The combination of mixed rows.
struct Combine<'a> {
    rows: InputRows<'a>,
    base: Base<'a>,
    k: &'a [f64],
    into: &'a mut [f32],
}

impl CoefficientPass for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let length = self.rows.length();
        let mut strip = self.rows.strip();
        for start in (0..length).step_by(STRIP) {
            let columns = self.rows.read(start, &mut strip);
            let (mut base, mut shift) = (StripRow::ZERO, StripRow::ZERO);
            match self.base {
                Base::Zero => {}
                Base::Row(row) => base = strip.rows[row],
                Base::Given(given) => base.0[..columns].copy_from_slice(&given[start..start + columns]),
            }
            for (row, k) in strip.rows.iter().zip(self.k) {
                for c in 0..STRIP {
                    shift.0[c] += k * (row.0[c] - base.0[c]);
                }
            }
            round(&base, &shift, &mut self.into[start..start + columns]);
        }
    }
}

/// The combination of inputs as they are: limited by the memory that they are read from.
struct Add<'a> {
    /// A base may be one of these.
    all: &'a [Input<'a>],
    /// What is added to it.
    inputs: &'a [Input<'a>],
    base: Base<'a>,
    k: &'a [f64],
    into: &'a mut [f32],
}

impl CoefficientPass for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (mut bases, mut shifts, mut row) =
            ([StripRow::ZERO; STRIPS], [StripRow::ZERO; STRIPS], StripRow::ZERO);
        let length = self.into.len();
        for first in (0..length).step_by(STRIPS * STRIP) {
            let starts = (first..length).step_by(STRIP).take(STRIPS);
            for (start, base) in starts.clone().zip(&mut bases) {
                let columns = STRIP.min(length - start);
                match self.base {
                    Base::Zero => {}
                    Base::Row(row) => read_input(&self.all[row], start, columns, base),
                    Base::Given(given) => base.0[..columns].copy_from_slice(&given[start..start + columns]),
                }
            }
            shifts.fill(StripRow::ZERO);
            for (inputs, k) in self.inputs.chunks(GROUP).zip(self.k.chunks(GROUP)) {
                for ((start, base), shift) in starts.clone().zip(&bases).zip(&mut shifts) {
                    if !add_group(shift, base, inputs, k, start) {
                        for (input, k) in inputs.iter().zip(k) {
                            read_input(input, start, STRIP.min(length - start), &mut row);
                            for c in 0..STRIP {
                                shift.0[c] += k * (row.0[c] - base.0[c]);
                            }
                        }
                    }
                }
            }
            for ((start, base), shift) in starts.zip(&bases).zip(&shifts) {
                let columns = STRIP.min(length - start);
                round(base, shift, &mut self.into[start..start + columns]);
            }
        }
    }
}

/// Adds a whole group over a whole strip; `false` where there is less of either, or a division to be made.
#[inline(always)]
fn add_group(shift: &mut StripRow, base: &StripRow, inputs: &[Input<'_>], k: &[f64], start: usize) -> bool {
    let (Ok(inputs), Ok(k)) = (<[Input<'_>; GROUP]>::try_from(inputs), <[f64; GROUP]>::try_from(k)) else {
        return false;
    };
    let [Some((p, e)), Some((q, f)), Some((r, g)), Some((s, h))] = inputs.map(|input| whole(&input, start))
    else {
        return false;
    };
    for c in 0..STRIP {
        let base = base.0[c];
        let mut sum = shift.0[c];
        sum += k[0] * (f64::from(p[c]) * e - base);
        sum += k[1] * (f64::from(q[c]) * f - base);
        sum += k[2] * (f64::from(r[c]) * g - base);
        sum += k[3] * (f64::from(s[c]) * h - base);
        shift.0[c] = sum;
    }
    true
}

/// A whole strip of an input, and the reciprocal that its integers are multiplied by, where that is exact.
#[inline(always)]
fn whole<'a>(input: &Input<'a>, start: usize) -> Option<(&'a [i32; STRIP], f64)> {
    let q = input.q.get(start..start + STRIP).filter(|_| input.m.is_power_of_two())?;
    Some((q.try_into().ok()?, 1.0 / f64::from(input.m)))
}

/// The sum in f32, as many columns as there is room for.
#[inline(always)]
fn round(base: &StripRow, shift: &StripRow, into: &mut [f32]) {
    for ((rounded, base), shift) in into.iter_mut().zip(&base.0).zip(&shift.0) {
        *rounded = (base + shift) as f32;
    }
}
