//! The inputs of a block as rows, a strip of coefficients at a time, and what is added up of them.

use super::Input;
use super::mixing::Mixing;
use super::runner::{Pass, Runner};

/// Coefficients of a strip: a multiple of [`LANES`]; the rows of a few inputs stay in a first-level cache.
pub(super) const STRIP: usize = 128;
/// Partial sums of a product of two rows.
pub(super) const LANES: usize = 8;
/// Strips hold a multiple of so many rows, the last ones zero: products are computed in squares of them.
pub(super) const TILE: usize = 2;

/// One input's coefficients of a strip, at an address that no vector crosses a cache line from.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Row(pub(super) [f64; STRIP]);

impl Row {
    pub(super) const ZERO: Self = Self([0.0; STRIP]);

    /// In groups of [`LANES`].
    #[inline(always)]
    pub(super) fn lanes(&self) -> &[[f64; LANES]] {
        self.0.as_chunks().0
    }
}

/// Inputs of one length, at least one, in order of slot: the x_i, or what nearest-neighbour mixing makes of them.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) inputs: &'a [Input<'a>],
    pub(super) mixing: Option<&'a Mixing>,
}

/// Room for a strip of all rows.
pub(super) struct Strip {
    /// The rows, padded with zeros to a multiple of [`TILE`]; columns past the vector's end are 0.
    pub(super) rows: Vec<Row>,
    unmixed: Vec<Row>,
}

impl Rows<'_> {
    pub(super) fn count(&self) -> usize {
        self.inputs.len()
    }

    pub(super) fn length(&self) -> usize {
        self.inputs.first().map_or(0, |input| input.q.len())
    }

    pub(super) fn strip(&self) -> Strip {
        let rows = vec![Row::ZERO; self.count().next_multiple_of(TILE)];
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
fn read_input(input: &Input<'_>, start: usize, length: usize, row: &mut Row) {
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

/// `base + Σ k_j (x_j − base)`, the sum from 0 in order of slot, rounded to f32.
pub(super) fn combine(runner: &impl Runner, rows: Rows<'_>, base: Base<'_>, k: &[f64]) -> Vec<f32> {
    if rows.mixing.is_some() {
        return runner.pass(Combine { rows, base, k });
    }
    // What counts nothing is not read: adding 0 or −0 to a sum from +0 leaves its bits.
    let counts = |(place, k): (usize, &f64)| *k != 0.0 || matches!(base, Base::Row(row) if row == place);
    let places: Vec<usize> =
        k.iter().enumerate().filter(|one| counts(*one)).map(|(place, _)| place).collect();
    let inputs: Vec<Input<'_>> = places.iter().filter_map(|place| rows.inputs.get(*place).copied()).collect();
    let k: Vec<f64> = places.iter().map(|place| k[*place]).collect();
    let base = match base {
        Base::Row(row) => Base::Row(places.iter().position(|place| *place == row).unwrap_or(0)),
        other => other,
    };
    if inputs.is_empty() {
        let values = |base: &[f64]| base.iter().map(|value| *value as f32).collect();
        return if let Base::Given(base) = base { values(base) } else { vec![0.0; rows.length()] };
    }
    runner.pass(Combine { rows: Rows { inputs: &inputs, mixing: None }, base, k: &k })
}

struct Combine<'a> {
    rows: Rows<'a>,
    base: Base<'a>,
    k: &'a [f64],
}

/// Strips that are combined at once: an input is read in stretches that a processor sees coming.
const STRIPS: usize = 4;

impl Pass for Combine<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run(self) -> Vec<f32> {
        let length = self.rows.length();
        let mut values = Vec::with_capacity(length);
        let mut strip = self.rows.strip();
        let (mut bases, mut shifts, mut row) = ([Row::ZERO; STRIPS], [Row::ZERO; STRIPS], Row::ZERO);
        for first in (0..length).step_by(STRIPS * STRIP) {
            let starts = (first..length).step_by(STRIP).take(STRIPS);
            for (start, base) in starts.clone().zip(&mut bases) {
                self.read_base(start, &mut strip, base);
            }
            shifts.fill(Row::ZERO);
            if self.rows.mixing.is_some() {
                for ((start, base), shift) in starts.clone().zip(&bases).zip(&mut shifts) {
                    self.rows.read(start, &mut strip);
                    for (row, k) in strip.rows.iter().zip(self.k) {
                        add_shift(shift, *k, row, base);
                    }
                }
            } else {
                for (input, k) in self.rows.inputs.iter().zip(self.k) {
                    for ((start, base), shift) in starts.clone().zip(&bases).zip(&mut shifts) {
                        read_input(input, start, STRIP.min(length - start), &mut row);
                        add_shift(shift, *k, &row, base);
                    }
                }
            }
            for ((start, base), shift) in starts.zip(&bases).zip(&shifts) {
                let mut rounded = [0.0f32; STRIP];
                for ((rounded, base), shift) in rounded.iter_mut().zip(&base.0).zip(&shift.0) {
                    *rounded = (base + shift) as f32;
                }
                values.extend_from_slice(&rounded[..STRIP.min(length - start)]);
            }
        }
        values
    }
}

impl Combine<'_> {
    #[inline(always)]
    fn read_base(&self, start: usize, strip: &mut Strip, base: &mut Row) {
        let columns = STRIP.min(self.rows.length() - start);
        match self.base {
            Base::Zero => {}
            Base::Row(row) if self.rows.mixing.is_some() => {
                self.rows.read(start, strip);
                *base = strip.rows[row];
            }
            Base::Row(row) => read_input(&self.rows.inputs[row], start, columns, base),
            Base::Given(given) => base.0[..columns].copy_from_slice(&given[start..start + columns]),
        }
    }
}

#[inline(always)]
fn add_shift(shift: &mut Row, k: f64, row: &Row, base: &Row) {
    for c in 0..STRIP {
        shift.0[c] += k * (row.0[c] - base.0[c]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_keeps_lanes_apart() {
        assert_eq!(STRIP % LANES, 0);
    }
}
