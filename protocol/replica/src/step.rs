//! The step of a shard that is on the disk: from one file to the next, some values at a time.

use muster_compute::{Exact, ShardStream};
use muster_core::ids::ShardId;
use muster_core::manifest::Manifest;
use muster_core::messages::offer::StateVector;
use muster_core::state::Update;
use muster_store::error::StoreError;
use muster_store::rows::{NewRow, RowFile, RowFiles, VectorReader};

/// Takes the step that an update gives to a shard. What it was stays in its own file.
///
/// # Errors
/// What the disk reports.
pub(crate) fn step(
    arithmetic: &mut Exact,
    manifest: &Manifest,
    (id, row): (ShardId, &RowFile),
    files: &RowFiles,
    update: &Update,
) -> Result<RowFile, StoreError> {
    let (mut shard, mut exponents) = (row.shard(id), row.exponents().to_vec());
    let mut stream = Stream { old: row, new: files.begin(shard.size, true)?, readers: Vec::new() };
    arithmetic.apply_streamed(manifest, (&mut shard, &mut exponents, &mut stream), update)?;
    stream.new.finish(shard, &exponents)
}

/// From one file to the next.
struct Stream<'a> {
    old: &'a RowFile,
    new: NewRow,
    /// Of each vector, in a pass.
    readers: Vec<VectorReader>,
}

impl ShardStream for Stream<'_> {
    type Error = StoreError;

    fn begin(&mut self) -> Result<(), StoreError> {
        let Self { old, new, .. } = self;
        let reader = |vector| new.reader(vector)?.map_or_else(|| old.reader(vector), Ok);
        self.readers = StateVector::REALS.into_iter().map(reader).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn read(&mut self, count: usize, into: &mut [Vec<f32>; 3]) -> Result<(), StoreError> {
        self.readers.iter_mut().zip(into).try_for_each(|(reader, values)| {
            values.clear();
            reader.read(count, values)
        })
    }

    fn write(&mut self, vector: StateVector, values: &[f32]) -> Result<(), StoreError> {
        self.new.write(vector, values)
    }
}
