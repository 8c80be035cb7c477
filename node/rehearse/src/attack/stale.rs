//! Peer that computes its gradients on the state of four rounds ago, to save itself the newest one.
//!
//! Delayed gradients look honest to any rule; every row is wrong.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use muster_core::lock::lock;
use muster_core::state::{Arithmetic, State};
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::computed;

/// Rounds of delay.
pub(super) const LAG: u32 = 4;

#[derive(Default)]
pub(super) struct Stale {
    seen: Mutex<VecDeque<Arc<State>>>,
}

impl NodeConduct for Stale {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let mut seen = lock(&self.seen);
        seen.push_back(work.state.clone());
        let old = if seen.len() > LAG as usize { seen.pop_front() } else { None };
        match old {
            Some(old) => computed(work, arithmetic, &old, |leaf| work.windows(leaf)),
            None => work.sum(arithmetic),
        }
    }
}
