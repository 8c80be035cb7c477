//! What a ledger never changes: its manifest, and what follows from that alone. Every room knows it.

use std::sync::Arc;

use crate::ids::RunId;
use crate::layout::Layout;
use crate::manifest::Manifest;
use crate::regime::Regime;

/// The terms of a run.
pub(super) struct Terms {
    manifest: Arc<Manifest>,
    layout: Arc<Layout>,
    run: RunId,
    regime: Regime,
}

impl Terms {
    pub(super) fn of(manifest: Arc<Manifest>) -> Arc<Self> {
        let (run, layout) = (manifest.run(), Layout::of_run(&manifest));
        let regime = Regime::of(&manifest);
        Arc::new(Self { layout: layout.into(), run, regime, manifest })
    }

    pub(super) fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    pub(super) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    pub(super) fn regime(&self) -> &Regime {
        &self.regime
    }

    pub(super) fn run(&self) -> RunId {
        self.run
    }
}
