//! A device's memory for a model: estimated first, taken once, shared by windows in turn.

use super::driver::{Driver, Fault, Memory, Outcome, Place};
use crate::decoder::ranges::DecoderRanges;
use crate::plan::{FamilyPlan, NetworkPlan};

/// Parts of a device's memory that are asked for, in per cent: a little is left to the library, and more where other programs
/// have it.
const PARTS: [u64; 4] = [85, 42, 21, 10];

/// Windows that are on the device at a time, and layers whose activations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portion {
    pub windows: usize,
    pub kept: usize,
}

/// Places of one layer's activations; a row each token, unless told otherwise.
#[derive(Clone, Copy)]
pub(super) struct Activations {
    pub scales: Place,
    pub joint: Place,
    /// `[windows, heads, tokens, tokens]`.
    pub probabilities: Place,
    pub mixed: Place,
    pub middle: Place,
    pub feed_scales: Place,
    pub gate_up: Place,
    pub sigmoid: Place,
}

/// Everything that a decoder needs on a device.
pub(super) struct Buffers {
    taken: Vec<Memory>,
    pub portion: Portion,
    /// Windows of the largest leaf so far.
    pub windows: usize,
    pub parameters: Place,
    pub gradient: Place,
    pub q: Place,
    pub key: Place,
    pub angles: [Place; 2],
    /// Of the whole leaf: inputs; positions by token, where each token's begin, the tokens; the embedded rows' gradient.
    pub inputs: Place,
    pub order: [Place; 3],
    pub embedded: Place,
    /// Of the whole leaf: what follows each token, and the parts of its loss.
    pub targets: Place,
    pub sums: Place,
    pub chosen: Place,
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
    pub d_joint: Place,
    pub d_mixed: Place,
    pub d_gate_up: Place,
    pub d_scores: Place,
}

/// Values of each kind that a window takes.
struct Sizes {
    /// Of one layer, kept.
    layer: [usize; 8],
    /// Of what is there once.
    once: [usize; 13],
    streams: usize,
    stream: usize,
}

impl Sizes {
    fn of(plan: &NetworkPlan, ranges: &DecoderRanges) -> Self {
        let (tokens, width, joint) = (plan.tokens, plan.width, plan.heads.joint_width());
        let scores = plan.heads.count * tokens * tokens;
        let hidden = ranges.widest();
        let rows = |width: usize| tokens * width;
        let layer =
            [rows(1), rows(joint), scores, rows(width), rows(width), rows(1), rows(2 * hidden), rows(hidden)];
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
            rows(width),
            rows(2 * hidden),
            scores,
        ];
        Self { layer, once, streams: plan.layers + 1, stream: rows(width) }
    }

    /// Bytes of a window with so many layers kept.
    fn window(&self, kept: usize) -> u64 {
        let values = kept * self.layer.iter().sum::<usize>()
            + self.once.iter().sum::<usize>()
            + self.streams * self.stream;
        4 * values as u64
    }

    /// Bytes of the largest single buffer of a window.
    fn largest(&self) -> u64 {
        4 * self.layer.iter().chain(&self.once).copied().max().unwrap_or(0) as u64
    }
}

impl Buffers {
    /// Bytes that stay, whatever is on the device: parameters, gradient, integers, and what the embedding waits for.
    fn fixed(plan: &NetworkPlan, windows: usize) -> u64 {
        let rows = windows * plan.tokens;
        4 * (3 * plan.layout.parameters() + rows * (plan.width + 5) + 2 * plan.vocabulary) as u64
    }

    /// How many of a leaf's windows fit at a time, in so many per cent of the memory.
    ///
    /// # Errors
    /// [`Fault`] with what is needed and what there is, where not even one does.
    fn portion(driver: &dyn Driver, plan: &NetworkPlan, windows: usize, part: u64) -> Outcome<Portion> {
        let FamilyPlan::Decoder(ranges) = &plan.network else { return Err(Fault("only decoders".into())) };
        let (description, sizes) = (driver.description(), Sizes::of(plan, ranges));
        let usable = description.memory / 100 * part;
        let fixed = Self::fixed(plan, windows);
        for kept in [plan.layers, 1] {
            let fit = usable.saturating_sub(fixed) / sizes.window(kept).max(1);
            let fit = fit.min(description.largest / sizes.largest().max(1)).min(windows as u64) as usize;
            if fit > 0 && 4 * plan.layout.parameters() as u64 <= description.largest {
                // As few times as that allows, and then evenly.
                return Ok(Portion { windows: windows.div_ceil(windows.div_ceil(fit)), kept });
            }
        }
        Err(Fault(format!(
            "it has {} MB of memory, {} MB of them in one piece, and this model needs {} MB and {} MB at least",
            usable >> 20,
            description.largest >> 20,
            (fixed + sizes.window(1)) >> 20,
            (4 * plan.layout.parameters() as u64).max(sizes.largest()) >> 20,
        )))
    }

