//! A decoder's memory on a device.

use super::taking::{LeafPlaces, Need, Portion, Taking};
use crate::decoder::ranges::{DecoderRanges, Row};
use crate::gpu::attention::{Attended, AttendedBack};
use crate::gpu::driver::{Outcome, Place};
use crate::plan::NetworkPlan;

/// Places of one layer's activations; a row each token, unless told otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Activations {
    pub scales: Place,
    /// Of a variant whose heads are normed: the heads of queries and then those of keys, a row each head; their scales.
    pub heads: [Place; 2],
    pub attended: Attended,
    pub middle: Place,
    pub feed_scales: Place,
    pub gate_up: Place,
    pub sigmoid: Place,
    /// Of a mixture: weight of what every token passes; a row each choice, by expert, of what an expert makes of it.
    pub feed_weights: Place,
    pub passed_gate_up: Place,
    pub passed_sigmoid: Place,
}

/// Everything that only a decoder needs on a device.
pub(crate) struct DecoderBuffers {
    pub portion: Portion,
    pub angles: [Place; 2],
    /// Of the whole leaf: rows by token, where each token's begin, the tokens; the embedded rows' gradient.
    pub order: [Place; 3],
    pub embedded: Place,
    pub residual: Vec<Place>,
    pub layers: Vec<Activations>,
    pub normed: Place,
    pub product: Place,
    pub last_normed: Place,
    pub last_scales: Place,
    pub logits: Place,
    /// Gradients of the stream, beside `embedded`.
    pub streams: [Place; 2],
    /// Input of the feed-forward's matrices, in the backward pass.
    pub feed_normed: Place,
    pub d_normed: Place,
    pub d_attended: AttendedBack,
    pub d_gate_up: Place,
    pub experts: ExpertBuffers,
}

/// What experts that tokens choose among need; a row each choice, by expert, unless told otherwise. Nothing in a decoder that
/// has none.
pub(crate) struct ExpertBuffers {
    /// Of each layer: the token of each choice, and its weight.
    pub choices: Vec<[Place; 2]>,
    /// Of each token: the router's scores, then their gradient.
    pub scores: Place,
    pub normed: Place,
    /// Of the stream, its gradient, or that of the normed tokens.
    pub stream: Place,
    pub product: Place,
    pub d_gate_up: Place,
    /// Gradients of the weights.
    pub d_weights: Place,
    /// Of each token: that of the weight of what every token passes.
    pub d_feed_weights: Place,
}

/// Values of each kind that a window takes.
struct Sizes {
    /// Of one layer, kept.
    layer: [usize; 13],
    /// Of what is there once.
    once: [usize; 13],
    experts: [usize; 7],
    /// Choices of a layer, which all layers keep.
    choices: usize,
    stream: usize,
}

impl Sizes {
    fn of(plan: &NetworkPlan, ranges: &DecoderRanges) -> Self {
        let (tokens, width, joint) = (plan.tokens, plan.width, plan.heads.joint_width());
        let (scores, mixed) = (plan.heads.count * tokens * tokens, plan.heads.query_width());
        let hidden = ranges.layers.first().map_or(0, |layer| layer.feed.hidden);
        let (active, columns, own, gates) = ranges
            .rows
            .first()
            .map_or((0, 0, 0, 0), |row| (row.active, row.experts.len(), Row::hidden(row), 1));
        let (rows, chosen) = (|width: usize| tokens * width, |width: usize| active * tokens * width);
        let is_normed = ranges.layers.first().is_some_and(|layer| layer.head_norms.is_some());
        let normed = if is_normed { mixed + plan.heads.key_width() } else { 0 };
        let layer = [
            rows(1),
            rows(normed),
            rows(normed / plan.heads.width),
            rows(joint),
            scores,
            rows(mixed),
            rows(width),
            rows(1),
            rows(2 * hidden),
            rows(hidden),
            rows(gates),
            chosen(2 * own),
            chosen(own),
        ];
        let once = [
            rows(width),
            rows(hidden),
            rows(width),
            rows(1),
            rows(plan.vocabulary),
            rows(width),
            rows(width),
            rows(width),
            rows(width),
            rows(joint),
            rows(mixed),
            rows(2 * hidden),
            scores,
        ];
        let experts = [
            rows(columns),
            chosen(width),
            chosen(width),
            chosen(own),
            chosen(2 * own),
            chosen(1),
            rows(gates),
        ];
        Self { layer, once, experts, choices: chosen(1), stream: rows(width) }
    }

