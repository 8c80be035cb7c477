//! The values of a reduced block, as they travel: about a byte each, instead of the four that they take as numbers.

use std::borrow::Cow;

use super::ResultGrid;
use crate::bug::OrBug;
use crate::error::Reject;

/// The values of a block.
#[derive(Clone, Debug)]
pub struct BlockValues(Form);

#[derive(Clone, Debug)]
enum Form {
    Packed {
        grid: ResultGrid,
        bytes: Vec<u8>,
        count: usize,
    },
    /// As numbers: those of a liar, who cannot show them off the grid, and those of moments that are made here.
    Raw(Vec<f32>),
}

impl BlockValues {
    /// Of these numbers, packed if they are on the grid.
    pub fn of(grid: ResultGrid, values: Vec<f32>) -> Self {
        let count = values.len();
        Self(match grid.pack(&values) {
            Some(bytes) => Form::Packed { grid, bytes, count },
            None => Form::Raw(values),
        })
    }

    /// Of these numbers, as they are.
    pub fn raw(values: Vec<f32>) -> Self {
        Self(Form::Raw(values))
    }

    /// The values that bytes begin with, the same as numbers, and what follows them (AGG-24).
    ///
    /// # Errors
    /// [`Reject`] when the bytes do not begin with the one encoding of so many values.
    pub fn read(grid: ResultGrid, bytes: &[u8], count: usize) -> Result<(Self, Vec<f32>, &[u8]), Reject> {
        let (values, rest) = grid.unpack(bytes, count)?;
        let bytes = bytes.get(..bytes.len() - rest.len()).unwrap_or_default().to_vec();
        Ok((Self(Form::Packed { grid, bytes, count }), values, rest))
    }

    /// As numbers.
    pub fn reals(&self) -> Cow<'_, [f32]> {
        match &self.0 {
            Form::Raw(values) => Cow::Borrowed(values),
            Form::Packed { grid, bytes, count } => {
                let values = grid.unpack(bytes, *count).or_bug("values that were packed here");
                Cow::Owned(values.map(|(values, _)| values).unwrap_or_default())
            }
        }
    }

    /// Whether all are finite numbers, as those that are packed always are.
    pub fn are_finite(&self) -> bool {
        match &self.0 {
            Form::Raw(values) => values.iter().all(|value| value.is_finite()),
            Form::Packed { .. } => true,
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        match &self.0 {
            Form::Raw(values) => values.len(),
            Form::Packed { count, .. } => *count,
        }
    }

    /// Bytes of memory that they take.
    pub fn size(&self) -> usize {
        match &self.0 {
            Form::Packed { bytes, .. } => bytes.len(),
            Form::Raw(values) => size_of_val(&**values),
        }
    }

    /// The bytes as which they travel; none of values as numbers.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Form::Packed { bytes, .. } => Some(bytes),
            Form::Raw(_) => None,
        }
    }
}

/// The same numbers, however they are held.
impl PartialEq for BlockValues {
    fn eq(&self, other: &Self) -> bool {
        self.reals() == other.reals()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_to_the_bit_whether_they_are_on_the_grid_or_not() {
        let grid = ResultGrid::by(3);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for (values, packed) in [
            (vec![8.0, -48.0, 0.0, 1e6], true),
            (vec![8.0, 1.0], false),
            (vec![8.0, -0.0], false),
            (vec![f32::INFINITY], false),
            (vec![], true),
        ] {
            let held = BlockValues::of(grid, values.clone());
            assert_eq!((bits(&held.reals()), held.bytes().is_some()), (bits(&values), packed));
            assert_eq!(held.are_finite(), values.iter().all(|value| value.is_finite()));
            assert_eq!((held.count(), &held), (values.len(), &BlockValues::raw(values.clone())));
            if let Some(bytes) = held.bytes() {
                let more = [bytes, &[9]].concat();
                let (again, reals, rest) = BlockValues::read(grid, &more, values.len()).unwrap();
                assert_eq!((again.bytes(), bits(&reals), rest), (Some(bytes), bits(&values), &[9][..]));
            }
        }
    }
}
