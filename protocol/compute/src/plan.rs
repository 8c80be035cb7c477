//! A model as the arithmetic sees it: sizes, and ranges in the flat vector.

use muster_core::layout::Layout;
use muster_core::manifest::{Family, Model};

use crate::albert::ranges::AlbertRanges;
use crate::attention::Heads;
use crate::decoder::ranges::DecoderRanges;
use crate::matrix::Matrix;
use crate::turns::GradientSlice;

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
    /// Plans a model that [`Model::check`] accepts.
    pub(crate) fn new(model: &Model) -> Self {
        let layout = Layout::of(model);
        let size = |n: u32| n as usize;
        let tensors = layout.tensors();
        let (network, matrices, parts, predicted, group) = match &model.family {
            Family::Decoder(decoder) => {
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
            width: size(model.width) / size(model.heads),
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
    fn parts_cover_the_flat_vector() {
        let real = |value| Real::new(value).unwrap();
        let decoder =
            |tied| Family::Decoder(manifest::Decoder { key_value_heads: 2, tied, rope_base: real(10_000.0) });
        let albert = manifest::Albert { embedding: 7, masked_ppm: 150_000, mask_token: 1 };
        for family in [decoder(true), decoder(false), Family::Albert(albert)] {
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