    fn need(&self, plan: &NetworkPlan, windows: usize) -> Need {
        let rows = windows * plan.tokens;
        let all = self.layer.iter().chain(&self.once).chain(&self.experts);
        Need {
            fixed: LeafPlaces::values(plan, windows) + rows * (plan.width + 1) + 2 * plan.vocabulary,
            piece: plan.layout.parameters().max(rows * plan.width),
            layer: self.layer.iter().sum(),
            once: self.once.iter().chain(&self.experts).sum::<usize>()
                + 2 * plan.layers * self.choices
                + (plan.layers + 1) * self.stream,
            largest: all.copied().max().unwrap_or(0),
        }
    }
}

impl DecoderBuffers {
    /// Takes the memory for leaves of so many windows.
    pub(super) fn take(
        taking: &mut Taking<'_>,
        plan: &NetworkPlan,
        ranges: &DecoderRanges,
        windows: usize,
    ) -> Outcome<Self> {
        let sizes = Sizes::of(plan, ranges);
        let portion = sizes.need(plan, windows).portion(taking, plan.layers, windows)?;
        let (times, rows) = (portion.windows, windows * plan.tokens);
        let angles = [taking.filled(&ranges.cosines)?, taking.filled(&ranges.sines)?];
        let layers =
            (0..portion.kept).map(|_| Activations::take(taking, times, &sizes)).collect::<Outcome<_>>()?;
        let streams = (0..=plan.layers).map(|_| taking.place(times * sizes.stream));
        let residual = streams.collect::<Outcome<_>>()?;
        let [
            normed,
            product,
            last_normed,
            last_scales,
            logits,
            first,
            second,
            feed_normed,
            d_normed,
            d_joint,
            d_mixed,
            d_gate_up,
            d_scores,
        ] = taking.all(times, sizes.once)?;
        Ok(Self {
            portion,
            angles,
            order: taking.all(1, [rows, plan.vocabulary + 1, plan.vocabulary])?,
            embedded: taking.place(rows * plan.width)?,
            residual,
            layers,
            normed,
            product,
            last_normed,
            last_scales,
            logits,
            streams: [first, second],
            feed_normed,
            d_normed,
            d_attended: AttendedBack { joint: d_joint, scores: d_scores, mixed: d_mixed },
            d_gate_up,
            experts: ExpertBuffers::take(taking, times, &sizes, ranges.rows.len())?,
        })
    }
}

impl Activations {
    fn take(taking: &mut Taking<'_>, times: usize, sizes: &Sizes) -> Outcome<Self> {
        let [
            scales,
            heads,
            head_scales,
            joint,
            probabilities,
            mixed,
            middle,
            feed_scales,
            gate_up,
            sigmoid,
            feed_weights,
            passed_gate_up,
            passed_sigmoid,
        ] = taking.all(times, sizes.layer)?;
        let attended = Attended { joint, probabilities, mixed };
        Ok(Self {
            scales,
            heads: [heads, head_scales],
            attended,
            middle,
            feed_scales,
            gate_up,
            sigmoid,
            feed_weights,
            passed_gate_up,
            passed_sigmoid,
        })
    }
}

impl ExpertBuffers {
    fn take(taking: &mut Taking<'_>, times: usize, sizes: &Sizes, layers: usize) -> Outcome<Self> {
        let choices = (0..layers).map(|_| taking.all(times, [sizes.choices; 2])).collect::<Outcome<_>>()?;
        let [scores, normed, stream, product, d_gate_up, d_weights, d_feed_weights] =
            taking.all(times, sizes.experts)?;
        Ok(Self { choices, scores, normed, stream, product, d_gate_up, d_weights, d_feed_weights })
    }
}
