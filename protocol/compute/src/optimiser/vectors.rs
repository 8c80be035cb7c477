//! The vectors of a shard that takes a step: in memory as a whole, or some blocks at a time.

use std::convert::Infallible;
use std::ops::Range;

use muster_core::messages::offer::StateVector;

use super::step::ShardBlock;

/// Coefficients that are in memory at a time, about.
const PIECE: usize = 1 << 20;

/// The vectors of a shard, which are read and written from their first value to their last.
pub trait ShardStream {
    /// What reading and writing may report.
    type Error;

    /// Begins a pass over all vectors from their first values on. A vector that this step has written is read as it was written.
    ///
    /// # Errors
    /// What the medium reports.
    fn begin(&mut self) -> Result<(), Self::Error>;

    /// Reads the next `count` values of parameters, first and second moments, in place of what these hold.
    ///
    /// # Errors
    /// What the medium reports.
    fn read(&mut self, count: usize, into: &mut [Vec<f32>; 3]) -> Result<(), Self::Error>;

    /// Writes the next values of a vector.
    ///
    /// # Errors
    /// What the medium reports.
    fn write(&mut self, vector: StateVector, values: &[f32]) -> Result<(), Self::Error>;
}

/// What a pass does with some blocks, one after the other in the shard, and their parameters, first and second moments.
pub(super) type Run<'r> = &'r mut dyn FnMut(Range<usize>, [&mut [f32]; 3]);

/// Hands the vectors of a shard to the passes of a step.
pub(super) trait Vectors {
    /// What reading and writing may report.
    type Error;

    /// Calls `run` for all of these blocks, some at a time and in order. Afterwards these vectors are as it left them; each is
    /// changed by one pass of a step alone.
    fn pass(
        &mut self,
        blocks: &[ShardBlock],
        changed: &[StateVector],
        run: Run<'_>,
    ) -> Result<(), Self::Error>;
}

impl Vectors for [&mut [f32]; 3] {
    type Error = Infallible;

    fn pass(&mut self, blocks: &[ShardBlock], _: &[StateVector], run: Run<'_>) -> Result<(), Infallible> {
        run(0..blocks.len(), self.each_mut().map(|vector| &mut **vector));
        Ok(())
    }
}

/// Vectors of which some blocks are in memory at a time.
pub(super) struct Streamed<'s, S>(pub(super) &'s mut S);

impl<S: ShardStream> Vectors for Streamed<'_, S> {
    type Error = S::Error;

    fn pass(&mut self, blocks: &[ShardBlock], changed: &[StateVector], run: Run<'_>) -> Result<(), S::Error> {
        self.0.begin()?;
        let mut values: [Vec<f32>; 3] = Default::default();
        let mut first = 0;
        while let Some(block) = blocks.get(first) {
            let start = block.range.start;
            let most = blocks[first..].iter().take_while(|block| block.range.end - start <= PIECE).count();
            let end = first + most.max(1);
            self.0.read(blocks[end - 1].range.end - start, &mut values)?;
            run(first..end, values.each_mut().map(|values| &mut **values));
            let written =
                StateVector::REALS.iter().zip(&values).filter(|(vector, _)| changed.contains(vector));
            for (vector, values) in written {
                self.0.write(*vector, values)?;
            }
            first = end;
        }
        Ok(())
    }
}
