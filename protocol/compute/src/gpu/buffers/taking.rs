//! Taking a device's memory: how much fits, and what every family takes.

use crate::gpu::driver::{Driver, Fault, Memory, Outcome, Place};
use crate::plan::NetworkPlan;

/// What every family has, of the whole leaf.
#[derive(Clone, Copy)]
pub(crate) struct LeafPlaces {
    pub parameters: Place,
    pub gradient: Place,
    pub q: Place,
    pub key: Place,
    /// Tokens that are read, and those that are predicted.
    pub inputs: Place,
    pub targets: Place,
    /// Of each predicted token: the parts of its loss.
    pub sums: Place,
    pub chosen: Place,
}

/// Windows that are on the device at a time, and layers whose activations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    pub windows: usize,
    pub kept: usize,
}

/// What a model needs, in values of four bytes.
pub(super) struct Need {
    /// Whatever the portion is.
    pub fixed: usize,
    /// The largest piece of that.
    pub piece: usize,
    /// Of a window: of each layer that is kept, and beside layers.
    pub layer: usize,
    pub once: usize,
    /// The largest piece of a window.
    pub largest: usize,
}

impl Need {
    /// Bytes that stay, whatever is on the device, and those of a window with so many layers kept.
    pub(super) fn bytes(&self, kept: usize) -> [u64; 2] {
        [self.fixed, kept * self.layer + self.once].map(|values| 4 * values as u64)
    }

    /// How many of a leaf's windows fit at a time, in the part of the memory that is asked for.
    ///
    /// # Errors
    /// [`Fault`] with what is needed and what there is, where not even one does.
    pub(super) fn portion(&self, taking: &Taking<'_>, layers: usize, windows: usize) -> Outcome<Portion> {
        let description = taking.driver.description();
        let usable = description.memory / 100 * taking.part;
        for kept in [layers, 1] {
            let [fixed, window] = self.bytes(kept);
            let fit = usable.saturating_sub(fixed) / window.max(1);
            let fit = fit.min(description.largest / (4 * self.largest.max(1) as u64));
            let fit = fit.min(windows as u64) as usize;
            if fit > 0 && 4 * self.piece as u64 <= description.largest {
                // As few times as that allows, and then evenly.
                return Ok(Portion { windows: windows.div_ceil(windows.div_ceil(fit)), kept });
            }
        }
        let [fixed, window] = self.bytes(1);
        Err(Fault(format!(
            "it has {} MB of memory, {} MB of them in one piece, and this model needs {} MB and {} MB at least",
            usable >> 20,
            description.largest >> 20,
            (fixed + window) >> 20,
            (4 * self.piece.max(self.largest) as u64) >> 20,
        )))
    }
}

impl LeafPlaces {
    /// Values of all of it.
    pub(super) fn values(plan: &NetworkPlan, windows: usize) -> usize {
        3 * plan.layout.parameters() + windows * (plan.tokens + 3 * plan.predicted)
    }

    pub(super) fn take(taking: &mut Taking<'_>, plan: &NetworkPlan, windows: usize) -> Outcome<Self> {
        let (d, predicted) = (plan.layout.parameters(), windows * plan.predicted);
        Ok(Self {
            parameters: taking.place(d)?,
            gradient: taking.place(d)?,
            q: taking.place(d)?,
            key: taking.place(8)?,
            inputs: taking.place(windows * plan.tokens)?,
            targets: taking.place(predicted)?,
            sums: taking.place(predicted)?,
            chosen: taking.place(predicted)?,
        })
    }
}

/// A device, and what was taken of it.
pub(super) struct Taking<'a> {
    pub driver: &'a mut dyn Driver,
    /// Of its memory, what is asked for, in per cent.
    pub part: u64,
    pub taken: Vec<Memory>,
}

impl Taking<'_> {
    pub(super) fn place(&mut self, values: usize) -> Outcome<Place> {
        let memory = self.driver.allocate(4 * values)?;
        self.taken.push(memory);
        Ok(Place { memory, first: 0 })
    }

    /// Each of some sizes, so many times.
    pub(super) fn all<const N: usize>(&mut self, times: usize, sizes: [usize; N]) -> Outcome<[Place; N]> {
        let places =
            sizes.into_iter().map(|values| self.place(times * values)).collect::<Outcome<Vec<_>>>()?;
        places.try_into().map_err(|_| Fault("other sizes".into()))
    }

    pub(super) fn filled(&mut self, values: &[f32]) -> Outcome<Place> {
        let place = self.place(values.len())?;
        self.driver.upload(place, bytemuck::cast_slice(values))?;
        Ok(place)
    }
}
