//! What a member shows to others of its work.

use crate::codec::Text;
use crate::ids::{Digest, Height, MemberId};
use crate::messages::enrol::Addresses;
use crate::sign::Message;
use crate::wire;

wire! {
    /// "By this record I have done this" (STAND-13).
    pub struct Statement {
        /// Records of the ledger that it is about, from the first one.
        pub height: Height,
        /// The head after them.
        pub head: Digest,
        /// Leaves of the signer that verifiers have recomputed and found right.
        pub recomputed: u64,
        /// Leaves of the signer that counted.
        pub counted: u64,
        /// For whom, or for what; may be empty.
        pub note: Text<64>,
        /// The run's steward.
        pub steward: MemberId,
        /// Where it could be dialled.
        pub addresses: Addresses,
    }
}

impl Message for Statement {
    const TAG: &'static str = "statement";
}
