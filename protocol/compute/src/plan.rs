//! A model as the arithmetic sees it: sizes, and ranges in the flat vector.

use muster_core::layout::Layout;
use muster_core::manifest::{Family, Mixture, Model, Variant};

use crate::albert::ranges::AlbertRanges;
use crate::attention::Heads;
use crate::decoder::ranges::DecoderRanges;
use crate::matrix::Matrix;
use crate::turns::GradientSlice;

/// Tokens that an expert should get at a time, if they choose evenly: its matrices and their gradients are fetched for
/// few of them as for many.
const EXPERT_TOKENS: u64 = 128;
/// Tokens for which one thread keeps activations, unless a window has more.
const JOINED_TOKENS: u64 = 2048;

/// Bytes of matrices, packed for both directions, up to which they are kept packed from window to window. To pack larger ones
/// again for each window takes no time that was measured from 256 tokens on (tests/bench/README.md), and no memory.
pub(crate) const PACKED_BYTES: u64 = 256 << 20;

/// Windows that one thread takes together, of so many on so many threads: one where every token passes every matrix.
/// In a mixture as many as fill the experts, but no more than leave every thread its share.
pub(crate) fn joined(model: &Model, windows: u64, threads: u64) -> u64 {
    let Family::Mixture(Mixture { columns, active, .. }) = &model.family else { return 1 };
    let threads = threads.max(1);
    let tokens = (EXPERT_TOKENS * u64::from(*columns) / u64::from(*active).max(1)).min(JOINED_TOKENS);
    let most = (tokens / u64::from(model.sequence).max(1)).max(1);
    // As few times as that allows, and then evenly.
    let times = windows.div_ceil(most.saturating_mul(threads)).max(1);
    windows.div_ceil(times.saturating_mul(threads)).max(1)
}

/// Everything about a model that does not change with its parameters.
#[derive(Debug)]
pub(crate) struct NetworkPlan {
    pub model: Model,
    pub layout: Layout,
    /// Tokens of a window.
    pub tokens: usize,
    /// Tokens of a window that are predicted.
    pub predicted: usize,
    pub width: usize,
    pub hidden: usize,
    pub vocabulary: usize,
    pub layers: usize,
    pub heads: Heads,
    pub epsilon: f32,
    /// Matrices that the passes multiply by, as the network numbers them.
    pub matrices: Vec<Matrix>,
    /// Parts of the flat gradient that windows add to in turn: in order, covering it.
    pub parts: Vec<GradientSlice>,
    pub network: FamilyPlan,
}

/// What only one family has.
#[derive(Debug)]
pub(crate) enum FamilyPlan {
    Decoder(DecoderRanges),
    Albert(AlbertRanges),
}

impl NetworkPlan {
    /// Values at the beginning of the gradient that are whole only after all turns: those of a decoder's embedding.
    pub(crate) fn late(&self) -> usize {
        match &self.network {
            FamilyPlan::Decoder(ranges) => ranges.embedding.range().len(),
            FamilyPlan::Albert(_) => 0,
        }
    }

    /// Plans a model that [`Model::check`] accepts.
    pub(crate) fn new(model: &Model) -> Self {
        let layout = Layout::of(model);
        let size = |n: u32| n as usize;
        let tensors = layout.tensors();
        let (network, matrices, parts, predicted, group) = match &model.family {
            Family::Decoder(decoder)
            | Family::Mixture(Mixture { decoder, .. })
            | Family::Variant(Variant { decoder, .. }) => {
                let (ranges, matrices, parts) = DecoderRanges::new(model, decoder, tensors);
                let group = size(model.heads) / size(decoder.key_value_heads);
                (FamilyPlan::Decoder(ranges), matrices, parts, size(model.sequence), group)
            }
            Family::Albert(albert) => {
                let (ranges, matrices) = AlbertRanges::new(tensors);
                let parts = tensors
                    .iter()
                    .map(|tensor| Matrix::joined(std::slice::from_ref(tensor)).part())
                    .collect();
                (FamilyPlan::Albert(ranges), matrices, parts, size(albert.masked(model.sequence)), 1)
            }
        };
        let heads = Heads {
            tokens: size(model.sequence),
            count: size(model.heads),
            group,
            width: size(model.head_width()),
            causal: matches!(network, FamilyPlan::Decoder(_)),
        };
        Self {
            model: model.clone(),
            tokens: size(model.sequence),
            predicted,
            width: size(model.width),
            hidden: size(model.hidden),
            vocabulary: size(model.vocabulary),
            layers: size(model.layers),
            heads,
            epsilon: model.norm_epsilon.value(),
            matrices,
            parts,
            network,
            layout,
        }
    }

