//! A step of which some blocks are in memory at a time has the bits of one in memory.

use std::convert::Infallible;

use muster_compute::{Exact, ShardStream};
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Method};
use muster_core::messages::offer::StateVector;
use muster_core::state::{Arithmetic, Shard, State, Update};

use crate::local::local;
use crate::setting::{manifest, model};

/// A shard as it was and as it becomes, read and written in order.
struct Stream {
    old: [Vec<f32>; 3],
    new: [Vec<f32>; 3],
    read: usize,
    /// The most values of a vector that were asked for at once.
    most: usize,
}

impl ShardStream for Stream {
    type Error = Infallible;

    fn begin(&mut self) -> Result<(), Infallible> {
        self.read = 0;
        Ok(())
    }

    fn read(&mut self, count: usize, into: &mut [Vec<f32>; 3]) -> Result<(), Infallible> {
        let range = self.read..self.read + count;
        for (vector, into) in into.iter_mut().enumerate() {
            let (old, new) = (&self.old[vector], &self.new[vector]);
            into.clone_from(&if new.len() == old.len() { new } else { old }[range.clone()].to_vec());
        }
        (self.read, self.most) = (range.end, self.most.max(count));
        Ok(())
    }

    fn write(&mut self, vector: StateVector, values: &[f32]) -> Result<(), Infallible> {
        let place = [StateVector::Parameters, StateVector::First, StateVector::Second];
        self.new[place.iter().position(|of| *of == vector).unwrap()].extend_from_slice(values);
        Ok(())
    }
}

/// What a round gives: nothing in some blocks.
fn update(manifest: &Manifest, state: &State, round: u32) -> Update {
    let layout = Layout::of_run(manifest);
    let mut update = Update::empty(&layout, state.held());
    for block in state.held().flat_map(|shard| layout.update_blocks(shard).collect::<Vec<_>>()) {
        if (block.0 + round) % 5 != 0 {
            let length = layout.block(block).unwrap().range.len() as u32;
            let value = |place: u32| ((place * 7 + round * 13 + block.0) % 31) as f32 - 15.0;
            update.put(&layout, block, &(0..length).map(value).collect::<Vec<_>>()).unwrap();
        }
    }
    update
}

#[test]
fn a_step_in_pieces_has_the_bits_of_one_in_memory() {
    // More than one piece: the embedding alone has 1.2 million coefficients, in blocks of which none fills it.
    let large = manifest(model([50_000, 24, 1, 2, 1, 17, 5], true));
    let lamb = Manifest { optimiser: large.optimiser.clone(), ..large.clone() };
    let mut all = [large.clone(), lamb, local(large.model.clone())];
    all[1].optimiser.method = Method::Lamb;
    for manifest in all {
        let mut exact = Exact::new(2, None).unwrap();
        let state = exact.initial(&manifest, &[vec![1; manifest.model.sequence as usize + 1]]);
        let mut whole = state.clone();
        let (mut shard, mut exponents): (Shard, _) = (state.shards[0], state.exponents.clone());
        let mut old = [&state.parameters, &state.first, &state.second].map(|vector| vector.to_vec());
        for round in 0..3 {
            let update = update(&manifest, &state, round);
            exact.apply(&manifest, &mut whole, &update);
            let mut stream = Stream { old, new: Default::default(), read: 0, most: 0 };
            let Ok(()) = exact.apply_streamed(&manifest, (&mut shard, &mut exponents, &mut stream), &update);
            assert!(stream.most < stream.old[0].len(), "in several pieces");
            old = stream.new;
            assert_eq!((shard, &exponents), (whole.shards[0], &whole.exponents), "round {round}");
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            for (own, other) in old.iter().zip([&whole.parameters, &whole.first, &whole.second]) {
                assert!(bits(own) == bits(other), "round {round}");
            }
        }
        assert_ne!(state.parameters, whole.parameters);
    }
}
