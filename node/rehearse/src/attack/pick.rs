//! Peer that trains its row of experts on windows of another row, which it likes better than those that are its own.
//!
//! The gradients are true ones, of other windows of the text: every row of its table is wrong.

use muster_core::ids::Row;
use muster_core::limits::ROWS;
use muster_core::messages::round::Route;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};
use muster_replica::leaf_windows;

use super::data::FavouriteText;
use super::forge::computed;

pub(super) struct Pick;

impl NodeConduct for Pick {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let Some(own) = &work.route else { return work.sum(arithmetic) };
        let Some(row) = (0..ROWS).map(Row).find(|row| *row != own.row && own.open.contains(*row)) else {
            // Where no other row is open, all windows are its own row's.
            return FavouriteText.contribute(work, arithmetic);
        };
        let route = Route { row, ..own.clone() };
        computed(work, arithmetic, &work.state, |leaf| {
            leaf_windows(&work.manifest, &work.dataset, &work.seed, leaf, Some(&route)).ok()
        })
    }
}
