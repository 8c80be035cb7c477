//! Peer that trains on text of its own choice instead of the assigned windows, to weigh what it likes.
//!
//! It takes the first windows of the text in every round. The gradients are true ones, of other data: every row is
//! wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::computed;

pub(super) struct FavouriteText;

impl NodeConduct for FavouriteText {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let sequence = work.manifest.model.sequence;
        let windows = 0..u64::from(work.manifest.windows_of_leaf());
        let favourite: Option<Vec<_>> =
            windows.map(|index| work.dataset.window(index, sequence).ok()).collect();
        computed(work, arithmetic, &work.state, |_| favourite.clone())
    }
}