    /// Bytes of its matrices, packed for both directions.
    pub(crate) fn packed_bytes(&self) -> u64 {
        self.matrices.iter().map(|matrix| 8 * matrix.range().len() as u64).sum()
    }

    /// A token number as an index; numbers beyond the vocabulary count as its last (ARITH-30).
    pub(crate) fn token(&self, number: u32) -> usize {
        (number as usize).min(self.vocabulary - 1)
    }
}

#[cfg(test)]
mod tests {
    use muster_core::codec::Real;
    use muster_core::manifest;

    use super::*;

    #[test]
    fn windows_are_joined_until_experts_are_full_or_threads_would_wait() {
        let real = |value| Real::new(value).unwrap();
        let decoder = manifest::Decoder { key_value_heads: 2, tied: true, rope_base: real(10_000.0) };
        let [balance, trust] = [0.01, 4.0].map(real);
        let experts = Mixture {
            decoder: decoder.clone(),
            columns: 8,
            active: 2,
            shared_hidden: 9,
            balance,
            trust,
            rows: 1,
            branch: 0,
            few: 0,
            held: 0,
            lag: 0,
        };
        let model = |family, sequence| Model {
            vocabulary: 1300,
            width: 12,
            layers: 3,
            heads: 6,
            hidden: 20,
            sequence,
            norm_epsilon: real(1e-5),
            initial_scale: real(0.02),
            family,
        };
        let mixture =
            |columns, sequence| model(Family::Mixture(Mixture { columns, ..experts.clone() }), sequence);
        // 512 tokens fill eight experts of which a token passes two.
        for (windows, threads, expected) in
            [(16, 1, 4), (16, 3, 3), (16, 4, 4), (16, 8, 2), (17, 4, 3), (5, 4, 2), (3, 8, 1), (0, 1, 1)]
        {
            let found = joined(&mixture(8, 128), windows, threads);
            assert_eq!(found, expected, "{windows} on {threads}");
        }
        assert_eq!(joined(&mixture(64, 128), 64, 1), 16);
        assert_eq!(joined(&mixture(64, 4096), 64, 1), 1);
        assert_eq!(joined(&mixture(u16::MAX, 1), u64::MAX, u64::MAX), 1);
        assert_eq!(joined(&model(Family::Decoder(decoder), 1), 64, 1), 1);
    }

    #[test]
    fn parts_cover_the_flat_vector() {
        let real = |value| Real::new(value).unwrap();
        let decoder =
            |tied| Family::Decoder(manifest::Decoder { key_value_heads: 2, tied, rope_base: real(10_000.0) });
        let albert = manifest::Albert { embedding: 7, masked_ppm: 150_000, mask_token: 1 };
        let mixture = |tied| {
            let Family::Decoder(decoder) = decoder(tied) else { unreachable!("a decoder") };
            let [balance, trust] = [0.01, 4.0].map(real);
            Family::Mixture(Mixture {
                decoder,
                columns: 5,
                active: 2,
                shared_hidden: 9,
                balance,
                trust,
                rows: 1,
                branch: 0,
                few: 0,
                held: 0,
                lag: 0,
            })
        };
        for family in [decoder(true), decoder(false), mixture(true), mixture(false), Family::Albert(albert)] {
            let model = Model {
                vocabulary: 1300,
                width: 12,
                layers: 3,
                heads: 6,
                hidden: 20,
                sequence: 5,
                norm_epsilon: real(1e-5),
                initial_scale: real(0.02),
                family,
            };
            let plan = NetworkPlan::new(&model);
            let mut end = 0;
            for part in &plan.parts {
                assert_eq!(part.range.start, end, "{part:?}");
                end = part.range.end;
            }
            assert_eq!(end as u64, model.parameters());
        }
    }
}
