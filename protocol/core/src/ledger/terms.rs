//! What a ledger never changes: its manifest, and what follows from that alone. Every room knows it.

use std::sync::Arc;

use crate::ids::RunId;
use crate::layout::Layout;
use crate::manifest::Manifest;

/// The terms of a run.
pub(super) struct Terms {
    manifest: Arc<Manifest>,
    layout: Arc<Layout>,
    run: RunId,
}

impl Terms {
    pub(super) fn of(manifest: Arc<Manifest>) -> Arc<Self> {
        let (run, layout) = (manifest.run(), Layout::of_run(&manifest));
        Arc::new(Self { layout: layout.into(), run, manifest })
    }

    pub(super) fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    pub(super) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    pub(super) fn run(&self) -> RunId {
        self.run
    }
}
