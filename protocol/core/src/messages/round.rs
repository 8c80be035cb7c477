//! What members say within a round: commit, echo, receipt, delivery, result.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::codec::List;
use crate::codec::schema::{Described, Schema, Shape};
use crate::ids::{Block, Digest, MemberId, Part, Round, Row, RowSet, ShardId, Slot};
use crate::layout::Layout;
use crate::manifest::Profile;
use crate::sign::{Message, Signed};
use crate::{limits, wire};

wire! {
    /// Which windows a seat reads where the state has several rows (ASSIGN-10).
    pub struct Route {
        /// The row that the seat computes on.
        pub row: Row,
        /// Rows with a seat: no window belongs to another one.
        pub open: RowSet,
    }
}

impl Route {
    /// Of a seat in a round on a state with so many rows; none where that has one, so that all seats read alike.
    pub fn of(rows: u16, row: Row, open: RowSet) -> Option<Self> {
        (rows > 1).then_some(Self { row, open })
    }
}

wire! {
    /// A member's contribution, before anyone has seen it.
    ///
    /// Two different ones of one member in one round prove equivocation.
    pub struct Commit {
        /// The round.
        pub round: Round,
        /// Head of the ledger that opened the round.
        pub head: Digest,
        /// Root of the state that the leaves were computed on.
        pub state: Digest,
        /// The author's slot.
        pub slot: Slot,
        /// Slots of the round.
        pub seats: u16,
        /// The row of the author, and those of others; none where the state has one row.
        pub route: Option<Route>,
        /// Leaves summed: `slot, slot + seats, …`.
        pub leaves: u32,
        /// The arithmetic used.
        pub profile: Profile,
        /// Sum of the leaves' fixed-point losses.
        pub loss: i64,
        /// Merkle root over the chunks of Q.
        pub root: Digest,
    }
}

impl Commit {
    /// The shards that its leaves were computed on.
    pub fn shards(&self, layout: &Layout) -> Vec<ShardId> {
        layout.path(self.row()).collect()
    }

    /// The row that its leaves were computed on; 0 where there is one.
    pub fn row(&self) -> Row {
        self.route.as_ref().map(|route| route.row).unwrap_or_default()
    }
}

impl Message for Commit {
    const TAG: &'static str = "commit";
}

wire! {
    /// The steward has a commitment in time.
    pub struct CommitReceipt {
        /// Digest of the signed commitment.
        pub commit: Digest,
        /// The round.
        pub round: Round,
    }
}

impl Message for CommitReceipt {
    const TAG: &'static str = "commit-receipt";
}

wire! {
    /// A member has seen this freeze of the round; a second one would prove that two exist.
    pub struct Echo {
        /// The round.
        pub round: Round,
        /// R_t, the ledger head after the freeze.
        pub freeze: Digest,
    }
}

impl Message for Echo {
    const TAG: &'static str = "echo";
}

wire! {
    /// An aggregator holds a whole part of a sender, proved against the frozen commitment.
    pub struct Receipt {
        /// The round.
        pub round: Round,
        /// The part.
        pub part: Part,
        /// 0, or 1 after the part was reassigned.
        pub attempt: u8,
        /// Whose.
        pub sender: MemberId,
        /// Root of the sender's commitment.
        pub root: Digest,
    }
}

impl Message for Receipt {
    const TAG: &'static str = "receipt";
}

wire! {
    /// A member has delivered what it can, its own parts included.
    pub struct Delivered {
        /// The round.
        pub round: Round,
        /// 0, or 1 after a reassignment.
        pub attempt: u8,
        /// What the aggregators signed.
        pub receipts: List<Signed<Receipt>, { limits::RECEIPTS }>,
    }
}

impl Message for Delivered {
    const TAG: &'static str = "delivered";
}

wire! {
    /// The steward has a delivery in time: its author counts in each part that it brings a receipt for.
    pub struct DeliveryReceipt {
        /// Digest of the signed delivery.
        pub delivered: Digest,
        /// The round.
        pub round: Round,
        /// 0, or 1 after a reassignment.
        pub attempt: u8,
    }
}

impl Message for DeliveryReceipt {
    const TAG: &'static str = "delivery-receipt";
}

wire! {
    /// An aggregator has reduced a part over exactly the sealed inputs.
    pub struct PartResult {
        /// The round.
        pub round: Round,
        /// The part.
        pub part: Part,
        /// 0, or 1 after a reassignment.
        pub attempt: u8,
        /// R_t: with it the author says which commitments its inputs are proved against.
        // Without it, a faulty steward could frame the author with a second Freeze and a colluding sender.
        pub freeze: Digest,
        /// The sealed inputs.
        // In the signature: a second set of inputs, sealed later, cannot make an honest result wrong.
        pub inputs: Bitmap,
        /// `H(PART, values of the part's blocks in order)`.
        pub digest: Digest,
    }
}

impl Message for PartResult {
    const TAG: &'static str = "part-result";
}

wire! {
    /// A contributor has fetched these parts' values, with the signed digests, and compared them with its own.
    pub struct Checked {
        /// The round.
        pub round: Round,
        /// 0, or 1 after a reassignment.
        pub attempt: u8,
        /// Parts, ascending.
        pub parts: List<Part, { limits::PARTS }>,
        /// Blocks of these parts that are too far from its own, ascending.
        pub objections: List<Block, { limits::OBJECTIONS }>,
    }
}

impl Message for Checked {
    const TAG: &'static str = "checked";
}

/// A set of slots. CODEC-11: slot i is bit i mod 8 of byte ⌊i/8⌋.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct Bitmap([u8; limits::SEATS / 8]);

impl Described for Bitmap {
    fn shape(_: &mut Schema) -> Shape {
        Shape::Raw(limits::SEATS / 8)
    }
}

impl Bitmap {
    /// Adds a slot; one beyond the bound is left out.
    pub fn insert(&mut self, slot: Slot) {
        // Slots are bounded by the ledger: one beyond it is nobody's seat.
        if let Some(byte) = self.0.get_mut(slot.index() / 8) {
            *byte |= 1 << (slot.0 % 8);
        }
    }

    /// Whether it holds a slot.
    pub fn contains(&self, slot: Slot) -> bool {
        self.0.get(slot.index() / 8).is_some_and(|byte| byte >> (slot.0 % 8) & 1 == 1)
    }

    /// Its slots in order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..limits::SEATS as u16).map(Slot).filter(|slot| self.contains(*slot))
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }
}
