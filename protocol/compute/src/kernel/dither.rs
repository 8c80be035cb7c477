//! The integer grid with its dither: ChaCha8 in as many blocks as a vector has lanes, straight into the quantisation.
#![allow(unsafe_code)]

use muster_core::ids::Digest;

use super::tile::{Task, run};
use super::vector::Vector;
use crate::path::Kernels;

/// Most blocks computed at once.
const LANES_MAX: usize = 16;
/// Words of a block.
const WORDS: usize = 16;

/// Writes the grid integers (GRID-2) of a part of a leaf's gradient to `q`.
///
/// The part starts at coefficient `first`; `key` is the leaf's [`muster_core::grid::Dither::key`], and the words are
/// that stream's.
pub(crate) fn dithered(
    kernels: Kernels,
    gradient: &[f32],
    inverse_step: f64,
    key: &Digest,
    first: u64,
    q: &mut [i32],
) {
    let (words, _) = key.0.as_chunks::<4>();
    let key = std::array::from_fn(|word| u32::from_le_bytes(words[word]));
    // SAFETY: a `Kernels` exists only for a path that this processor has; the task asks for no more.
    unsafe { run(kernels, DitherTask { gradient, inverse_step, key, first, q }) };
}

struct DitherTask<'a> {
    gradient: &'a [f32],
    inverse_step: f64,
    key: [u32; 8],
    first: u64,
    q: &'a mut [i32],
}

impl Task for DitherTask<'_> {
    /// # Safety
    /// None beyond the processor's.
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECTORS: usize>(self) {
        let Self { mut gradient, inverse_step, key, mut first, mut q } = self;
        let mut words = [0; LANES_MAX * WORDS];
        while !gradient.is_empty() && !q.is_empty() {
            let counter = first / WORDS as u64;
            // SAFETY: the processor has the instructions of `V`.
            unsafe {
                // What is asked for now is there when the words are.
                for line in (0..V::LANES * WORDS).step_by(16) {
                    V::prefetch(gradient.as_ptr().wrapping_add(line));
                    V::prefetch(q.as_ptr().wrapping_add(line).cast());
                }
                blocks::<V>(&key, counter, &mut words);
            }
            // A part may begin within a block of the stream.
            let words = &words[..V::LANES * WORDS][(first % WORDS as u64) as usize..];
            let count = words.len().min(gradient.len()).min(q.len());
            let (now, later) = gradient.split_at(count);
            let (integers, integers_later) = std::mem::take(&mut q).split_at_mut(count);
            // SAFETY: as above.
            unsafe { V::quantise(now, inverse_step, words, integers) };
            (gradient, q, first) = (later, integers_later, first + count as u64);
        }
    }
}

/// Words of as many consecutive blocks of ChaCha8, with a 64-bit counter and stream 0 (HASH-6), as `V` has lanes.
///
/// # Safety
/// The processor must have the instruction set of `V`.
#[inline(always)]
unsafe fn blocks<V: Vector>(key: &[u32; 8], counter: u64, words: &mut [u32; LANES_MAX * WORDS]) {
    static CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
    let counters: [u64; LANES_MAX] = std::array::from_fn(|lane| counter.wrapping_add(lane as u64));
    let halves = [counters.map(|counter| counter as u32), counters.map(|counter| (counter >> 32) as u32)];
    // SAFETY: words are read and written as f32 of the same bits; no vector has more lanes than `LANES_MAX`.
    unsafe {
        let start: [V; WORDS] = std::array::from_fn(|word| match word {
            0..4 => V::splat((&raw const CONSTANTS[word]).cast()),
            4..12 => V::splat((&raw const key[word - 4]).cast()),
            12 | 13 => V::load(halves[word - 12].as_ptr().cast()),
            _ => V::zero(),
        });
        let mut state = start;
        for _ in 0..4 {
            // Written out, so that the state stays in registers.
            quarter_round::<V, 0, 4, 8, 12>(&mut state);
            quarter_round::<V, 1, 5, 9, 13>(&mut state);
            quarter_round::<V, 2, 6, 10, 14>(&mut state);
            quarter_round::<V, 3, 7, 11, 15>(&mut state);
            quarter_round::<V, 0, 5, 10, 15>(&mut state);
            quarter_round::<V, 1, 6, 11, 12>(&mut state);
            quarter_round::<V, 2, 7, 8, 13>(&mut state);
            quarter_round::<V, 3, 4, 9, 14>(&mut state);
        }
        let mut rows = [[0u32; LANES_MAX]; WORDS];
        for (row, (word, start)) in rows.iter_mut().zip(state.into_iter().zip(start)) {
            V::add_words(word, start).store(row.as_mut_ptr().cast());
        }
        for (lane, word) in (0..V::LANES).step_by(8).flat_map(|lane| [(lane, 0), (lane, 8)]) {
            let (from, to) = (rows[word][lane..].as_ptr(), words[lane * WORDS + word..].as_mut_ptr());
            V::transpose_8(from.cast(), LANES_MAX, to.cast(), WORDS);
        }
    }
}

/// One quarter round on four words of every lane.
///
/// # Safety
/// The processor must have the instruction set of `V`.
#[inline(always)]
unsafe fn quarter_round<V: Vector, const A: usize, const B: usize, const C: usize, const D: usize>(
    state: &mut [V; WORDS],
) {
    // SAFETY: by contract.
    unsafe {
        state[A] = V::add_words(state[A], state[B]);
        state[D] = V::mix_words::<16, 16>(state[D], state[A]);
        state[C] = V::add_words(state[C], state[D]);
        state[B] = V::mix_words::<12, 20>(state[B], state[C]);
        state[A] = V::add_words(state[A], state[B]);
        state[D] = V::mix_words::<8, 24>(state[D], state[A]);
        state[C] = V::add_words(state[C], state[D]);
        state[B] = V::mix_words::<7, 25>(state[B], state[C]);
    }
}

#[cfg(test)]
mod tests {
    use muster_core::grid::{Dither, power_of_two, quantise};
    use muster_core::ids::Leaf;

    use super::*;
    use crate::kernel::definition::values;
    use crate::path::paths;

    #[test]
    fn every_path_draws_the_leafs_stream() {
        let (seed, leaf) = (Digest([5; 32]), Leaf(77));
        for path in paths() {
            for (first, count) in [(0, 1000), (1, 127), (15, 2), (16, 128), (129, 300), ((1 << 36) - 40, 90)]
            {
                let gradient = values(count, first as u32, true);
                let mut words = vec![0; count];
                let mut dither = Dither::new(&seed, leaf);
                dither.seek(first);
                dither.fill(&mut words);
                let step = power_of_two(4);
                let grid = |(gradient, word): (&f32, &u32)| quantise(*gradient, step, *word);
                let expected: Vec<i32> = gradient.iter().zip(&words).map(grid).collect();
                let mut found = vec![3; count];
                let kernels = Kernels::new(path).unwrap();
                dithered(kernels, &gradient, step, &Dither::key(&seed, leaf), first, &mut found);
                assert_eq!(found, expected, "{path:?} {first} {count}");
            }
        }
    }
}
