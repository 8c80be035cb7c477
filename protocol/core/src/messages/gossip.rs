//! What is spread to whoever listens. All of it is a hint: what counts is pulled or asked for on a channel.

use crate::ids::{Digest, Height};
use crate::messages::enrol::Addresses;
use crate::messages::record::Record;
use crate::messages::round::Commit;
use crate::sign::{Message, Signed};
use crate::wire;

wire! {
    /// A gossiped message.
    pub enum Gossiped {
        /// A sealed record, spread by the steward and by everyone who has taken it.
        Record(Signed<Record>),
        /// The steward's seal on a record too long to be gossiped.
        Head(Signed<Head>),
        /// A commitment, spread by its author.
        Commit(Signed<Commit>),
    }
}

wire! {
    /// The steward: the ledger has this head after the record of this height.
    ///
    /// With a record of the height and another head it proves two seals.
    pub struct Head {
        /// The record's place.
        pub height: Height,
        /// Hash of the record.
        pub head: Digest,
    }
}

impl Message for Head {
    const TAG: &'static str = "head";
}

wire! {
    /// Where a member's channel can be dialled, for those who know older addresses.
    pub struct Whereabouts {
        /// Where.
        pub addresses: Addresses,
        /// When it was said, in Unix milliseconds: a later statement replaces an earlier one.
        pub time: u64,
    }
}

impl Message for Whereabouts {
    const TAG: &'static str = "whereabouts";
}
