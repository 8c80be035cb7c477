//! Where the experts of a mixture stand in the flat vector, for attacks on them.
//!
//! [`super::Attack::suits`] refuses every other model before a run begins; in one there is nothing to attack.

use std::ops::Range;

use muster_core::layout::{Layout, Tensor};
use muster_core::manifest::{Family, Mixture, Model};

/// The fewest experts with which an attack does what it says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fewest {
    /// In a layer's row.
    pub(super) columns: u16,
    /// That a token passes.
    pub(super) active: u16,
    /// Rows of the run.
    pub(super) rows: u16,
}

/// The mixture that a model is, if it is one.
pub(super) fn mixture(model: &Model) -> Option<&Mixture> {
    if let Family::Mixture(mixture) = &model.family { Some(mixture) } else { None }
}

/// The model with another mixture; as it is where it has none.
pub(super) fn with(model: &Model, change: impl FnOnce(&mut Mixture)) -> Model {
    let mut model = model.clone();
    if let Family::Mixture(mixture) = &mut model.family {
        change(mixture);
    }
    model
}

/// The coefficients of this expert in the row of each layer.
// LAYOUT-5: its three matrices.
pub(super) fn expert(model: &Model, number: u16) -> Vec<Range<usize>> {
    named(model, |name| name.contains(&format!(".mlp.experts.{number}.")))
}

/// The same of every expert, in order.
pub(super) fn experts(model: &Model) -> Vec<Vec<Range<usize>>> {
    let columns = mixture(model).map_or(0, |mixture| mixture.columns);
    (0..columns).map(|number| expert(model, number)).collect()
}

/// Which of these experts a leaf teaches most. A token passes at least one, so it teaches this one something.
pub(super) fn busiest<'a>(experts: &'a [Vec<Range<usize>>], q: &[i32]) -> &'a [Range<usize>] {
    let taught = |places: &&Vec<Range<usize>>| -> u64 {
        let integers = places.iter().filter_map(|place| q.get(place.clone())).flatten();
        integers.map(|q| u64::from(q.unsigned_abs())).sum()
    };
    experts.iter().max_by_key(taught).map_or(&[], Vec::as_slice)
}

/// The coefficients of each layer's router: a line of `width` for each expert of the row.
pub(super) fn routers(model: &Model) -> Vec<Range<usize>> {
    named(model, |name| name.ends_with(".mlp.gate.weight"))
}

/// Changes what these places hold.
pub(super) fn each<T>(values: &mut [T], places: &[Range<usize>], mut change: impl FnMut(&mut T)) {
    for place in places {
        values.get_mut(place.clone()).unwrap_or_default().iter_mut().for_each(&mut change);
    }
}

fn named(model: &Model, wanted: impl Fn(&str) -> bool) -> Vec<Range<usize>> {
    Layout::of(model).tensors().iter().filter(|tensor| wanted(&tensor.name)).map(Tensor::range).collect()
}
