//! Who may join, when the run starts, and what a newcomer weighs.

use crate::codec::List;
use crate::ids::MemberId;
use crate::{limits, wire};

wire! {
    /// Who may come, when the run starts, and what a newcomer weighs.
    pub struct Admission {
        /// Nodes of weight to wait for.
        pub start_nodes: u16,
        /// Verifiers to wait for.
        pub start_verifiers: u16,
        /// Most members ever.
        pub most_members: u16,
        /// Who needs no invitation.
        pub mode: Mode,
        /// Strangers admitted between two outcomes.
        pub per_round: u16,
        /// Recomputed leaves after which a newcomer has weight; 0, and everyone has.
        pub probation: u32,
        /// Verifiers that it takes to end a probation.
        pub vouchers: u8,
        /// Members that one member may bring in.
        pub member_invites: u16,
        /// Members' invitations, one below the other.
        pub depth: u8,
        /// Probability that a verifier audits a newcomer's round, in parts per million.
        pub newcomer_ppm: u32,
        /// Recomputed leaves after which that probability halves.
        pub halving: u32,
    }
}

wire! {
    /// Who may enrol without an invitation.
    pub enum Mode {
        /// Nobody.
        Invited,
        /// Those that the manifest lists.
        Listed(Listed),
        /// Everyone, as a node.
        Open,
    }
}

wire! {
    /// Keys that are known beforehand.
    pub struct Listed {
        /// Nodes that have weight from the beginning.
        pub founders: List<MemberId, { limits::LISTED }>,
        /// Other nodes.
        pub nodes: List<MemberId, { limits::LISTED }>,
        /// Verifiers.
        pub verifiers: List<MemberId, { limits::LISTED }>,
    }
}

impl Admission {
    /// Everyone by the organiser's invitation, with weight from the beginning.
    pub fn closed(start_nodes: u16, start_verifiers: u16, most_members: u16) -> Self {
        Self {
            start_nodes,
            start_verifiers,
            most_members,
            mode: Mode::Invited,
            per_round: 1,
            probation: 0,
            vouchers: 1,
            member_invites: 0,
            depth: 0,
            newcomer_ppm: 0,
            halving: 1,
        }
    }
}
