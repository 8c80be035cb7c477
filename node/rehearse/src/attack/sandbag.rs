//! Peer that takes half of the steps of each segment, to be counted for all of them.

use muster_core::manifest::Exchange;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::altered;

pub(super) struct Sandbag;

impl NodeConduct for Sandbag {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        altered(work, arithmetic, |manifest| {
            if let Exchange::Local(local) = &mut manifest.exchange {
                // Of a single step there is no half: it takes none.
                local.segment /= 2;
            }
        })
    }
}
