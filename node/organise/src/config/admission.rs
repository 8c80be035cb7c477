//! Who is admitted, and on what terms.

use muster_core::codec::List;
use muster_core::error::Misuse;
use muster_core::ids::{MemberId, unhex};
use muster_core::limits;
use muster_core::manifest;
use serde::Deserialize;

use super::number::millionths;
use super::section::section;

/// As [`manifest::Mode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeSetting {
    /// Everyone needs an invitation.
    Invited,
    /// Those that are listed need none.
    Listed,
    /// Nobody needs one.
    Open,
}

section! {
    /// As [`manifest::Admission`].
    Admission {
        /// Nodes to wait for.
        start_nodes: u16 = 4,
        /// Verifiers to wait for.
        start_verifiers: u16 = 1,
        /// Most members ever.
        most_members: u16 = 256,
        /// Who needs no invitation.
        mode: ModeSetting = ModeSetting::Invited,
        /// Listed nodes that have weight from the beginning.
        founders: Vec<String> = Vec::new(),
        /// Other listed nodes.
        nodes: Vec<String> = Vec::new(),
        /// Listed verifiers.
        verifiers: Vec<String> = Vec::new(),
        /// Strangers admitted in a round.
        per_round: u16 = 16,
        /// Recomputed leaves after which a newcomer has weight.
        probation: u32 = 0,
        /// Verifiers that must have recomputed some of these leaves.
        vouchers: u8 = 2,
        /// Members that a member may bring in.
        member_invites: u16 = 0,
        /// Members' invitations, one below the other.
        depth: u8 = 3,
        /// Probability of an audit of a newcomer.
        newcomer_share: f64 = 0.5,
        /// Recomputed leaves after which it halves.
        halving: u32 = 100,
    }
}

impl Admission {
    pub(super) fn checked(&self) -> Result<manifest::Admission, Misuse> {
        let listed = manifest::Listed {
            founders: keys("admission.founders", &self.founders)?,
            nodes: keys("admission.nodes", &self.nodes)?,
            verifiers: keys("admission.verifiers", &self.verifiers)?,
        };
        let keys = listed.founders.len() + listed.nodes.len() + listed.verifiers.len();
        // In other modes the keys would be left out of the manifest without a word.
        if keys > 0 && self.mode != ModeSetting::Listed {
            return Err(Misuse("admission.mode must be \"listed\" where keys are listed".into()));
        }
        Ok(manifest::Admission {
            start_nodes: self.start_nodes,
            start_verifiers: self.start_verifiers,
            most_members: self.most_members,
            mode: match self.mode {
                ModeSetting::Invited => manifest::Mode::Invited,
                ModeSetting::Listed => manifest::Mode::Listed(listed),
                ModeSetting::Open => manifest::Mode::Open,
            },
            per_round: self.per_round,
            probation: self.probation,
            vouchers: self.vouchers,
            member_invites: self.member_invites,
            depth: self.depth,
            newcomer_ppm: millionths("admission.newcomer_share", self.newcomer_share)?,
            halving: self.halving,
        })
    }
}

fn keys(field: &str, list: &[String]) -> Result<List<MemberId, { limits::LISTED }>, Misuse> {
    let key = |text: &String| {
        let wrong = || Misuse(format!("{field}: {text:?} is not a member id (`muster id` prints one)"));
        unhex(text).map(MemberId).ok_or_else(wrong)
    };
    let keys: Result<Vec<MemberId>, Misuse> = list.iter().map(key).collect();
    List::new(keys?).map_err(|misuse| Misuse(format!("{field}: {misuse}")))
}
