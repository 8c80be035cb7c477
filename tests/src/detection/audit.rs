//! One audit by the product's functions, on leaves of sixteen integers.

use muster_core::assign;
use muster_core::coins::{Coin, draw};
use muster_core::grid::Dither;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Leaf, Round, RunId, Slot};
use muster_core::messages::audit::{
    FindingKind, LeafResult, Results, Rows, TableRow, results_seal, table_seal,
};
use muster_core::sketch::{self, Probe, Sketch, Sketcher};

use super::setting::{Setting, digest};

/// Coefficients of a surrogate leaf.
const LENGTH: usize = 16;

/// What is public of a round.
pub(super) struct RoundFacts {
    pub(super) round: Round,
    pub(super) freeze: Digest,
    seed: Digest,
    seats: u16,
    sketcher: Sketcher,
}

impl RoundFacts {
    pub(super) fn new(setting: &Setting, round: Round, seats: usize) -> Self {
        let freeze = digest(setting, round, "freeze");
        let run = RunId(digest(setting, Round(0), "run"));
        Self {
            round,
            seed: assign::round_seed(run, round, &digest(setting, round, "state")),
            sketcher: Sketcher::new(sketch::points(&freeze)),
            freeze,
            seats: seats as u16,
        }
    }

    /// What a leaf is, and its loss.
    fn leaf(&self, slot: usize, position: u32) -> ([i32; LENGTH], i64) {
        let leaf: Leaf = assign::leaf(Slot(slot as u16), self.seats, position);
        let mut words = [0; LENGTH];
        Dither::new(&self.seed, leaf).fill(&mut words);
        (words.map(|word| (word >> 20) as i32 - 2048), i64::from(words[0] >> 8))
    }

    fn sketch(&self, q: &[i32]) -> Sketch {
        let mut sketcher = self.sketcher.clone();
        sketcher.absorb(0, q);
        Sketch::Fingerprint(sketcher.finish())
    }

    fn row(&self, leaf: &([i32; LENGTH], i64)) -> TableRow {
        let (q, loss) = leaf;
        TableRow { sketch: self.sketch(q), loss: *loss }
    }
}

/// An audit of one contribution.
pub(super) struct Audit<'a> {
    pub(super) facts: &'a RoundFacts,
    pub(super) slot: usize,
    /// Positions of the leaves that are bad.
    pub(super) bad: &'a [u32],
    /// Whether the leaves are right and their sum is not.
    pub(super) false_sum: bool,
}

impl Audit<'_> {
    /// What it finds: the steps of `spec/audit.md` without signatures.
    pub(super) fn finding(&self, setting: &Setting, coin: &Coin) -> Option<FindingKind> {
        let (rows, total, loss) = self.table(setting.leaves);
        let salt = Hasher::new(Domain::TABLE).value(&self.facts.freeze).value(&(self.slot as u64)).finish().0;
        let seal = table_seal(&salt, &rows);
        let positions = draw(coin, &self.facts.freeze, &seal, setting.leaves, setting.drawn);
        let recomputed = positions.iter().map(|position| LeafResult {
            position: *position,
            row: self.facts.row(&self.facts.leaf(self.slot, *position)),
        });
        let results = Results::new(recomputed.collect()).expect("at most 32 are drawn");
        let sealed = results_seal(&salt, &results);
        let (sketch, losses) = Probe::exact(&self.facts.freeze).sum(&rows);
        // The member opens its table only now, to these results.
        if table_seal(&salt, &rows) != seal || results_seal(&salt, &results) != sealed {
            return None;
        }
        if losses != loss || sketch != self.facts.sketch(&total) {
            return Some(FindingKind::SumMismatch);
        }
        let differs = |result: &LeafResult| rows.get(result.position as usize) != Some(&result.row);
        results.iter().any(differs).then_some(FindingKind::LeafMismatch)
    }

    /// What the member says of each leaf, what it committed to, and the loss.
    fn table(&self, leaves: u32) -> (Rows, [i32; LENGTH], i64) {
        let mut total = [0; LENGTH];
        let mut loss = 0;
        let rows = (0..leaves).map(|position| {
            let mut leaf = self.facts.leaf(self.slot, position);
            let bad = self.bad.contains(&position);
            // The smallest lie there is.
            leaf.0[position as usize % LENGTH] += i32::from(bad && !self.false_sum);
            total.iter_mut().zip(&leaf.0).for_each(|(sum, value)| *sum += value);
            loss += leaf.1;
            self.facts.row(&leaf)
        });
        let rows = Rows::new(rows.collect()).expect("at most 256 leaves");
        total[0] += i32::from(self.false_sum && !self.bad.is_empty());
        (rows, total, loss)
    }
}
