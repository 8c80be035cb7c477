//! An ALBERT's memory on a device: windows pass one at a time, since each has a gradient of its own.

use super::taking::{LeafPlaces, Need, Portion, Taking};
use crate::gpu::attention::{Attended, AttendedBack};
use crate::gpu::driver::{Outcome, Place};
use crate::matrix::Matrix;
use crate::plan::NetworkPlan;

/// A LayerNorm's input, output, and rows' means and scales.
#[derive(Clone, Copy)]
pub(crate) struct Normed {
    pub input: Place,
    pub output: Place,
    pub statistics: [Place; 2],
}

/// Places of one layer's activations; a row each token, unless told otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Activations {
    pub attended: Attended,
    /// Norm after attention.
    pub middle: Normed,
    /// Inside the feed-forward, before and after GELU.
    pub feed: Place,
    pub active: Place,
    /// Input of the last norm, with its statistics; its output is the residual stream.
    pub last: Place,
    pub statistics: [Place; 2],
}

/// Everything that only an ALBERT needs on a device.
pub(crate) struct AlbertBuffers {
    pub portion: Portion,
    /// Of each window of the leaf: the places that are predicted; rows by token, where each token's begin, the tokens.
    pub predicted: Place,
    pub order: [Place; 3],
    /// The gradient of a window that is not the first.
    pub window: Place,
    pub residual: Vec<Place>,
    pub layers: Vec<Activations>,
    pub embedded: Normed,
    /// Of the head, a row each predicted token: the stream there, before GELU, the norm, logits.
    pub gathered: Place,
    pub dense: Place,
    pub normed: Normed,
    pub logits: Place,
    /// Gradients: of the stream, of attention, inside the feed-forward, as wide as the embedding.
    pub stream: Place,
    pub d_attended: AttendedBack,
    pub d_feed: Place,
    pub narrow: Place,
}

/// Values of each kind that a window takes.
struct Sizes {
    /// Of one layer, kept.
    layer: [usize; 12],
    /// Of what is there once.
    once: [usize; 17],
    stream: usize,
}

impl Sizes {
    fn of(plan: &NetworkPlan, words: Matrix) -> Self {
        let (joint, hidden, narrow) = (plan.heads.joint_width(), plan.hidden, words.inputs);
        let scores = plan.heads.count * plan.tokens * plan.tokens;
        let (rows, predicted) = (|width: usize| plan.tokens * width, |width: usize| plan.predicted * width);
        let wide = rows(plan.width);
        let layer = [
            rows(joint),
            scores,
            wide,
            wide,
            wide,
            rows(1),
            rows(1),
            rows(hidden),
            rows(hidden),
            wide,
            rows(1),
            rows(1),
        ];
        let once = [
            rows(narrow),
            rows(narrow),
            rows(1),
            rows(1),
            predicted(plan.width),
            predicted(narrow),
            predicted(narrow),
            predicted(narrow),
            predicted(1),
            predicted(1),
            predicted(plan.vocabulary),
            wide,
            rows(joint),
            scores,
            wide,
            rows(hidden),
            plan.tokens.max(plan.predicted) * narrow,
        ];
        Self { layer, once, stream: wide }
    }

    fn need(&self, plan: &NetworkPlan, windows: usize) -> Need {
        let (tokens, d) = (plan.tokens, plan.layout.parameters());
        let all = self.layer.iter().chain(&self.once);
        Need {
            fixed: LeafPlaces::values(plan, windows) + d + windows * (plan.predicted + 3 * tokens + 1),
            piece: d.max(windows * (tokens + 1)),
            layer: self.layer.iter().sum(),
            once: self.once.iter().sum::<usize>() + (plan.layers + 1) * self.stream,
            largest: all.copied().max().unwrap_or(0),
        }
    }
}

impl AlbertBuffers {
    /// Takes the memory for leaves of so many windows.
    pub(super) fn take(
        taking: &mut Taking<'_>,
        plan: &NetworkPlan,
        words: Matrix,
        windows: usize,
    ) -> Outcome<Self> {
        let sizes = Sizes::of(plan, words);
        let portion = sizes.need(plan, windows).portion(taking, plan.layers, 1)?;
        let rows = windows * plan.tokens;
        let layers = (0..portion.kept).map(|_| Activations::take(taking, &sizes)).collect::<Outcome<_>>()?;
        let residual = (0..=plan.layers).map(|_| taking.place(sizes.stream)).collect::<Outcome<_>>()?;
        let [
            embedded_input,
            embedded_output,
            embedded_means,
            embedded_scales,
            gathered,
            dense,
            normed_input,
            normed_output,
            normed_means,
            normed_scales,
            logits,
            stream,
            d_joint,
            d_scores,
            d_mixed,
            d_feed,
            narrow,
        ] = taking.all(1, sizes.once)?;
        Ok(Self {
            portion,
            predicted: taking.place(windows * plan.predicted)?,
            order: taking.all(1, [rows, rows + windows, rows])?,
            window: taking.place(plan.layout.parameters())?,
            residual,
            layers,
            embedded: Normed {
                input: embedded_input,
                output: embedded_output,
                statistics: [embedded_means, embedded_scales],
            },
            gathered,
            dense,
            normed: Normed {
                input: normed_input,
                output: normed_output,
                statistics: [normed_means, normed_scales],
            },
            logits,
            stream,
            d_attended: AttendedBack { joint: d_joint, scores: d_scores, mixed: d_mixed },
            d_feed,
            narrow,
        })
    }
}

impl Activations {
    fn take(taking: &mut Taking<'_>, sizes: &Sizes) -> Outcome<Self> {
        let [
            joint,
            probabilities,
            mixed,
            input,
            output,
            middle_means,
            middle_scales,
            feed,
            active,
            last,
            means,
            scales,
        ] = taking.all(1, sizes.layer)?;
        Ok(Self {
            attended: Attended { joint, probabilities, mixed },
            middle: Normed { input, output, statistics: [middle_means, middle_scales] },
            feed,
            active,
            last,
            statistics: [means, scales],
        })
    }
}
