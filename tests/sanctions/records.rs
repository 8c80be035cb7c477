//! The honest records of a run in which a part is reassigned.

use std::sync::Arc;

use e2e::sim;
use e2e::sim::{Behaviour, Sim};
use muster_core::codec::Real;
use muster_core::ledger::Ledger;
use muster_core::manifest::{Manifest, Rollback};
use muster_core::messages::record::Record;
use muster_core::sign::Identity;

pub fn steward() -> Identity {
    Identity::from_secret(&[2; 32])
}

pub fn node(number: u8) -> Identity {
    Identity::from_secret(&[10 + number; 32])
}

/// Ledgers before each record of a run in which a part is reassigned, with the record that comes next.
pub fn steps() -> Vec<(Ledger, Record)> {
    let mut behaviours = [Behaviour::Honest; 4];
    behaviours[3] = Behaviour::NeverReduces;
    let change: fn(&mut Manifest) = |manifest| {
        let limit = Real::new(0.5).expect("finite");
        manifest.rollback = Rollback { limit, most_rounds: 2, spacing: 3 };
    };
    let mut sim = Sim::new(sim::Plan { change, ..sim::Plan::behaving(11, 3, &behaviours) });
    sim.run(3_600_000);
    let mut ledger = Ledger::new(Arc::clone(sim.ledger().manifest()));
    let run = ledger.run();
    let step = |record: Record| {
        let before = ledger.clone();
        ledger.apply(&steward().sign(run, &record)).expect("an honest record");
        (before, record)
    };
    sim.records().map(step).collect()
}
