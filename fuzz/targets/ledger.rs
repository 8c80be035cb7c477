//! Any bodies sealed by the real steward's key: no panic, and on an error nothing has changed.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use muster_core::ledger::Ledger;
use muster_core::manifest::Manifest;
use muster_core::messages::record::Body;
use muster_core::sign::Identity;

fuzz_target!(|input: (Manifest, Vec<Body>)| {
    let (mut manifest, bodies) = input;
    let steward = Identity::from_secret(&[2; 32]);
    manifest.steward = steward.id();
    // Sizes that a checked manifest may have, kept small.
    manifest.model.vocabulary = 16;
    manifest.model.width = 4;
    manifest.model.layers = 1;
    manifest.model.heads = 2;
    manifest.model.key_value_heads = 1;
    manifest.model.hidden = 4;
    manifest.model.sequence = 4;
    if manifest.check().is_err() {
        return;
    }
    let run = manifest.run();
    let mut ledger = Ledger::new(Arc::new(manifest));
    for body in bodies {
        let before = (ledger.head(), ledger.height(), ledger.stage(), ledger.members().len());
        let record = ledger.record(body);
        if ledger.apply(&steward.sign(run, &record)).is_err() {
            assert_eq!(before, (ledger.head(), ledger.height(), ledger.stage(), ledger.members().len()));
        }
    }
});
