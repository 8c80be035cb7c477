//! A step of which some blocks are in memory at a time has the bits of one in memory; so has a leaf that is given away in pieces.

use std::convert::Infallible;
use std::sync::Mutex;

use muster_compute::{Exact, ShardStream};
use muster_core::ids::Leaf;
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Method};
use muster_core::messages::offer::StateVector;
use muster_core::state::{Arithmetic, LeafJob, LeafPieces, Shard, State, Update};

use crate::local::local;
use crate::setting::{ROUND_SEED, manifest, model, models, windows};

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
        if !(block.0 + round).is_multiple_of(5) {
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

#[test]
fn a_leaf_in_pieces_has_the_integers_of_the_whole() {
    for model in models() {
        for count in [0, 1, 3] {
            let mut manifest = manifest(model.clone());
            manifest.training.leaf_windows = count.max(1);
            let mut exact = Exact::new(2, None).unwrap();
            let state = exact.initial(&manifest, &windows(&manifest.model, 1, 5));
            let windows = windows(&manifest.model, count, 3);
            let job = LeafJob { state: &state, round_seed: ROUND_SEED, leaf: Leaf(4), windows: &windows };
            let mut q = vec![0; state.parameters.len()];
            let loss = exact.leaf(&manifest, &job, &mut q);
            let pieces = Mutex::new(Vec::new());
            let take = |first: usize, q: &[i32]| pieces.lock().unwrap().push((first, q.to_vec()));
            assert_eq!(exact.leaf_in_pieces(&manifest, &job, &take), loss);
            let mut pieces = pieces.into_inner().unwrap();
            pieces.sort();
            assert!(pieces.len() > 1 && pieces.iter().all(|(_, piece)| piece.len() < q.len()));
            let starts = pieces.iter().scan(0, |next, (_, piece)| {
                let first = *next;
                *next += piece.len();
                Some(first)
            });
            assert!(starts.eq(pieces.iter().map(|(first, _)| *first)), "each once, none missing");
            assert!(pieces.into_iter().flat_map(|(_, piece)| piece).eq(q), "{count} windows");
        }
    }
}
