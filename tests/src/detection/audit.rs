//! One audit by the product's functions, on leaves or segments of sixteen integers.

use muster_core::assign;
use muster_core::coins::{Coin, draw};
use muster_core::grid::Dither;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Leaf, Round, RunId, Slot};
use muster_core::messages::audit::{
    FindingKind, LeafResult, Results, Rows, TableRow, results_seal, table_seal,
};
use muster_core::sketch::{self, Probe, Sketch, Sketcher};

use super::schedule::Schedule;
use super::setting::{Setting, digest};

/// Coefficients of a surrogate leaf.
const LENGTH: usize = 16;

/// A leaf, or a segment of a chain: its integers and its loss.
type Surrogate = ([i32; LENGTH], i64);

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

    /// What a leaf is, and its loss. In a chain both depend on every integer of `start`.
    fn leaf(&self, slot: usize, position: u32, start: &[i32; LENGTH]) -> Surrogate {
        let leaf: Leaf = assign::leaf(Slot(slot as u16), self.seats, position);
        let mut words = [0; LENGTH];
        Dither::new(&self.seed, leaf).fill(&mut words);
        let from = start.iter().fold(0u32, |from, place| (from ^ *place as u32).wrapping_mul(0x9e37_79b9));
        let words = words.map(|word| word ^ from);
        (words.map(|word| (word >> 20) as i32 - 2048), i64::from(words[0] >> 8))
    }

    /// The first leaves of a slot, as they should be.
    fn leaves(&self, slot: usize, count: u32, chained: bool) -> Vec<Surrogate> {
        let mut place = [0; LENGTH];
        let leaves = (0..count).map(|position| {
            let leaf = self.leaf(slot, position, &place);
            if chained {
                step(&mut place, &leaf.0);
            }
            leaf
        });
        leaves.collect()
    }

    fn sketch(&self, q: &[i32]) -> Sketch {
        let mut sketcher = self.sketcher.clone();
        sketcher.absorb(0, q);
        Sketch::Fingerprint(sketcher.finish())
    }

    fn row(&self, leaf: &Surrogate) -> TableRow {
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
    /// How it cheats; `None` of an honest member.
    pub(super) schedule: Option<Schedule>,
}

impl Audit<'_> {
    /// What it finds: the steps of `spec/audit.md` without signatures.
    pub(super) fn finding(&self, setting: &Setting, coin: &Coin) -> Option<FindingKind> {
        let (rows, total, loss) = self.table(setting);
        let salt = Hasher::new(Domain::TABLE).value(&self.facts.freeze).value(&(self.slot as u64)).finish().0;
        let seal = table_seal(&salt, &rows);
        let positions = draw(coin, &self.facts.freeze, &seal, setting.leaves, setting.drawn);
        // LOCAL-8: all segments before a drawn one as well.
        let last = positions.iter().max().map_or(0, |last| last + 1);
        let right = self.facts.leaves(self.slot, last, setting.chained);
        let result = |position: &u32| {
            Some(LeafResult { position: *position, row: self.facts.row(right.get(*position as usize)?) })
        };
        let results =
            Results::new(positions.iter().filter_map(result).collect()).expect("at most 32 are drawn");
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
    fn table(&self, setting: &Setting) -> (Rows, [i32; LENGTH], i64) {
        let false_sum = self.schedule == Some(Schedule::FalseSum);
        let mut said = self.facts.leaves(self.slot, setting.leaves, setting.chained);
        if self.schedule == Some(Schedule::Teleport) {
            self.go_on(&mut said);
        } else if !false_sum {
            // The smallest lie there is.
            self.bad.iter().for_each(|position| said[*position as usize].0[*position as usize % LENGTH] += 1);
        }
        let (mut total, mut loss) = ([0; LENGTH], 0);
        for (q, own) in &said {
            step(&mut total, q);
            loss += own;
        }
        let rows =
            Rows::new(said.iter().map(|leaf| self.facts.row(leaf)).collect()).expect("at most 256 leaves");
        total[0] += i32::from(false_sum && !self.bad.is_empty());
        (rows, total, loss)
    }

    /// Lies in the first bad segment, and computes the later ones from there.
    fn go_on(&self, said: &mut [Surrogate]) {
        let Some(first) = self.bad.first() else { return };
        let mut place = [0; LENGTH];
        for (position, segment) in (0..).zip(said) {
            if position > *first {
                *segment = self.facts.leaf(self.slot, position, &place);
            } else if position == *first {
                segment.0[0] += 1;
            }
            step(&mut place, &segment.0);
        }
    }
}

/// Goes on by a leaf.
fn step(place: &mut [i32; LENGTH], by: &[i32; LENGTH]) {
    place.iter_mut().zip(by).for_each(|(sum, value)| *sum += value);
}
