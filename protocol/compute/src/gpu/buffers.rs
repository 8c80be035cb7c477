//! A device's memory for a model: estimated first, taken once, shared by windows in turn.

pub(super) mod albert;
pub(super) mod decoder;
pub(super) mod taking;

use super::driver::{Driver, Fault, Memory, Outcome};
use crate::albert::ranges::AlbertMatrix;
use crate::plan::{FamilyPlan, NetworkPlan};
use albert::AlbertBuffers;
use decoder::DecoderBuffers;
#[cfg(test)]
use taking::Portion;
use taking::{LeafPlaces, Taking};

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

/// What only one family has.
pub(super) enum FamilyBuffers {
    Decoder(DecoderBuffers),
    Albert(AlbertBuffers),
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
