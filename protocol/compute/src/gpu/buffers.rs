//! A device's memory for a model: estimated first, taken once, shared by windows in turn.

pub(super) mod albert;
pub(super) mod decoder;

use super::driver::{Driver, Fault, Memory, Outcome, Place};
use crate::albert::ranges::AlbertMatrix;
use crate::plan::{FamilyPlan, NetworkPlan};
use albert::AlbertBuffers;
use decoder::DecoderBuffers;

/// Parts of a device's memory that are asked for, in per cent: a little is left to the library, and more where other programs
/// have it.
const PARTS: [u64; 4] = [85, 42, 21, 10];

/// Everything that a model needs on a device.
pub(super) struct Buffers {
    taken: Vec<Memory>,
    /// Windows of the largest leaf so far.
    pub windows: usize,
    pub leaf: LeafPlaces,
    pub family: FamilyBuffers,
}

/// What every family has, of the whole leaf.
#[derive(Clone, Copy)]
pub(super) struct LeafPlaces {
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

/// What only one family has.
pub(super) enum FamilyBuffers {
    Decoder(DecoderBuffers),
    Albert(AlbertBuffers),
}

/// Windows that are on the device at a time, and layers whose activations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portion {
    pub windows: usize,
    pub kept: usize,
}

/// What a model needs, in values of four bytes.
struct Need {
    /// Whatever the portion is.
    fixed: usize,
    /// The largest piece of that.
    piece: usize,
    /// Of a window: of each layer that is kept, and beside layers.
    layer: usize,
    once: usize,
    /// The largest piece of a window.
    largest: usize,
}

impl Need {
    /// Bytes that stay, whatever is on the device, and those of a window with so many layers kept.
    fn bytes(&self, kept: usize) -> [u64; 2] {
        [self.fixed, kept * self.layer + self.once].map(|values| 4 * values as u64)
    }

    /// How many of a leaf's windows fit at a time, in the part of the memory that is asked for.
    ///
    /// # Errors
    /// [`Fault`] with what is needed and what there is, where not even one does.
    fn portion(&self, taking: &Taking<'_>, layers: usize, windows: usize) -> Outcome<Portion> {
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

impl Buffers {
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
        let mut taking = Taking { driver, part, taken: Vec::new() };
        let made = Self::make(&mut taking, plan, windows);
        let Taking { driver, taken, .. } = taking;
        match made {
            Ok((leaf, family)) => Ok(Self { taken, windows, leaf, family }),
            Err(fault) => {
                taken.into_iter().for_each(|memory| driver.release(memory));
                Err(fault)
            }
        }
    }

    fn make(
        taking: &mut Taking<'_>,
        plan: &NetworkPlan,
        windows: usize,
    ) -> Outcome<(LeafPlaces, FamilyBuffers)> {
        // What a device lacks is known before any of it is taken.
        let family = match &plan.network {
            FamilyPlan::Decoder(ranges) => {
                FamilyBuffers::Decoder(DecoderBuffers::take(taking, plan, ranges, windows)?)
            }
            FamilyPlan::Albert(_) => {
                let words = plan.matrices[AlbertMatrix::Words as usize];
                FamilyBuffers::Albert(AlbertBuffers::take(taking, plan, words, windows)?)
            }
        };
        Ok((LeafPlaces::take(taking, plan, windows)?, family))
    }

    /// What is on the device at a time.
    #[cfg(test)]
    pub(super) fn portion(&self) -> Portion {
        match &self.family {
            FamilyBuffers::Decoder(DecoderBuffers { portion, .. }) => *portion,
            FamilyBuffers::Albert(AlbertBuffers { portion, .. }) => *portion,
        }
    }

    /// Gives all of it back.
    pub(super) fn give_back(self, driver: &mut dyn Driver) {
        self.taken.into_iter().for_each(|memory| driver.release(memory));
    }
}

impl LeafPlaces {
    /// Values of all of it.
    fn values(plan: &NetworkPlan, windows: usize) -> usize {
        3 * plan.layout.parameters() + windows * (plan.tokens + 3 * plan.predicted)
    }

    fn take(taking: &mut Taking<'_>, plan: &NetworkPlan, windows: usize) -> Outcome<Self> {
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
struct Taking<'a> {
    driver: &'a mut dyn Driver,
    /// Of its memory, what is asked for, in per cent.
    part: u64,
    taken: Vec<Memory>,
}

impl Taking<'_> {
    fn place(&mut self, values: usize) -> Outcome<Place> {
        let memory = self.driver.allocate(4 * values)?;
        self.taken.push(memory);
        Ok(Place { memory, first: 0 })
    }

    /// Each of some sizes, so many times.
    fn all<const N: usize>(&mut self, times: usize, sizes: [usize; N]) -> Outcome<[Place; N]> {
        let places =
            sizes.into_iter().map(|values| self.place(times * values)).collect::<Outcome<Vec<_>>>()?;
        places.try_into().map_err(|_| Fault("other sizes".into()))
    }

    fn filled(&mut self, values: &[f32]) -> Outcome<Place> {
        let place = self.place(values.len())?;
        self.driver.upload(place, bytemuck::cast_slice(values))?;
        Ok(place)
    }
}
