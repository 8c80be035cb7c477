//! The member's own contributions: kept to deliver, to serve, and to answer audits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use muster_core::contribution::Commitment;
use muster_core::ids::{Block, Round};
use muster_core::layout::Layout;
use muster_core::lock::lock;
use muster_core::messages::round::Commit;
use muster_core::messages::wire::BlockData;
use muster_core::state::State;

use super::ahead::Ahead;
use super::compute::{LeafSum, Spares};

/// Bytes of leaves that are kept for audits; older ones are recomputed when asked for.
pub(super) const LEAF_BYTES: usize = 256 << 20;

/// A contribution.
pub struct Contribution {
    /// What was committed.
    pub commit: Commit,
    /// The sum.
    pub q: Vec<i32>,
    /// Its chunks' tree.
    pub tree: Commitment,
    /// The state that it was computed on, while it is kept.
    pub state: Option<Arc<State>>,
    /// Each leaf with its loss, while there is room.
    pub leaves: Mutex<Option<Vec<LeafSum>>>,
}

impl Contribution {
    /// Drops its leaves; they are recomputed when an audit asks for them.
    fn drop_leaves(&self, spares: &Spares) {
        let leaves = lock(&self.leaves).take();
        leaves.into_iter().flatten().for_each(|(leaf, _)| spares.put(leaf));
    }

    /// What can be kept of it if `said` was committed to before a crash. Leaves of another device, or of another number of
    /// threads, do not add up to that (TOL-7), and are dropped. If the integers differ, nothing of it can be used.
    pub fn under(mut self, said: Commit) -> Option<Self> {
        // Also where only the loss differs: a table of these leaves would convict its author (TOL-7).
        if said != self.commit {
            self.leaves = Mutex::new(None);
        }
        let same = said.root == self.commit.root;
        self.commit = said;
        same.then_some(self)
    }

    /// A block with its proofs.
    pub fn block(&self, layout: &Layout, block: Block) -> Option<BlockData> {
        self.tree.block(layout, &self.q, block)
    }
}

/// Contributions by round.
pub struct Own {
    rounds: Mutex<BTreeMap<Round, Arc<Contribution>>>,
    keep: usize,
    spares: Spares,
    ahead: Ahead,
}

impl Own {
    /// Keeps this many rounds.
    pub fn new(keep: usize) -> Self {
        // Two at least: while a round is computed the one before is audited.
        Self {
            rounds: Mutex::default(),
            keep: keep.max(2),
            spares: Spares::default(),
            ahead: Ahead::default(),
        }
    }

    /// Vectors of contributions that were dropped.
    pub fn spares(&self) -> &Spares {
        &self.spares
    }

    /// What was computed before its round began.
    pub(super) fn ahead(&self) -> &Ahead {
        &self.ahead
    }

    /// One round's contribution.
    pub fn round(&self, round: Round) -> Option<Arc<Contribution>> {
        lock(&self.rounds).get(&round).cloned()
    }

    /// Keeps a contribution and returns it; drops the oldest ones, and leaves beyond [`LEAF_BYTES`].
    pub fn put(&self, contribution: Contribution) -> Arc<Contribution> {
        let contribution = Arc::new(contribution);
        let mut rounds = lock(&self.rounds);
        rounds.insert(contribution.commit.round, contribution.clone());
        while rounds.len() > self.keep {
            let Some((_, old)) = rounds.pop_first() else { break };
            old.drop_leaves(&self.spares);
            if let Some(old) = Arc::into_inner(old) {
                self.spares.put(old.q);
            }
        }
        let mut room = LEAF_BYTES;
        // The newest first: audits ask for those.
        for held in rounds.values().rev() {
            let bytes = held.q.len() * 4 * held.commit.leaves as usize;
            match room.checked_sub(bytes) {
                Some(left) => room = left,
                None => held.drop_leaves(&self.spares),
            }
        }
        contribution
    }
}
