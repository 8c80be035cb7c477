//! Mixtures of experts: their rows, and nodes that come late or move to another row.

use muster_core::codec::Real;
use muster_core::ids::{Round, Row};
use muster_core::ledger::{Holding, Ledger};
use muster_core::manifest::{Family, Manifest, Mixture};
use muster_core::router::{RouterRow, Table};
use muster_store::dataset::Routing;

use super::Sim;
use super::clock::Event;
use super::node::machine;

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
    let Some(decoder) = manifest.model.decoder().cloned() else { return };
    let [balance, trust] = [0.01, 4.0].map(|value| Real::new(value).expect("a finite constant"));
    manifest.model.hidden = 12;
    manifest.model.family = Family::Mixture(Mixture {
        decoder,
        columns: 4,
        active: 2,
        shared_hidden: 8,
        balance,
        trust,
        rows: 1,
        branch: 0,
        few: 0,
        held: 0,
        lag: 0,
    });
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
    row: Row,
    since: Round,
}

/// How far a node is with what it wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    wanted: Wanted,
    done: bool,
}

impl Sim {
    /// Whether a node has the row that the ledger has drawn for it, which it begins to fetch otherwise.
    pub(super) fn has_its_row(&mut self, number: usize, ledger: &Ledger) -> bool {
        let holding = ledger.member(&self.id(number)).and_then(|member| member.holding);
        let Some(Holding { row, ready: false, since }) = holding else { return true };
        let (wanted, node) = (Wanted { row, since }, &mut self.nodes[number]);
        if let Some(fetch) = node.fetch.filter(|fetch| fetch.wanted == wanted) {
            return fetch.done;
        }
        node.fetch = Some(Fetch { wanted, done: false });
        self.clock.after(100, 2_000, Event::Fetched(number, wanted));
        false
    }

    /// A node has fetched a row, and says so if it is still the one that it wants.
    pub(super) fn fetched(&mut self, number: usize, wanted: Wanted) {
        if let Some(fetch) = self.nodes[number].fetch.as_mut().filter(|fetch| fetch.wanted == wanted) {
            fetch.done = true;
            self.catch_up(number);
        }
    }

    /// Has those come that are there from this round on.
    pub(super) fn bring_latecomers(&mut self, next: Round) {
        for (number, node) in self.nodes.iter().enumerate() {
            let due = node.player.joins.is_some_and(|joins| joins <= next);
            if due && self.machine.ledger().member(&node.identity.id()).is_none() {
                self.clock.after(5, 500, Event::Join(number));
            }
        }
    }

    /// A node that was not there from the beginning comes, unless the run takes nobody now: then it comes again later.
    pub(super) fn join(&mut self, number: usize) {
        if self.ledger().member(&self.id(number)).is_some() {
            return;
        }
        self.enter(number);
        if self.ledger().member(&self.id(number)).is_some() {
            let (identity, newest) = (self.nodes[number].identity.clone(), self.book.newest());
            self.nodes[number].machine = machine(&self.plan, number, identity, &newest);
            self.nodes[number].alive = true;
            self.catch_up(number);
        }
    }
}
