//! A node as honest as its conduct says, and the text and states that all share.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_core::audit::{Witness, probe};
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Block, Digest, MemberId, Round, ShardId};
use muster_core::ledger::RoundView;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{Rows, TableOpening, TableSeal, table_seal};
use muster_core::messages::wire::{BlockData, Notice};
use muster_core::sign::Identity;
use muster_core::state::State;

const SEQUENCE: u32 = 8;

/// The text is a function of the place; states and contributions are those that the test made.
#[derive(Clone)]
pub(super) struct Memory {
    pub(super) state: State,
    pub(super) contributions: BTreeMap<(Round, MemberId), Arc<PackedContribution>>,
}

pub(super) fn window(index: u64) -> Vec<u32> {
    (0..=u64::from(SEQUENCE)).map(|at| ((index * 8 + at) * 7 % 31) as u32).collect()
}

impl Witness for Memory {
    fn state(&mut self, root: &Digest, _: &[ShardId]) -> Option<State> {
        (self.state.root() == *root).then(|| self.state.clone())
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        Some(indices.iter().map(|index| window(*index)).collect())
    }

    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Arc<PackedContribution>> {
        self.contributions.get(&(round, *member)).cloned()
    }

    fn round(&mut self, _: Round) -> Option<RoundView> {
        None
    }

    fn block(&mut self, _: Round, _: &MemberId, _: Block) -> Option<BlockData> {
        None
    }
}

/// How a node lies.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Conduct {
    /// Not at all.
    Honest,
    /// Every leaf is what it committed to, and none is what it should be.
    FlipsLeaves,
    /// The table is right, the committed sum is not.
    FlipsTheSum,
    /// It never answers; the contribution is false.
    HidesAFalseSum,
    /// It never answers; the contribution is right.
    Sleeps,
    /// The leaf at this position is what it committed to, and not what it should be.
    FlipsOneLeaf(u32),
    /// Every leaf is greater by one in so many places, the same ones in each.
    Adds(usize),
}

impl Conduct {
    /// Whether the leaf at a position is false.
    pub(super) fn flips(self, position: u32) -> bool {
        self == Self::FlipsLeaves || self == Self::FlipsOneLeaf(position)
    }
}

pub(super) struct Node {
    pub(super) identity: Identity,
    pub(super) conduct: Conduct,
    pub(super) salt: u8,
    pub(super) rows: BTreeMap<Round, Vec<(Vec<i32>, i64)>>,
    pub(super) sealed: BTreeMap<Digest, (Digest, Rows)>,
}

impl Node {
    /// What it says to a notice on the board.
    pub(super) fn answer(&mut self, manifest: &Manifest, root: Digest, notice: &Notice) -> Option<Notice> {
        let run = manifest.run();
        if matches!(self.conduct, Conduct::HidesAFalseSum | Conduct::Sleeps) {
            return None;
        }
        match notice {
            Notice::Request(signed) => {
                let request = signed.verify(run).unwrap();
                if request.target != self.identity.id() {
                    return None;
                }
                let probe = probe(manifest, signed, &request);
                let row = |(q, loss): &(Vec<i32>, i64)| probe.row(q, *loss);
                let rows = Rows::new(self.rows[&request.round].iter().map(row).collect()).unwrap();
                let seal = table_seal(&[self.salt; 32], &rows);
                let table = TableSeal {
                    request: signed.digest(),
                    round: request.round,
                    freeze: request.freeze,
                    root,
                    seal,
                };
                let table = self.identity.sign(run, &table);
                self.sealed.insert(signed.digest(), (table.digest(), rows));
                Some(Notice::Table(table))
            }
            Notice::Results(signed) => {
                let results = signed.verify(run).unwrap();
                let (table, rows) = self.sealed.get(&results.request)?;
                assert_eq!(results.table, *table);
                let opening = TableOpening {
                    request: results.request,
                    results: signed.digest(),
                    salt: [self.salt; 32],
                    rows: rows.clone(),
                };
                Some(Notice::Opening(self.identity.sign(run, &opening)))
            }
            _ => None,
        }
    }
}
