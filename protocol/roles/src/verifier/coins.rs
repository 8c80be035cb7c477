//! This verifier's coins: looked at in private, shown once, and written down before they are shown.

use std::sync::Arc;

use muster_core::coins::{Coin, CoinKind, CoinOpening, CoinTree};
use muster_core::ids::{Digest, Round, Slot};

/// What each coin was shown for, on the disk.
///
/// The machine calls this itself, while all its other wishes are effects: what it signs next depends on the answer, and
/// nothing may be signed before the answer is on the disk.
pub trait Notes: Send + Sync {
    /// Writes down that a coin of a round is shown for this digest, unless it was shown for another one before. Returns
    /// whether this digest is what stands, now and after any crash.
    ///
    /// # Errors
    /// [`Unwritten`]: then nothing may be shown.
    fn stands(&self, coin: &str, round: Round, digest: &Digest) -> Result<bool, Unwritten>;
}

/// Why something could not be written down.
#[derive(Clone, Debug)]
pub struct Unwritten(pub String);

/// The coins of one run.
pub struct Coins {
    tree: CoinTree,
    notes: Arc<dyn Notes>,
}

impl Coins {
    /// The coins of a registered tree, and where it is written down what was shown.
    pub fn new(tree: CoinTree, notes: Arc<dyn Notes>) -> Self {
        Self { tree, notes }
    }

    /// A round's node coin, kept to ourselves; `None` outside the registered rounds.
    pub fn node(&self, round: Round) -> Option<Coin> {
        self.look(CoinKind::Node, round, 0)
    }

    /// The leaf coin of a slot, kept to ourselves; `None` outside the registered rounds and slots.
    pub fn leaf(&self, round: Round, slot: Slot) -> Option<Coin> {
        self.look(CoinKind::Leaf, round, muster_core::audit::leaf_coin(slot))
    }

    /// Shows the node coin together with R_t; `None` when it was shown with another one.
    ///
    /// # Errors
    /// [`Unwritten`]: then nothing may be shown.
    pub fn show_node(&self, round: Round, freeze: &Digest) -> Result<Option<CoinOpening>, Unwritten> {
        self.show(CoinKind::Node, round, 0, freeze)
    }

    /// Shows the leaf coin of a slot for one sealed table; `None` when it was shown for another one, whose author
    /// then knew the draw.
    ///
    /// # Errors
    /// [`Unwritten`]: then nothing may be shown.
    pub fn show_leaf(
        &self,
        round: Round,
        slot: Slot,
        table: &Digest,
    ) -> Result<Option<CoinOpening>, Unwritten> {
        self.show(CoinKind::Leaf, round, muster_core::audit::leaf_coin(slot), table)
    }

    /// The leaf coin of a slot once more, which was shown for another table: for a verdict that rests on all leaves.
    pub fn shown_leaf(&self, round: Round, slot: Slot) -> Option<CoinOpening> {
        self.tree.open(CoinKind::Leaf, round, muster_core::audit::leaf_coin(slot))
    }

    fn look(&self, kind: CoinKind, round: Round, k: u16) -> Option<Coin> {
        self.tree.open(kind, round, k)?.verify(&self.tree.terms()).ok()
    }

    fn show(
        &self,
        kind: CoinKind,
        round: Round,
        k: u16,
        to: &Digest,
    ) -> Result<Option<CoinOpening>, Unwritten> {
        let vote = match kind {
            CoinKind::Node => "coin-node".to_owned(),
            CoinKind::Leaf => format!("coin-leaf-{k}"),
        };
        // COIN-7: written down before it is shown, so that no crash lets the same coin serve two purposes.
        let Some(opening) = self.tree.open(kind, round, k) else { return Ok(None) };
        Ok(self.notes.stands(&vote, round, to)?.then_some(opening))
    }
}
