//! Mixtures of experts, and their rows.

use muster_core::ids::{Round, Row};
use muster_core::manifest::{Family, Manifest, fixture};
use muster_core::router::{RouterRow, Table};
use muster_store::dataset::Routing;

/// Rows of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many rows one becomes.
    pub rows: u16,
    /// After so many updates.
    pub branch: u32,
    /// `few` of the manifest: contributions to a row below which each of them is audited.
    pub few: u16,
    /// `held` of the manifest: contributions to a row up to which its update waits for audits.
    pub held: u16,
}

impl Experts {
    /// Rows that come to be with the third update, and what is usual for them.
    pub fn new(rows: u16) -> Self {
        Self { rows, branch: 3, few: 5, held: 2 }
    }

    /// Makes a run's decoder a mixture with these rows. What waits does so as long as contributions are kept (MANIFEST-16).
    pub(super) fn enter(self, manifest: &mut Manifest) {
        mixture(manifest);
        let lag = if self.held > 0 { manifest.retention.contributions } else { 0 };
        let Family::Mixture(mixture) = &mut manifest.model.family else { return };
        let Self { rows, branch, few, held } = self;
        (mixture.rows, mixture.branch, mixture.few, mixture.held) = (rows, branch, few, held);
        mixture.lag = lag;
    }
}

/// Makes the run's decoder a mixture: what its tokens pass is one expert that they share and two of four.
pub fn mixture(manifest: &mut Manifest) {
    fixture::mixture(&mut manifest.model, 1);
    manifest.model.hidden = 12;
}

/// A router that gives each row about as many windows: every byte speaks for one row.
pub(super) fn routing(rows: u16) -> Routing {
    let row = |number: u16| RouterRow {
        entries: std::array::from_fn(|byte| i32::from(byte as u16 % rows == number)),
        bias: 0,
    };
    Routing::new(8, Table::new((0..rows).map(row).collect()).expect("several rows, and not too many"))
}

/// A row that was drawn for a node, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) row: Row,
    pub(super) since: Round,
}

/// How far a node is with what it wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    pub(super) wanted: Wanted,
    pub(super) done: bool,
}