    /// Takes the memory: less of it, for fewer windows at a time, where not all is free.
    ///
    /// # Errors
    /// [`Fault`] with what is needed and what there is, where not even one window fits.
    pub(super) fn take(driver: &mut dyn Driver, plan: &NetworkPlan, windows: usize) -> Outcome<Self> {
        let mut last = Fault("it has no memory".into());
        for part in PARTS {
            match Self::take_part(driver, plan, windows, part) {
                Ok(buffers) => return Ok(buffers),
                // What was refused first says most.
                Err(fault) if part == PARTS[0] => last = fault,
                Err(_) => {}
            }
        }
        Err(last)
    }

    /// What was taken is given back where not all of it is there.
    fn take_part(driver: &mut dyn Driver, plan: &NetworkPlan, windows: usize, part: u64) -> Outcome<Self> {
        let portion = Self::portion(driver, plan, windows, part)?;
        let FamilyPlan::Decoder(ranges) = &plan.network else { return Err(Fault("only decoders".into())) };
        let mut taking = Taking { driver, taken: Vec::new() };
        let made = Self::make(&mut taking, plan, ranges, (portion, windows));
        let Taking { driver, taken } = taking;
        match made {
            Ok(buffers) => Ok(Self { taken, ..buffers }),
            Err(fault) => {
                taken.into_iter().for_each(|memory| driver.release(memory));
                Err(fault)
            }
        }
    }

    fn make(
        taking: &mut Taking<'_>,
        plan: &NetworkPlan,
        ranges: &DecoderRanges,
        (portion, windows): (Portion, usize),
    ) -> Outcome<Self> {
        let sizes = Sizes::of(plan, ranges);
        let (d, rows) = (plan.layout.parameters(), windows * plan.tokens);
        let angles = [&ranges.cosines, &ranges.sines].map(|table| taking.filled(table));
        let [cosines, sines] = angles;
        let mut of_window = |values: usize| taking.place(portion.windows * values);
        let mut layers = Vec::new();
        for _ in 0..portion.kept {
            let [scales, joint, probabilities, mixed, middle, feed_scales, gate_up, sigmoid] =
                all(sizes.layer, &mut of_window)?;
            layers.push(Activations {
                scales,
                joint,
                probabilities,
                mixed,
                middle,
                feed_scales,
                gate_up,
                sigmoid,
            });
        }
        let residual = (0..sizes.streams).map(|_| of_window(sizes.stream)).collect::<Outcome<_>>()?;
        let once = all(sizes.once, &mut of_window)?;
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
        ] = once;
        Ok(Self {
            taken: Vec::new(),
            portion,
            windows,
            parameters: taking.place(d)?,
            gradient: taking.place(d)?,
            q: taking.place(d)?,
            key: taking.place(8)?,
            angles: [cosines?, sines?],
            inputs: taking.place(rows)?,
            order: [taking.place(rows)?, taking.place(plan.vocabulary + 1)?, taking.place(plan.vocabulary)?],
            embedded: taking.place(rows * plan.width)?,
            targets: taking.place(rows)?,
            sums: taking.place(rows)?,
            chosen: taking.place(rows)?,
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
            d_joint,
            d_mixed,
            d_gate_up,
            d_scores,
        })
    }

    /// Gives all of it back.
    pub(super) fn give_back(self, driver: &mut dyn Driver) {
        self.taken.into_iter().for_each(|memory| driver.release(memory));
    }
}

/// Takes each of some sizes.
fn all<const N: usize>(
    sizes: [usize; N],
    take: &mut impl FnMut(usize) -> Outcome<Place>,
) -> Outcome<[Place; N]> {
    let places = sizes.into_iter().map(take).collect::<Outcome<Vec<_>>>()?;
    places.try_into().map_err(|_| Fault("other sizes".into()))
}

/// A device, and what was taken of it.
struct Taking<'a> {
    driver: &'a mut dyn Driver,
    taken: Vec<Memory>,
}

impl Taking<'_> {
    fn place(&mut self, values: usize) -> Outcome<Place> {
        let memory = self.driver.allocate(4 * values)?;
        self.taken.push(memory);
        Ok(Place { memory, first: 0 })
    }

    fn filled(&mut self, values: &[f32]) -> Outcome<Place> {
        let place = self.place(values.len())?;
        self.driver.upload(place, bytemuck::cast_slice(values))?;
        Ok(place)
    }
}
