//! Products of all pairs of rows.

use super::gram::{Gram, triangle};
use super::order::Sorter;
use super::rows::InputRows;
use super::runner::CoefficientPass;
use super::strip::{LANES, STRIP, StripRow, TILE};

/// The products of the y_i = x_i − v₀, and v₀, which a sorter finds; without one, of the x_i.
pub(super) struct Products<'a> {
    pub(super) rows: InputRows<'a>,
    pub(super) centre: Option<Sorter>,
}

/// Partial sums of one product.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Sums([f64; LANES]);

impl Sums {
    const ZERO: Self = Self([0.0; LANES]);

    #[inline(always)]
    fn add_products(self, one: &[f64; LANES], other: &[f64; LANES]) -> Self {
        let mut sums = self.0;
        for lane in 0..LANES {
            sums[lane] += one[lane] * other[lane];
        }
        Self(sums)
    }

    fn total(&self) -> f64 {
        let s = &self.0;
        ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
    }
}

/// The products of [`TILE`] rows with [`TILE`] others.
type TileSums = [[Sums; TILE]; TILE];

impl CoefficientPass for Products<'_> {
    type Output = (Vec<f64>, Gram);

    #[inline(always)]
    fn run(mut self) -> (Vec<f64>, Gram) {
        let (count, length) = (self.rows.count(), self.rows.length());
        let mut centre = Vec::new();
        let mut tiles: Vec<TileSums> = vec![[[Sums::ZERO; TILE]; TILE]; triangle(count.div_ceil(TILE), 0)];
        let mut strip = self.rows.strip();
        for start in (0..length).step_by(STRIP) {
            let columns = self.rows.read(start, &mut strip);
            if let Some(sorter) = &mut self.centre {
                sorter.find(&strip.rows[..count]);
                let found = &sorter.found[0];
                centre.extend_from_slice(&found.0[..columns]);
                for row in &mut strip.rows[..count] {
                    for c in 0..STRIP {
                        row.0[c] -= found.0[c];
                    }
                }
            }
            // The padding is 0 in every row, and adds 0.
            let squares = strip.rows.as_chunks::<TILE>().0;
            let mut sums = tiles.iter_mut();
            for (last, left) in squares.iter().enumerate() {
                for right in &squares[..=last] {
                    if let Some(sums) = sums.next() {
                        add_products(sums, left, right);
                    }
                }
            }
        }
        let entry = |i: usize, j: usize| tiles[triangle(i / TILE, j / TILE)][i % TILE][j % TILE].total();
        let half = (0..count).flat_map(|i| (0..=i).map(move |j| (i, j))).map(|(i, j)| entry(i, j)).collect();
        (centre, Gram::new(count, half))
    }
}

/// Four chains at once: each waits for its own last addition, not for another's. Each has a name, because compilers
/// keep an array of so many in memory.
#[inline(always)]
fn add_products(sums: &mut TileSums, left: &[StripRow; TILE], right: &[StripRow; TILE]) {
    let [[mut a, mut b], [mut c, mut d]] = *sums;
    let [first, second] = [left[0].lanes(), left[1].lanes()];
    let [third, fourth] = [right[0].lanes(), right[1].lanes()];
    for chunk in 0..STRIP / LANES {
        a = a.add_products(&first[chunk], &third[chunk]);
        b = b.add_products(&first[chunk], &fourth[chunk]);
        c = c.add_products(&second[chunk], &third[chunk]);
        d = d.add_products(&second[chunk], &fourth[chunk]);
    }
    *sums = [[a, b], [c, d]];
}
