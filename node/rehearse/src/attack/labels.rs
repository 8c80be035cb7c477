//! Peer that trains on other tokens than the text has, to teach the model what is wrong.
//!
//! Token t becomes V − 1 − t, as label flipping does with classes. The gradients are true ones, of another text: every
//! row is wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::computed;

pub(super) struct Labels;

impl NodeConduct for Labels {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let last = work.manifest.model.vocabulary.saturating_sub(1);
        computed(work, arithmetic, &work.state, |leaf| {
            let mut windows = work.windows(leaf)?;
            windows.iter_mut().flatten().for_each(|token| *token = last.saturating_sub(*token));
            Some(windows)
        })
    }
}
